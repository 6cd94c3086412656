//! The CPU backend's two most expensive operations: projections, to compare with memory bandwidth, and attention in a
//! decode step. Items are floating-point operations. Bytes are the size of the weight, or of the keys and values.
//!
//!     cargo bench -p engine --bench cpu

use std::fmt;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use engine::tools::backend::cpu::{CpuBackend, CpuKvCache, CpuTensor, CpuWeight};
use engine::tools::backend::{Attention, Backend, HostLinear, HostQkv, Latent, QkNormRope};
use engine::tools::batch::{Batch, GroupTables, Span};
use engine::tools::config::LayerKv;
use engine::tools::kv::{KvDtype, KvLayout, blocks_for};
use engine::tools::tensor::{DType, HostTensor};

/// Weights of this total size are used in turn, so that they are not cached, as in a model.
const FOOTPRINT: usize = 400 << 20;
/// `(N, K)` of OPT-125m's projections: the two of the feed-forward block, and the output matrix.
const SHAPES: [(usize, usize); 3] = [(3072, 768), (768, 3072), (50272, 768)];
const TOKENS: [usize; 4] = [1, 8, 32, 512];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const KV_DTYPES: [KvDtype; 5] =
    [KvDtype::Float(DType::F32), KvDtype::Float(DType::F16), KvDtype::Float(DType::Bf16), KvDtype::Int8, KvDtype::Fp8];

/// Number of sequences in the decode step, and tokens that each sequence sees.
const SEQUENCES: usize = 32;
const CONTEXT: usize = 1000;
/// OPT-125m's number of heads and elements per head.
const HEADS: usize = 12;
const HEAD_DIM: usize = 64;
const BLOCK_SIZE: usize = 16;

fn main() {
    divan::main();
}

/// A projection of `m` tokens by a weight of `n` rows and `k` columns.
#[derive(Clone, Copy)]
struct Projection {
    dtype: DType,
    n: usize,
    k: usize,
    m: usize,
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} x {}, {} tokens", self.dtype, self.n, self.k, self.m)
    }
}

fn projections() -> Vec<Projection> {
    let shapes = DTYPES.into_iter().flat_map(|dtype| SHAPES.map(|(n, k)| (dtype, n, k)));
    shapes.flat_map(|(dtype, n, k)| TOKENS.map(|m| Projection { dtype, n, k, m })).collect()
}

/// Measures `x W^T`, with one thread per core.
#[divan::bench(args = projections(), max_time = 1)]
fn projection(bencher: Bencher<'_, '_>, Projection { dtype, n, k, m }: Projection) {
    let backend = expect_ok(CpuBackend::new(None));
    let bytes = n * k * dtype.size();
    let matrix = || expect_ok(backend.to_projection(weight(&backend, n, k, dtype), false));
    let weights: Vec<CpuWeight> = (0..(FOOTPRINT / bytes).max(1)).map(|_| matrix()).collect();
    let table = weight(&backend, 1, k, DType::F32);
    let x = backend.embed_tokens(
        &table,
        0..usize::MAX,
        None,
        &backend.upload(Batch { tokens: vec![0; m], ..Batch::default() }, &[]),
    );
    let mut turns = weights.iter().cycle();
    let bencher = bencher.counter(BytesCount::new(bytes)).counter(ItemsCount::new(2 * m * n * k));
    bencher.with_inputs(|| turns.next()).bench_local_values(|weight| weight.map(|w| backend.linear(&x, w, None, None)));
}

/// Measures one layer's attention in a step where every sequence decodes, on one thread.
#[divan::bench(args = KV_DTYPES, max_time = 2)]
fn decode_attention(bencher: Bencher<'_, '_>, dtype: KvDtype) {
    let backend = expect_ok(CpuBackend::new(Some(1)));
    let width = HEADS * HEAD_DIM;
    let layout = KvLayout::uniform(1, HEADS, HEAD_DIM, BLOCK_SIZE, dtype);
    let host = || HostLinear::fixed(HostTensor::from_f32(vec![width, width], noise(width * width)), None);
    let qkv = expect_ok(backend.qkv_weight(HostQkv { query: host(), key: Some(host()), value: Some(host()) }));
    let project = |rows: usize| backend.qkv(&input(&backend, rows, width), &qkv);
    let (queries, cache, step) = decode_step(&backend, layout, project);
    let heads = 2 * SEQUENCES * CONTEXT * HEADS;
    let bytes = heads * dtype.head_bytes(HEAD_DIM);
    let bencher = bencher.counter(BytesCount::new(bytes)).counter(ItemsCount::new(2 * heads * HEAD_DIM));
    bencher.bench_local(|| backend.attention(&queries, &cache, Attention::plain(0, 0.125), &step));
}

