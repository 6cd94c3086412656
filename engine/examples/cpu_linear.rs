//! Throughput of the CPU backend's projections beside what memory can deliver.
//!
//! `cargo run --release -p engine --example cpu_linear [threads]`

use std::time::Instant;

use engine::Result;
use engine::backend::cpu::{CpuBackend, Tensor, Weight};
use engine::backend::{Backend, Batch};
use engine::tensor::{DType, HostTensor};

/// `(N, K)` of OPT-125m's projections: attention, both of the feed-forward network, and the vocabulary.
const SHAPES: [(usize, usize); 4] = [(768, 768), (3072, 768), (768, 3072), (50272, 768)];
const TOKENS: [usize; 6] = [1, 8, 32, 64, 512, 2048];
/// Weights as large as a model's are cycled through, so that caches hold none of them.
const FOOTPRINT: usize = 400 << 20;

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let backend = CpuBackend::new(threads)?;
    println!("reading memory: {:.1} GB/s", read_bandwidth(threads));
    println!("{:>5} {:>6} {:>5} {:>5} {:>10} {:>9} {:>8}", "type", "N", "K", "M", "us", "GFLOP/s", "GB/s");
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for (n, k) in SHAPES {
            let weights = weights(&backend, n, k, dtype)?;
            for m in TOKENS {
                if m * n > 50 << 20 {
                    continue;
                }
                let x = activations(&backend, m, k)?;
                let seconds = time(&backend, &x, &weights);
                let flops = 2.0 * (m * n * k) as f64;
                let bytes = (n * k * dtype.size()) as f64;
                println!(
                    "{dtype:>5} {n:>6} {k:>5} {m:>5} {:>10.1} {:>9.1} {:>8.1}",
                    seconds * 1e6,
                    flops / seconds / 1e9,
                    bytes / seconds / 1e9
                );
            }
        }
    }
    Ok(())
}

/// Reproducible numbers around zero.
fn noise(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5).collect()
}

fn weights(backend: &CpuBackend, n: usize, k: usize, dtype: DType) -> Result<Vec<Weight>> {
    let count = (FOOTPRINT / (n * k * dtype.size())).max(1);
    (0..count).map(|_| backend.weight(HostTensor::from_f32(vec![n, k], noise(n * k)).to_dtype(dtype))).collect()
}

fn activations(backend: &CpuBackend, m: usize, k: usize) -> Result<Tensor> {
    let table = backend.weight(HostTensor::from_f32(vec![1, k], noise(k)))?;
    Ok(backend.embed_tokens(&table, None, &Batch { tokens: vec![0; m], ..Batch::default() }))
}

/// The best mean of three rounds, in seconds a call.
fn time(backend: &CpuBackend, x: &Tensor, weights: &[Weight]) -> f64 {
    let run = |w| drop(backend.linear(x, w, None, None));
    run(&weights[0]);
    let start = Instant::now();
    run(&weights[weights.len() / 2]);
    let calls = (0.3 / start.elapsed().as_secs_f64()).clamp(2.0, 2000.0) as usize;
    let rounds = (0..3).map(|_| {
        let start = Instant::now();
        (0..calls).for_each(|i| run(&weights[i % weights.len()]));
        start.elapsed().as_secs_f64() / calls as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

/// Bytes summed by all threads together from memory that no cache holds, in GB/s.
fn read_bandwidth(threads: Option<usize>) -> f64 {
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let data = vec![1u64; FOOTPRINT / 8];
    let once = || {
        let start = Instant::now();
        let total: u64 = std::thread::scope(|scope| {
            let parts: Vec<_> = data
                .chunks(data.len().div_ceil(threads))
                .map(|part| scope.spawn(|| part.iter().fold(0u64, |s, x| s.wrapping_add(*x))))
                .collect();
            parts.into_iter().filter_map(|part| part.join().ok()).sum()
        });
        std::hint::black_box(total);
        (data.len() * 8) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..5).map(|_| once()).fold(0.0, f64::max)
}
