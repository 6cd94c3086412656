//! Projections with quantised weights on the CPU, to compare with memory bandwidth. Items are floating-point
//! operations. Bytes are the size of the weight.
//!
//!     cargo bench -p engine --bench quantised

use std::fmt;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use engine::tools::backend::Backend;
use engine::tools::backend::cpu::{CpuBackend, CpuWeight};
use engine::tools::batch::Batch;
use engine::tools::quantised::QuantType;
use engine::tools::tensor::HostTensor;

/// Weights of this total size are used in turn, so that they are not cached, as in a model.
const FOOTPRINT: usize = 200 << 20;
/// `[N, K]` of a feed-forward layer in a model with a billion parameters.
const SHAPE: [usize; 2] = [5632, 2048];
const TOKENS: [usize; 4] = [1, 8, 32, 512];

fn main() {
    divan::main();
}

/// A projection of `m` tokens.
#[derive(Clone, Copy)]
struct Projection {
    kind: QuantType,
    m: usize,
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} tokens", self.kind, self.m)
    }
}

fn projections() -> Vec<Projection> {
    QuantType::all().flat_map(|kind| TOKENS.map(|m| Projection { kind, m })).collect()
}

/// Measures `x W^T`, with one thread per core.
#[divan::bench(args = projections(), max_time = 1)]
fn projection(bencher: Bencher<'_, '_>, Projection { kind, m }: Projection) {
    let [n, k] = SHAPE;
    let backend = expect_ok(CpuBackend::new(None));
    let bytes = n * k / kind.group() * kind.group_bytes();
    // These bytes give small scales in each type.
    let groups = || HostTensor::owned_groups(kind, SHAPE.to_vec(), vec![0x11; bytes]);
    let weights: Vec<CpuWeight> = (0..FOOTPRINT / bytes).map(|_| expect_ok(backend.weight(groups()))).collect();
    let table =
        expect_ok(backend.weight(HostTensor::from_f32(vec![1, k], (0..k).map(|i| i as f32 / k as f32).collect())));
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

/// Unwraps a result that the benchmark needs.
fn expect_ok<T>(result: engine::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
