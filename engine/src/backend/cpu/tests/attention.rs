use super::*;
use crate::batch::{GroupTables, Span};
use crate::config::LayerKv;
use crate::error::Error;
use crate::kv::{BlockCopy, BlockMoves, KvDtype, KvGroup};

/// Heads are neither normalised nor rotated.
const PLAIN: QkNormRope<'_, CpuWeight> = QkNormRope { norms: None, value_eps: None, rope: None };

/// A model's attention: its sequences with random keys, values and queries, and scattered block tables.
struct Case {
    layout: KvLayout,
    group: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    /// A sink for each query head.
    sinks: Option<(CpuWeight, Vec<f32>)>,
    /// Context lengths by sequence.
    contexts: Vec<usize>,
    num_blocks: usize,
    tables: Vec<Vec<u32>>,
}

const LAYER: usize = 1;

const KV_DTYPES: [KvDtype; 5] =
    [KvDtype::Float(DType::F32), KvDtype::Float(DType::F16), KvDtype::Float(DType::Bf16), KvDtype::Int8, KvDtype::Fp8];

impl Case {
    fn new(layout: KvLayout, group: usize, window: Option<usize>, contexts: &[usize]) -> Self {
        let needed = |c: &usize| c.div_ceil(layout.block_size);
        let num_blocks = contexts.iter().map(needed).sum::<usize>() + 3;
        let mut ids: Vec<u32> = (0..num_blocks as u32).collect();
        let order = noise(9, num_blocks);
        ids.sort_by(|a, b| order[*a as usize].total_cmp(&order[*b as usize]));
        let mut ids = ids.into_iter();
        let tables = contexts.iter().map(|c| ids.by_ref().take(needed(c)).collect()).collect();
        let (softcap, sinks, contexts) = (None, None, contexts.to_vec());
        Case { layout, group, window, softcap, sinks, contexts, num_blocks, tables }
    }

    fn with_softcap(self, softcap: f32) -> Self {
        Case { softcap: Some(softcap), ..self }
    }

    fn with_sinks(self, backend: &CpuBackend) -> Self {
        let heads = self.group_shape().heads * self.group;
        let sinks: Vec<f32> = noise(77, heads).iter().map(|x| 3.0 * x).collect();
        let weight = backend.weight(HostTensor::from_f32(vec![heads], sinks.clone())).unwrap();
        Case { sinks: Some((weight, sinks)), ..self }
    }

    fn group_shape(&self) -> &KvGroup {
        &self.layout.groups[0]
    }

    fn kv_width(&self) -> usize {
        self.group_shape().heads * self.group_shape().head_dim
    }

    fn width(&self) -> usize {
        self.kv_width() * self.group
    }

    /// Elements of a token's result.
    fn out_width(&self) -> usize {
        self.width() / self.group_shape().head_dim * self.layout.layer_shape(0).value_dim()
    }

    /// Queries, keys and values as the operations get them.
    fn qkv(&self, backend: &CpuBackend, parts: &[(usize, usize, usize)]) -> Qkv {
        let [query, key, value] = [0, 1, 2].map(|kind| self.rows(backend, kind, parts));
        Qkv { query, kv: Some((key, self.group_shape().latent.is_none().then_some(value))) }
    }

    /// Returns row `position` of a sequence's queries (`kind` 0), keys (1) or values (2).
    fn row(&self, kind: u64, sequence: usize, position: usize) -> Vec<f32> {
        let width = if kind == 0 { self.width() } else { self.kv_width() };
        noise(kind + 3 * (sequence * 10_000 + position) as u64, width).iter().map(|v| v * 2.0).collect()
    }

    /// Returns a batch with the given `(sequence, first new token, one past the last)`.
    fn batch(&self, parts: &[(usize, usize, usize)]) -> Batch {
        let mut batch = Batch::new(1);
        for &(s, from, to) in parts {
            let span =
                Span { start: batch.groups[0].slots.len(), len: to - from, context: to, table: batch.table_len() };
            let size = self.layout.block_size;
            batch.spans.push(span);
            let group = &mut batch.groups[0];
            group.slots.extend((from..to).map(|p| self.tables[s][p / size] * size as u32 + (p % size) as u32));
            group.blocks.extend(&self.tables[s][..to.div_ceil(size)]);
        }
        batch
    }

    fn rows(&self, backend: &CpuBackend, kind: u64, parts: &[(usize, usize, usize)]) -> CpuTensor {
        let rows: Vec<Vec<f32>> =
            parts.iter().flat_map(|&(s, from, to)| (from..to).map(move |p| self.row(kind, s, p))).collect();
        tensor(backend, rows.len(), &rows.concat())
    }

