//! Kernels that others timed, compared with their bounds. The book has the table.

use lab::bound::Demand;
use simulator::gpu;

/// The book's chapter on the emulator.
const CHAPTER: &str = include_str!("../../../../docs/src/emulator.md");
/// Largest relative error of a bound that could be reported as a time.
const ALLOWED: f64 = 0.15;

/// A kernel that others timed.
struct Published {
    what: &'static str,
    gpu: &'static str,
    demand: Demand,
    /// Measured microseconds.
    measured: f64,
}

/// Describes a product of two `n` by `n` matrices of halves that runs at `tflops` TFLOP/s. `instructions` is the number
/// per product of 16 x 8 x 16, or 0 if unknown.
fn product(what: &'static str, gpu: &'static str, n: f64, tflops: f64, instructions: f64) -> Published {
    let flops = 2.0 * n * n * n;
    let demand = Demand { instructions: flops / 4096.0 * instructions, bytes: 6.0 * n * n, flops, ..Demand::default() };
    Published { what, gpu, demand, measured: flops / tflops / 1e6 }
}

/// Describes attention of 16 heads of 128 over a prompt of 16,384 tokens, where each token attends to all of them.
fn prompt(what: &'static str, tflops: f64, instructions: f64) -> Published {
    let (heads, size, tokens) = (16.0, 128.0, 16_384.0);
    let flops = 4.0 * heads * tokens * tokens * size;
    let bytes = 8.0 * heads * tokens * size;
    let demand = Demand { instructions: flops / 4096.0 * instructions, bytes, flops, ..Demand::default() };
    Published { what, gpu: "h100", demand, measured: flops / tflops / 1e6 }
}

/// Describes attention of the newest token of each sequence, with KV heads of 128 halves.
fn decode(what: &'static str, [sequences, tokens, kv_heads]: [f64; 3], measured: f64) -> Published {
    let demand = Demand { bytes: sequences * tokens * kv_heads * 512.0, ..Demand::default() };
    Published { what, gpu: "h100", demand, measured }
}

/// The book names the source of each measurement.
fn published() -> Vec<Published> {
    vec![
        product("cuBLAS, 4,096 cubed", "h100", 4096.0, 716.0, 0.0),
        product("cuBLAS, 8,192 cubed", "h100", 8192.0, 795.0, 0.0),
        product("a product by hand, 8,192 cubed", "h100", 8192.0, 808.0, 0.0),
        product("Triton's tutorial, 3,072 cubed", "a100", 3072.0, 230.0, 2.28),
        prompt("FlashAttention-3, prompt", 648.0, 0.0),
        prompt("Triton, prompt", 395.0, 3.88),
        prompt("FlashAttention-2, prompt", 370.0, 4.80),
        decode("FlashAttention-3, paged, 16 x 4,000", [16.0, 4000.0, 32.0], 567.2),
        decode("FlashAttention-3, paged, 16 x 128", [16.0, 128.0, 32.0], 27.6),
        decode("FlashAttention-2, paged, 64 x 256", [64.0, 256.0, 8.0], 43.563),
    ]
}

/// Bounds are below the measured times, and too far below them to report as times.
#[test]
fn bounds_are_not_times() {
    let mut errors = Vec::new();
    for Published { what, gpu, demand, measured } in published() {
        let (by, seconds) = demand.on(gpu::named(gpu).unwrap()).longest();
        let error = 1e6 * seconds / measured - 1.0;
        let gpu = gpu.to_uppercase();
        let row = format!("| {what} | {gpu} | {measured:.1} | {:.1} | {by} | {:+.0} % |", 1e6 * seconds, 100.0 * error);
        assert!(CHAPTER.lines().any(|line| line.starts_with(&row)), "the book lacks\n{row}");
        // The rate of the tensor cores is only the rate that cuBLAS was measured at, so a bound may be slightly above a
        // measured time.
        assert!(error < 0.03, "{row}");
        errors.push(error.abs());
    }
    let off = errors.iter().filter(|error| **error > ALLOWED).count();
    assert!(CHAPTER.contains(&format!("{off} of {} are off by more than 15 %", errors.len())), "{off}");
    assert!(off > 0, "bounds are close enough to the measured times for `lab kernels profile` to report them as times");
}
