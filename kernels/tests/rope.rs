//! Rotation and cache write on the device under test, against plain f64.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod frame;

use std::ptr::null;

use cuda_std::launch::Family;
use emulator::Report;
use frame::gpu::{Gpu, TARGETS};
use frame::number::{Random, Type, relative_error};
use kernels::layout::{Pages, Part};
use kernels::rope::{THREADS, check, floor_bytes, grid, rope_and_cache};

const EPS: f32 = 1e-6;
const BLOCKS: u32 = 6;
const POSITIONS: usize = 40;

/// One launch.
#[derive(Clone, Debug)]
struct Case {
    ty: Type,
    heads: u32,
    pages: Pages,
    /// For each token; as many as there are tokens.
    slots: Vec<i32>,
    norm: bool,
    rotate: bool,
    /// Queries stay where they came from.
    in_place: bool,
    seed: u64,
}

/// What the kernel leaves: queries, and the layer's cache.
struct Results<T> {
    query: Vec<T>,
    cache: Vec<T>,
}

struct Data {
    qkv: Vec<u16>,
    cache: Vec<u16>,
    angles: Vec<f32>,
    positions: Vec<u32>,
    query_norm: Vec<u16>,
    key_norm: Vec<u16>,
}

impl Case {
    fn size(&self) -> usize {
        self.pages.head_size as usize
    }

    fn row(&self) -> usize {
        (self.heads + 2 * self.pages.heads) as usize * self.size()
    }

    fn data(&self) -> Data {
        let mut random = Random(self.seed + 7);
        let size = self.size();
        let angle = |i: usize| (i / size) as f32 * 10f32.powf(-((i % (size / 2)) as f32) / size as f32 * 8.0);
        let angles = (0..POSITIONS * size).map(|i| if i % size < size / 2 { angle(i).cos() } else { angle(i).sin() });
        Data {
            qkv: random.bits(self.ty, self.slots.len() * self.row()),
            cache: random.bits(self.ty, (BLOCKS * self.pages.page_vectors() * 8) as usize),
            angles: angles.collect(),
            positions: self.slots.iter().map(|_| random.below(POSITIONS as u64) as u32).collect(),
            query_norm: random.bits(self.ty, size),
            key_norm: random.bits(self.ty, size),
        }
    }