    /// Returns a cache filled with NaN, which reveals reads of slots that were not written.
    fn cache(&self, backend: &CpuBackend) -> CpuKvCache {
        let mut cache = backend.kv_cache(self.layout.clone(), self.num_blocks, 0).unwrap();
        cache.poison();
        cache
    }

    fn step(&self, backend: &CpuBackend, cache: &mut CpuKvCache, parts: &[(usize, usize, usize)]) -> CpuTensor {
        let inputs = backend.upload(self.batch(parts), &[]);
        let mut qkv = self.qkv(backend, parts);
        backend.norm_rope_and_write_kv(&mut qkv, PLAIN, cache, LAYER, &inputs);
        backend.attention(&qkv, cache, self.params(), &inputs)
    }

    fn params(&self) -> Attention<'_, CpuWeight> {
        let sinks = self.sinks.as_ref().map(|(weight, _)| weight);
        Attention { layer: LAYER, scale: 0.3, window: self.window, softcap: self.softcap, sinks }
    }

    fn whole(&self) -> Vec<(usize, usize, usize)> {
        self.contexts.iter().enumerate().map(|(s, &c)| (s, 0, c)).collect()
    }

    /// Computes the attention of one query token.
    fn reference(&self, sequence: usize, position: usize) -> Vec<f64> {
        let dim = self.group_shape().head_dim;
        let round = |x: Vec<f32>| {
            let heads = x.chunks(dim);
            heads.flat_map(|head| cpu::rounded(self.layout.dtype, head)).collect::<Vec<_>>()
        };
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let seen = |kind| (first..=position).map(|p| round(self.row(kind, sequence, p))).collect::<Vec<_>>();
        let keys = seen(1);
        let values = if self.group_shape().latent.is_some() { keys.clone() } else { seen(2) };
        let skipped = dim - self.layout.layer_shape(0).value_dim();
        let mut out = Vec::new();
        for (h, query) in self.row(0, sequence, position).chunks(dim).enumerate() {
            let head = h / self.group * dim..(h / self.group + 1) * dim;
            let dot = |k: &[f32]| query.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
            let score = |k: &Vec<f32>| dot(&k[head.clone()]) * f64::from(self.params().scale);
            let capped = |s: f64| self.softcap.map(f64::from).map_or(s, |cap| cap * (s / cap).tanh());
            let weights: Vec<f64> = keys.iter().map(|k| capped(score(k)).exp()).collect();
            let sink = self.sinks.as_ref().map_or(0.0, |(_, sinks)| f64::from(sinks[h]).exp());
            let norm = weights.iter().sum::<f64>() + sink;
            let head = head.skip(skipped);
            out.extend(head.map(|i| weights.iter().zip(&values).map(|(w, v)| w * f64::from(v[i])).sum::<f64>() / norm));
        }
        out
    }
}

fn layout(heads: usize, head_dim: usize, block_size: usize, dtype: impl Into<KvDtype>) -> KvLayout {
    KvLayout::uniform(3, heads, head_dim, block_size, dtype.into())
}

/// A layout whose keys contain their values.
fn latent(head_dim: usize, rank: usize, block_size: usize, dtype: KvDtype) -> KvLayout {
    let layer = |source| LayerKv { heads: 1, head_dim, window: None, source, latent: Some(rank) };
    KvLayout::new(&[0, 1, 2].map(layer), block_size, dtype)
}

fn grid() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in KV_DTYPES {
        for block_size in [1, 7, 8, 16, 32, 80] {
            for (heads, head_dim, group) in [(2, 16, 1), (1, 5, 3), (3, 80, 2), (2, 64, 4)] {
                for window in [None, Some(1), Some(10), Some(70)] {
                    let layout = layout(heads, head_dim, block_size, dtype);
                    cases.push(Case::new(layout, group, window, &[1, 16, 33, 150]));
                }
            }
        }
        for (head_dim, rank, block_size, group) in [(48, 32, 16, 4), (576, 512, 8, 32), (21, 17, 7, 3)] {
            let layout = latent(head_dim, rank, block_size, dtype);
            cases.push(Case::new(layout, group, (group == 4).then_some(20), &[1, 16, 33, 150]));
        }
        for (head_dim, group, window) in [(64, 8, Some(70)), (512, 2, None), (24, 4, Some(20))] {
            let case = || Case::new(layout(2, head_dim, 16, dtype), group, window, &[1, 16, 33, 150]);
            cases.extend([case().with_sinks(&backend(1)), case().with_softcap(2.0).with_sinks(&backend(1))]);
        }
    }
    cases
}

