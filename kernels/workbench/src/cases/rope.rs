//! Rotation of heads, fused with the cache write.

use cuda_std::launch::{DevicePtr, KernelCall};
use kernels::attention::paper::launch::apart;
use kernels::layout::{KeyOrValue, KvFormat, Pages, VECTOR};
use kernels::rope::{self, HeadOptions, Pairing, floor_bytes, rope_and_cache, shape};
use kernels::with_element;
use launch::Result;

use super::exact;
use super::norm::rounding;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::coded::CodedHead;
use crate::gpu::{Buffer, Gpu};
use crate::number::{ProblemRng, Type, relative_error};

const EPS: f32 = 1e-6;
/// Rows in the table of angles.
const POSITIONS: usize = 40;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let (tokens, heads, kv_heads) = match scale {
        Scale::Small => (24, 4, 2),
        Scale::Full => (4096, 32, 8),
    };
    let pages = Pages { heads: kv_heads, head_size: 128, block_size: 16, format: KvFormat::Plain, padding: 0 };
    let slots: Vec<i32> = (0..tokens).collect();
    let rope_case = |ty, layout, format| {
        let (slots, pages) = (slots.clone(), Pages { format, ..pages });
        let general = None;
        RopeProblem { ty, heads, pages, layout, slots, norm: false, rotate: true, general, in_place: false, seed: 1 }
            .case()
    };
    let layouts = KvFormat::ALL.map(|format| (Layout::Quire, format)).into_iter();
    let layouts = layouts.chain([(Layout::Paper, KvFormat::Plain)]);
    let general = KvFormat::ALL.into_iter().flat_map(|format| Type::ALL.map(|ty| (format, ty))).map(|(format, ty)| {
        let general = HeadOptions { rotated: 64, pairing: Pairing::Halves, value_norm: true };
        RopeProblem {
            ty,
            heads,
            pages: Pages { format, ..pages },
            layout: Layout::Quire,
            slots: slots.clone(),
            norm: true,
            rotate: true,
            general: Some(general),
            in_place: false,
            seed: 1,
        }
        .case()
    });
    let plain = layouts.flat_map(|(layout, format)| Type::ALL.map(|ty| rope_case(ty, layout, format)));
    plain.chain(general).collect()
}

/// A layout of the cache, which determines the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// [`Pages`]: `rope_and_cache`.
    Quire,
    /// vLLM's layout, with separate keys and values: `paper_rope_and_cache`.
    Paper,
}

/// Fused QKV rows of random numbers, and the slots for their keys and values.
#[derive(Clone, Debug)]
pub struct RopeProblem {
    /// Type of the elements.
    pub ty: Type,
    /// Query heads.
    pub heads: u32,
    /// Pages of the cache.
    pub pages: Pages,
    /// Layout of the cache.
    pub layout: Layout,
    /// Slot of each token, negative for padding.
    pub slots: Vec<i32>,
    /// Whether heads are normalised.
    pub norm: bool,
    /// Whether heads are rotated.
    pub rotate: bool,
    /// Options of `general_rope_and_cache`, or `None` for `rope_and_cache`.
    pub general: Option<HeadOptions>,
    /// Whether queries are written back in place.
    pub in_place: bool,
    /// Seed of the numbers.
    pub seed: u64,
}

/// The kernel's inputs in addition to the rows.
struct Tables {
    angles: Vec<f32>,
    positions: Vec<u32>,
    query_norm: Vec<u16>,
    key_norm: Vec<u16>,
}

/// Rows in the device's memory, and the kernel's other inputs.
#[derive(Clone, Copy)]
struct Rows<'a> {
    qkv: Buffer<u16>,
    query: Buffer<u16>,
    /// Elements from one row of queries to the next.
    query_stride: usize,
    tables: &'a Tables,
}