    /// A head after norm and rotation.
    fn turned(&self, head: &[u16], norm: &[u16], angles: &[f32]) -> Vec<f64> {
        let mut x: Vec<f64> = head.iter().map(|&b| self.ty.number(b)).collect();
        if self.norm {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            x.iter_mut().zip(norm).for_each(|(v, &w)| *v *= scale * self.ty.number(w));
        }
        if self.rotate {
            let half = x.len() / 2;
            for i in 0..half {
                let (a, b) = (x[i], x[i + half]);
                let (cos, sin) = (f64::from(angles[i]), f64::from(angles[i + half]));
                (x[i], x[i + half]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
        x
    }

    fn reference(&self, data: &Data) -> Results<f64> {
        let size = self.size();
        let mut query = Vec::new();
        let mut cache: Vec<f64> = data.cache.iter().map(|&b| self.ty.number(b)).collect();
        for ((row, &slot), &position) in data.qkv.chunks_exact(self.row()).zip(&self.slots).zip(&data.positions) {
            let angles = &data.angles[position as usize * size..][..size];
            let (queries, rest) = row.split_at(self.heads as usize * size);
            let (keys, values) = rest.split_at(rest.len() / 2);
            query.extend(queries.chunks_exact(size).flat_map(|head| self.turned(head, &data.query_norm, angles)));
            if slot < 0 {
                continue;
            }
            let (block, offset) = (slot as u32 / self.pages.block_size, slot as u32 % self.pages.block_size);
            for (h, (key, value)) in (0..).zip(keys.chunks_exact(size).zip(values.chunks_exact(size))) {
                let key = self.turned(key, &data.key_norm, angles);
                for (e, (key, &value)) in (0..).zip(key.into_iter().zip(value)) {
                    cache[self.pages.element(block, h, Part::Key, e, offset)] = key;
                    cache[self.pages.element(block, h, Part::Value, e, offset)] = self.ty.number(value);
                }
            }
        }
        Results { query, cache }
    }

    fn run(&self, gpu: &mut Gpu, data: &Data) -> (Results<u16>, Report) {
        check(self.pages.head_size).unwrap();
        gpu.seed(self.seed);
        let tokens = self.slots.len();
        let width = self.heads as usize * self.size();
        let qkv = gpu.upload("qkv", &data.qkv);
        let out = if self.in_place { qkv } else { gpu.alloc("query", tokens * width) };
        let stride = if self.in_place { self.row() } else { width };
        let cache = gpu.upload("cache", &data.cache);
        let angles = gpu.upload("angles", &data.angles);
        let (positions, slots) = (gpu.upload("positions", &data.positions), gpu.upload("slots", &self.slots));
        let norms = [("query norm", &data.query_norm), ("key norm", &data.key_norm)];
        let [query_norm, key_norm] =
            norms.map(|(name, norm)| if self.norm { gpu.upload(name, norm).ptr() } else { null() });
        let args = (
            qkv.ptr(),
            out.mut_ptr(),
            cache.mut_ptr(),
            if self.rotate { angles.ptr() } else { null() },
            positions.ptr(),
            slots.ptr(),
            query_norm,
            key_norm,
            EPS,
            tokens as u32,
            self.row() as u32 / 8,
            stride as u32 / 8,
            self.heads,
            self.pages.heads,
            self.pages.head_size,
            self.pages.block_size,
        );
        let entry = rope_and_cache::instance(&[self.ty.label()]).unwrap();
        let report = gpu.launch(entry, grid(tokens as u32, self.heads, self.pages.heads), THREADS, 0, args);
        let query = gpu.download(out).chunks_exact(stride).flat_map(|row| row[..width].to_vec()).collect();
        (Results { query, cache: gpu.download(cache) }, report)
    }

    fn check(&self) -> Vec<Report> {
        let data = self.data();
        let want = self.reference(&data);
        // A result is rounded once; without norm and rotation it is copied.
        let bound = match self.ty {
            _ if !self.norm && !self.rotate => 0.0,
            Type::F16 => 2f64.powi(-11) + 2e-6,
            Type::Bf16 => 2f64.powi(-8) + 2e-6,
        };
        let run = |(target, _)| {
            let (got, report) = self.run(&mut Gpu::new(target), &data);
            for (got, want) in [(got.query, &want.query), (got.cache, &want.cache)] {
                let error = relative_error(got.into_iter().map(|b| self.ty.number(b)), want);
                assert!(error <= bound, "{error} in {self:?}");
            }
            assert_eq!(report.total.wavefronts, 0, "no shared memory");
            report
        };
        TARGETS.map(run).into()
    }
}

/// Slots without order, every fifth token padding.
fn scattered(tokens: i32, block_size: u32) -> Vec<i32> {
    let all = (BLOCKS * block_size) as i32;
    (0..tokens).map(|t| if t % 5 == 3 { -1 } else { (t * 29 + 5) % all }).collect()
}

#[test]
fn any_shape_goes_to_any_slot() {
    let shapes = [
        (32, 8, 4, 1, 1),
        (64, 16, 3, 3, 7),
        (80, 16, 2, 2, 8),
        (96, 32, 5, 1, 9),
        (128, 16, 8, 2, 17),
        (256, 8, 2, 1, 3),
    ];
    for (i, (head_size, block_size, heads, kv_heads, tokens)) in shapes.into_iter().enumerate() {
        for j in 0..4 {
            Case {
                ty: Type::ALL[(i + j) % 2],
                heads,
                pages: Pages { heads: kv_heads, head_size, block_size },
                slots: scattered(tokens, block_size),
                norm: j & 1 != 0,
                rotate: j & 2 != 0,
                in_place: (i + j) % 3 == 0,
                seed: (i + j) as u64,
            }
            .check();
        }
    }
}

#[test]
fn a_prompt_is_moved_with_no_more_sectors_than_needed() {
    for (head_size, block_size) in [(64, 16), (128, 16), (80, 32)] {
        let pages = Pages { heads: 2, head_size, block_size };
        let slots: Vec<i32> = (0..48).collect();
        let tokens = slots.len() as u64;
        let case = Case { ty: Type::Bf16, heads: 4, pages, slots, norm: false, rotate: true, in_place: false, seed: 1 };
        for report in case.check() {
            assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
            // Angles are read again for each of the heads; positions and slots are a sector a warp.
            let again = tokens * u64::from(head_size) * 4 * (4 + 2 - 1);
            let indices = tokens / 8 * 32 * (4 + 2 * 3);
            let floor = floor_bytes(tokens, 4, 2, head_size.into());
            assert!(report.total.sectors * 32 <= floor + again + indices, "{head_size}");
        }
    }
}