#[test]
fn attention_matches_the_reference() {
    let backend = backend(3);
    for case in grid() {
        let out = case.step(&backend, &mut case.cache(&backend), &case.whole());
        let positions = case.contexts.iter().enumerate().flat_map(|(s, &c)| (0..c).map(move |p| (s, p)));
        for ((s, p), got) in positions.zip(out.as_slice().chunks(case.out_width())) {
            // Check all positions of the short sequences and some of the long one.
            if p < 40 || p % 13 == 0 || p == 149 {
                let what = format!("{:?} window {:?} sequence {s} position {p}", case.layout, case.window);
                // Scores of long heads are large, and so are their errors.
                let tolerance = if case.group_shape().head_dim > 80 { 1e-4 } else { 1e-5 };
                assert_close(got, &case.reference(s, p), tolerance, &what);
            }
        }
    }
}

#[test]
fn a_query_does_not_depend_on_chunks_batch_or_threads() {
    let (one, four) = (backend(1), backend(4));
    for case in grid() {
        let whole = bits(&case.step(&four, &mut case.cache(&four), &case.whole()));
        let width = case.out_width();
        let whole_rows = |s: usize, from: usize, to: usize| {
            let before: usize = case.contexts[..s].iter().sum();
            &whole[(before + from) * width..(before + to) * width]
        };
        // Compute the long sequence in pieces, together with decodes of other sequences.
        let mut cache = case.cache(&one);
        case.step(&one, &mut cache, &[(1, 0, 15), (2, 0, 32)]);
        let mut from = 0;
        for to in [1, 2, 20, 63, 64, 65, 149, 150] {
            let parts = if from == 0 { vec![(3, from, to), (1, 15, 16)] } else { vec![(2, 32, 33), (3, from, to)] };
            let out = bits(&case.step(&one, &mut cache, &parts));
            let want: Vec<u32> = parts.iter().flat_map(|&(s, from, to)| whole_rows(s, from, to).to_vec()).collect();
            assert!(out == want, "{:?} group {} window {:?} {parts:?}", case.layout, case.group, case.window);
            from = to;
        }
    }
}

#[test]
fn copied_blocks_serve_in_place_of_the_originals() {
    let backend = backend(2);
    for dtype in KV_DTYPES {
        let mut case = Case::new(layout(2, 16, 8, dtype), 2, None, &[30]);
        let mut cache = case.cache(&backend);
        let want = bits(&case.step(&backend, &mut cache, &case.whole()));
        let unused: Vec<u32> = (0..case.num_blocks as u32).filter(|b| !case.tables[0].contains(b)).collect();
        let copies: Vec<BlockCopy> =
            case.tables[0].iter().zip(&unused).map(|(&src, &dst)| BlockCopy { group: 0, src, dst }).collect();
        cache.move_blocks(&BlockMoves { copies: copies.clone(), ..BlockMoves::default() });
        for copy in &copies {
            cache.poison_block(copy.src);
        }
        case.tables[0].splice(..copies.len(), unused.iter().copied());
        let inputs = backend.upload(case.batch(&case.whole()), &[]);
        let qkv = case.qkv(&backend, &case.whole());
        assert_eq!(bits(&backend.attention(&qkv, &cache, case.params(), &inputs)), want);
    }
}

#[test]
fn copies_reach_every_layer_and_no_other_block() {
    KV_DTYPES.into_iter().for_each(assert_copies);
}