impl RopeProblem {
    /// Makes a case of the problem. Elements that are neither normalised nor rotated must be bit-exact. The others may
    /// be off by half a unit in the last place of the largest result, plus a little for arithmetic in `f32`. Codes must
    /// equal the host's codes of the kernel's 16-bit output.
    pub fn case(self) -> Case {
        let (heads, kv_heads, size) = (self.heads, self.pages.heads, self.pages.head_size);
        let tokens = self.slots.len();
        Case {
            kernel: match self.layout {
                Layout::Quire if self.general.is_some() => "general_rope_and_cache",
                Layout::Quire => "rope_and_cache",
                Layout::Paper => "paper_rope_and_cache",
            },
            shape: format!("{}, {heads}+2x{kv_heads} heads of {size}, {tokens} tokens", self.label()),
            floor: Floor { bytes: floor_bytes(tokens as u64, heads.into(), self.pages), flops: 0 },
            prepare: Box::new(move |gpu| self.prepare(gpu)),
        }
    }

    /// Names the types of the rows and of the cache.
    fn label(&self) -> &'static str {
        kernels::kv_element::label(self.ty.element(), self.pages.format)
    }

    fn size(&self) -> usize {
        self.pages.head_size as usize
    }

    /// Returns the number of blocks in the cache, one more than the slots need.
    fn blocks(&self) -> u32 {
        self.slots.iter().max().map_or(0, |&slot| slot.max(0) as u32 / self.pages.block_size) + 2
    }

    /// Returns the number of key elements in a 16-bit cache. In the paper's layout the values start at this index.
    fn keys(&self) -> usize {
        let Pages { heads, head_size, block_size, .. } = self.pages;
        (self.blocks() * heads * head_size * block_size) as usize
    }

    /// Returns the index of an element in the cache. In vLLM's layouts keys are `[block][head][size /
    /// 8][block_size][8]`, and values `[block][head][size][block_size]`.
    fn index(&self, block: u32, head: u32, part: KeyOrValue, element: u32, offset: u32) -> usize {
        let Pages { heads, head_size, block_size, .. } = self.pages;
        let page = (block * heads + head) as usize;
        match (self.layout, part) {
            (Layout::Quire, _) => self.pages.element(block, head, part, element, offset),
            (Layout::Paper, KeyOrValue::Key) => {
                let chunk = page * (head_size / 8) as usize + (element / 8) as usize;
                (chunk * block_size as usize + offset as usize) * 8 + (element % 8) as usize
            }
            (Layout::Paper, KeyOrValue::Value) => {
                self.keys() + (page * head_size as usize + element as usize) * block_size as usize + offset as usize
            }
        }
    }

    /// Returns the number of elements in a row.
    fn row(&self) -> usize {
        (self.heads + 2 * self.pages.heads) as usize * self.size()
    }

    /// Returns the number of rotated elements of a head.
    fn rotated(&self) -> usize {
        self.general.map_or(self.size(), |general| general.rotated as usize)
    }

    fn tables(&self, random: &mut ProblemRng) -> Tables {
        let size = self.rotated();
        let half = size / 2;
        let angle = |i: usize| (i / size) as f32 * 1e4f32.powf(-((i % half) as f32) / half as f32);
        let cos_or_sin = |i: usize| if i % size < half { angle(i).cos() } else { angle(i).sin() };
        Tables {
            angles: (0..POSITIONS * size).map(cos_or_sin).collect(),
            positions: self.slots.iter().map(|_| random.below(POSITIONS as u64) as u32).collect(),
            query_norm: random.bits(self.ty, self.size()),
            key_norm: random.bits(self.ty, self.size()),
        }
    }

    /// Returns a head of values, which may be normalised.
    fn value(&self, head: &[u16]) -> Vec<f64> {
        let x: Vec<f64> = head.iter().map(|&v| self.ty.number(v)).collect();
        if !self.general.is_some_and(|general| general.value_norm) {
            return x;
        }
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        x.iter().map(|v| v / (mean + f64::from(EPS)).sqrt()).collect()
    }

    /// Normalises and rotates a head.
    fn turned(&self, head: &[u16], norm: &[u16], angles: &[f32]) -> Vec<f64> {
        let mut x: Vec<f64> = head.iter().map(|&v| self.ty.number(v)).collect();
        if self.norm {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            x.iter_mut().zip(norm).for_each(|(v, &w)| *v *= scale * self.ty.number(w));
        }
        if self.rotate {
            let half = self.rotated() / 2;
            for i in 0..half {
                let (first, second) = match self.general {
                    Some(HeadOptions { pairing: Pairing::Interleaved, .. }) => (2 * i, 2 * i + 1),
                    _ => (i, i + half),
                };
                let (a, b) = (x[first], x[second]);
                let (cos, sin) = (f64::from(angles[i]), f64::from(angles[i + half]));
                (x[first], x[second]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
        x
    }

    /// Returns the queries, and the cache after the write. `old` is the cache before it.
    fn reference(&self, qkv: &[u16], old: &[u16], tables: &Tables) -> (Vec<f64>, Vec<f64>) {
        let (size, Pages { block_size, .. }) = (self.size(), self.pages);
        let mut query = Vec::new();
        let mut cache: Vec<f64> = old.iter().map(|&v| self.ty.number(v)).collect();
        for ((row, &slot), &position) in qkv.chunks_exact(self.row()).zip(&self.slots).zip(&tables.positions) {
            let angles = &tables.angles[position as usize * self.rotated()..][..self.rotated()];
            let (queries, rest) = row.split_at(self.heads as usize * size);
            let (keys, values) = rest.split_at(rest.len() / 2);
            query.extend(queries.chunks_exact(size).flat_map(|head| self.turned(head, &tables.query_norm, angles)));
            if slot < 0 {
                continue;
            }
            let (block, offset) = (slot as u32 / block_size, slot as u32 % block_size);
            for (head, (key, value)) in (0..).zip(keys.chunks_exact(size).zip(values.chunks_exact(size))) {
                let key = self.turned(key, &tables.key_norm, angles);
                for (e, (key, value)) in (0..).zip(key.into_iter().zip(self.value(value))) {
                    cache[self.index(block, head, KeyOrValue::Key, e, offset)] = key;
                    cache[self.index(block, head, KeyOrValue::Value, e, offset)] = value;
                }
            }
        }
        (query, cache)
    }

    /// Returns the coded cache after the write. `old` is the cache before it, and `plain` a 16-bit cache that holds the
    /// new tokens in the same slots.
    fn coded(&self, old: &[u8], plain: &[u16]) -> Vec<u8> {
        let mut cache = old.to_vec();
        let sixteen = Pages { format: KvFormat::Plain, ..self.pages };
        for slot in self.slots.iter().filter(|&&slot| slot >= 0) {
            let (block, offset) = (*slot as u32 / self.pages.block_size, *slot as u32 % self.pages.block_size);
            for (head, part) in (0..self.pages.heads).flat_map(|h| [(h, KeyOrValue::Key), (h, KeyOrValue::Value)]) {
                let element = |e| self.ty.number(plain[sixteen.element(block, head, part, e, offset)]) as f32;
                let elements: Vec<f32> = (0..self.pages.head_size).map(element).collect();
                CodedHead::of(self.pages.format, &elements).put(&mut cache, self.pages, block, head, part, offset);
            }
        }
        cache
    }

    /// Builds the kernel call on these rows, for a cache of this format.
    fn call(&self, gpu: &mut Gpu, rows: Rows<'_>, cache: Buffer<u8>, format: KvFormat) -> Result<KernelCall> {
        let RopeProblem { ty, heads, pages, norm, rotate, .. } = *self;
        let Rows { qkv, query, query_stride, tables } = rows;
        let angles = if rotate { gpu.upload("angles", &tables.angles)?.ptr() } else { DevicePtr::NULL };
        let norms = [("query norm", &tables.query_norm), ("key norm", &tables.key_norm)];
        let [query_norm, key_norm] = norms.map(|(name, weight)| gpu.upload(name, weight));
        let [query_norm, key_norm] = if norm { [query_norm?.ptr(), key_norm?.ptr()] } else { [DevicePtr::NULL; 2] };
        let args = rope_and_cache {
            qkv: qkv.ptr(),
            query: query.mut_ptr(),
            cache: cache.mut_ptr(),
            angles,
            positions: gpu.upload("positions", &tables.positions)?.ptr(),
            slots: gpu.upload("slots", &self.slots)?.ptr(),
            query_norm,
            key_norm,
            eps: EPS,
            tokens: self.slots.len() as u32,
            qkv_stride: self.row() as u32 / VECTOR,
            query_stride: query_stride as u32 / VECTOR,
            heads,
            kv_heads: pages.heads,
            head_size: pages.head_size,
            block_size: pages.block_size,
            padding: pages.padding,
        };
        if let Some(general) = self.general {
            return Ok(general.call(ty.element(), format, args));
        }
        Ok(match self.layout {
            Layout::Quire => rope::call(ty.element(), format, args),
            Layout::Paper => {
                let args = apart(args, cache.mut_ptr::<u16>().offset(self.keys()));
                with_element!(ty.element(), T => args.instance::<T>())
            }
        })
    }

    fn prepare(&self, gpu: &mut Gpu) -> Result<Prepared> {
        let RopeProblem { ty, heads, pages, norm, rotate, in_place, .. } = *self;
        let mut random = ProblemRng(self.seed);
        let tokens = self.slots.len();
        let rows = random.bits(ty, tokens * self.row());
        let old = random.bits(ty, 2 * self.keys() + (self.blocks() * pages.padding * VECTOR) as usize);
        let tables = self.tables(&mut random);
        let (query_truth, cache_truth) = self.reference(&rows, &old, &tables);
        let bytes = |elements: &[u16]| elements.iter().copied().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        let shape = shape(tokens as u32, heads, pages.heads);

        let width = heads as usize * self.size();
        let qkv = gpu.upload("qkv", &rows)?;
        let query = if in_place { qkv } else { gpu.alloc("query", tokens * width)? };
        let query_stride = if in_place { self.row() } else { width };
        let launched = Rows { qkv, query, query_stride, tables: &tables };
        let codes_truth = if pages.format.is_coded() {
            let plain = gpu.upload("cache in 16 bits", &bytes(&old))?;
            let (qkv, query) = (gpu.upload("same qkv", &rows)?, gpu.alloc("other query", tokens * width)?);
            let rows = Rows { qkv, query, query_stride: width, tables: &tables };
            let call = self.call(gpu, rows, plain, KvFormat::Plain)?;
            // SAFETY: the arrays have the expected shapes, slots are within the cache, and positions are within the
            // table.
            unsafe { gpu.launch(shape, call) }?;
            let plain: Vec<_> = gpu.download(plain)?.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)).collect();
            let old = &bytes(&old)[..16 * (self.blocks() * pages.page_vectors()) as usize];
            Some((old.to_vec(), self.coded(old, &plain)))
        } else {
            None
        };
        let cache = match &codes_truth {
            Some((old, _)) => gpu.upload("cache", old)?,
            None => gpu.upload("cache", &bytes(&old))?,
        };
        let call = self.call(gpu, launched, cache, pages.format)?;
        // Copied bits give equal numbers, so no error is allowed without norm and rotation.
        let allowed = if norm || rotate || self.general.is_some() { rounding(ty) } else { f64::MIN_POSITIVE };
        Ok(Prepared {
            // SAFETY: the arrays have the expected shapes, slots are within the cache, and positions are within the
            // table.
            launch: Box::new(move |gpu| unsafe { gpu.launch(shape, call) }),
            error: Box::new(move |gpu| {
                let queries = gpu.download::<u16>(query)?;
                let queries =
                    queries.chunks_exact(query_stride.max(1)).flat_map(|row| &row[..width]).map(|&v| ty.number(v));
                let error = relative_error(queries, &query_truth) / allowed;
                let cached = gpu.download(cache)?;
                if let Some((_, codes)) = &codes_truth {
                    return Ok(error.max(exact(&cached, codes)));
                }
                let cached = cached.as_chunks().0.iter().map(|&bits| ty.number(u16::from_le_bytes(bits)));
                Ok(error.max(relative_error(cached, &cache_truth) / allowed))
            }),
        })
    }
}