/// Measures attention over latent vectors in the same step on one thread, for the heads of DeepSeek-V2-Lite and V3. The
/// cache has a type of 16 bits.
#[divan::bench(args = [16, 128], max_time = 2)]
fn latent_attention(bencher: Bencher<'_, '_>, heads: usize) {
    let backend = expect_ok(CpuBackend::new(Some(1)));
    let (dtype, rank, rotated, unrotated) = (KvDtype::Float(DType::Bf16), 512, 64, 16);
    let layer = LayerKv { heads: 1, head_dim: rank + rotated, window: None, source: 0, latent: Some(rank) };
    let layout = KvLayout::new(&[layer], BLOCK_SIZE, dtype);
    let matrices =
        |rows, cols| (0..heads).map(|_| HostTensor::from_f32(vec![rows, cols], noise(rows * cols))).collect();
    let sizes = Latent { query_rank: None, rank, rotated, unrotated, value: unrotated };
    let weight = expect_ok(backend.latent_weight(sizes, matrices(rank, unrotated), matrices(unrotated, rank)));
    let project = |rows: usize| {
        let [query, rest, key, latent] =
            [heads * rotated, heads * unrotated, rotated, rank].map(|width| input(&backend, rows, width));
        backend.latent_qkv([&query, &rest], [&key, &latent], &weight)
    };
    let (queries, cache, step) = decode_step(&backend, layout, project);
    let tokens = SEQUENCES * CONTEXT;
    let bencher = bencher.counter(BytesCount::new(tokens * dtype.head_bytes(rank + rotated)));
    let bencher = bencher.counter(ItemsCount::new(2 * tokens * heads * (2 * rank + rotated)));
    bencher.bench_local(|| backend.attention(&queries, &cache, Attention::plain(0, 0.125), &step));
}

/// Returns rows of equal numbers.
fn input(backend: &CpuBackend, rows: usize, width: usize) -> CpuTensor {
    let table = weight(backend, 1, width, DType::F32);
    let inputs = backend.upload(Batch { tokens: vec![0; rows], ..Batch::default() }, &[]);
    backend.embed_tokens(&table, 0..usize::MAX, None, &inputs)
}

/// Returns the queries, the filled cache and the inputs of a step where every sequence decodes. `project` returns rows of
/// queries, keys and values.
fn decode_step(
    backend: &CpuBackend,
    layout: KvLayout,
    project: impl Fn(usize) -> <CpuBackend as Backend>::Qkv,
) -> (<CpuBackend as Backend>::Qkv, CpuKvCache, <CpuBackend as Backend>::Inputs) {
    let blocks = blocks_for(CONTEXT, BLOCK_SIZE);
    let mut cache = expect_ok(backend.kv_cache(layout, SEQUENCES * blocks, 0));
    // The blocks of a sequence are interleaved with those of other sequences.
    let block = |sequence: usize, i: usize| (i * SEQUENCES + sequence) as u32;
    for sequence in 0..SEQUENCES {
        let slots = (0..CONTEXT).map(|p| block(sequence, p / BLOCK_SIZE) * BLOCK_SIZE as u32 + (p % BLOCK_SIZE) as u32);
        let groups = vec![GroupTables { slots: slots.collect(), ..GroupTables::default() }];
        let batch = backend.upload(Batch { groups, ..Batch::default() }, &[]);
        backend.norm_rope_and_write_kv(&mut project(CONTEXT), QkNormRope::default(), &mut cache, 0, &batch);
    }
    let spans = (0..SEQUENCES).map(|s| Span { start: s, len: 1, context: CONTEXT, table: s * blocks });
    let tables = (0..SEQUENCES).flat_map(|s| (0..blocks).map(move |i| block(s, i)));
    let groups = vec![GroupTables { blocks: tables.collect(), ..GroupTables::default() }];
    let step = backend.upload(Batch { spans: spans.collect(), groups, ..Batch::default() }, &[]);
    (project(SEQUENCES), cache, step)
}

/// Returns a matrix of reproducible numbers around zero.
fn weight(backend: &CpuBackend, rows: usize, columns: usize, dtype: DType) -> CpuWeight {
    expect_ok(backend.weight(HostTensor::from_f32(vec![rows, columns], noise(rows * columns)).to_dtype(dtype)))
}

fn noise(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5).collect()
}

/// Unwraps a result that the benchmark needs.
fn expect_ok<T>(result: engine::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