fn assert_copies(dtype: KvDtype) {
    let layout = layout(1, 2, 2, dtype);
    let mut cache = CpuKvCache::new(layout.clone(), 4, 2).unwrap();
    let backend = backend(1);
    let groups = vec![GroupTables { slots: (0..8).collect(), ..GroupTables::default() }];
    let inputs = backend.upload(Batch { groups, ..Batch::default() }, &[]);
    let [query, key, value] = [0, 1, 2].map(|seed| tensor(&backend, 8, &noise(seed, 16)));
    let mut qkv = Qkv { query, kv: Some((key, Some(value))) };
    for layer in 0..3 {
        backend.norm_rope_and_write_kv(&mut qkv, PLAIN, &mut cache, layer, &inputs);
    }
    let before: Vec<Vec<u8>> = (0..3).map(|l| cache.layer(layout.place(l)).to_vec()).collect();
    let bytes = layout.block_bytes() / 3;
    let copy = |src, dst| BlockCopy { group: 0, src, dst };
    // Blocks are swapped out before they are overwritten by copies.
    let out = vec![copy(2, 0), copy(1, 1)];
    cache.move_blocks(&BlockMoves { swap_out: out, copies: vec![copy(0, 3), copy(0, 1)], ..BlockMoves::default() });
    for (layer, before) in before.iter().enumerate() {
        let block = |i: usize| &before[i * bytes..(i + 1) * bytes];
        assert_eq!(cache.layer(layout.place(layer)), [block(0), block(0), block(2), block(0)].concat());
    }
    // Swapping in follows swapping out, and copies follow both.
    let moves =
        BlockMoves { swap_out: vec![copy(3, 0)], swap_in: vec![copy(1, 2), copy(0, 3)], copies: vec![copy(2, 0)] };
    cache.move_blocks(&moves);
    for (layer, before) in before.iter().enumerate() {
        let block = |i: usize| &before[i * bytes..(i + 1) * bytes];
        assert_eq!(cache.layer(layout.place(layer)), [block(1), block(0), block(1), block(0)].concat());
    }
}

/// Checks that a token's stored bytes do not depend on whether it is computed with others in one step or in several.
#[test]
fn the_bytes_of_a_token_do_not_depend_on_the_way_there() {
    let backend = backend(2);
    for dtype in KV_DTYPES {
        let case = Case::new(layout(2, 20, 8, dtype), 2, None, &[30]);
        let (mut whole, mut parts) = (case.cache(&backend), case.cache(&backend));
        case.step(&backend, &mut whole, &case.whole());
        for part in [(0, 0, 1), (0, 1, 9), (0, 9, 29), (0, 29, 30)] {
            case.step(&backend, &mut parts, &[part]);
        }
        let place = case.layout.place(LAYER);
        assert_eq!(whole.layer(place), parts.layer(place), "{dtype}");
    }
}

#[test]
fn eight_bits_give_nearly_twice_as_many_blocks() {
    for (head_dim, least) in [(32, 1.88), (64, 1.9), (128, 1.96)] {
        let bytes = |dtype| layout(4, head_dim, 16, dtype).block_bytes() as f64;
        let sixteen = bytes(DType::F16.into());
        for dtype in [KvDtype::Int8, KvDtype::Fp8] {
            assert!(sixteen / bytes(dtype) >= least && sixteen / bytes(dtype) < 2.0, "{head_dim}, {dtype}");
        }
    }
}

#[test]
fn a_second_step_allocates_nothing() {
    let backend = backend(2);
    let case = Case::new(layout(2, 64, 16, DType::F32), 2, None, &[100, 3]);
    let w = backend.to_projection(weight(&backend, &[256, 256], noise(1, 256 * 256), DType::F32), false).unwrap();
    let bias = weight(&backend, &[256], noise(1, 256), DType::Bf16);
    let norm = Norm::Rms { weight: bias.clone(), eps: 1e-6 };
    let mut cache = case.cache(&backend);
    let mut step = || {
        let x = case.step(&backend, &mut cache, &case.whole());
        let mut y = backend.linear(&backend.norm(&x, &norm), &w, None, None);
        backend.linear_add(&mut y, &x, &w, Some(&bias));
        backend.cpu.allocations()
    };
    let first = step();
    assert!(first > 0);
    assert_eq!(step(), first);
}

#[test]
fn impossible_caches_are_refused() {
    let refused = |layout, blocks| CpuKvCache::new(layout, blocks, 0).err().unwrap();
    assert!(matches!(refused(layout(8, 64, 16, DType::F16), usize::MAX / 2), Error::Memory(_)));
    assert!(matches!(refused(layout(8, 64, 16, DType::F16), 1 << 36), Error::Memory(_)));
    assert!(matches!(refused(layout(8, 64, 0, DType::F16), 1), Error::Option(_)));
    assert!(CpuKvCache::new(layout(8, 64, 16, DType::F16), 0, 0).is_ok());
}

impl CpuKvCache {
    fn poison(&mut self) {
        (0..self.num_blocks as u32).for_each(|b| self.poison_block(b));
    }

    fn poison_block(&mut self, block: u32) {
        let (size, layers) = (self.layout.layer_bytes(0), self.layout.groups[0].layers.len());
        for layer in 0..layers {
            let start = (layer * self.num_blocks + block as usize) * size;
            // NaN in every type, as an element or as its scale.
            self.data[start..start + size].fill(0xff);
        }
    }
}
