//! Cost of products of many tokens: warp instructions for each 16 x 8 x 16 of the work, from the slope over `k`, and a
//! fixed cost. `docs/benchmarks` has the figures. With `-- --nocapture` the tests print them.

use emulator::CostReport;
use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GemmKernel, GemmPlan, Product};
use workbench::number::Type;
use workbench::product::{Data, ProductProblem};

use super::check;
use crate::frame::gpu::Gpu;

/// Returns the cost of a product with 512 weight rows.
fn report(kernel: GemmKernel, epilogue: Epilogue, m: u32, k: u32) -> CostReport {
    let plan = GemmPlan { product: Product { m, n: 512, k, epilogue }, kernel, splits: 1, blocks: 132 };
    let data = Data { bias: false, every: 97, ..Data::new(Type::F16, 1) };
    check(&ProductProblem::new(plan, data), &mut Gpu::new("sm_90a"))
}

/// Returns the instructions of a product of `m` tokens with 512 weight rows, and how many of them are on mbarriers.
/// Polls count.
fn instructions(kernel: GemmKernel, epilogue: Epilogue, m: u32, k: u32) -> [f64; 2] {
    let report = report(kernel, epilogue, m, k);
    let barriers = report.lines.iter().filter(|line| line.file.ends_with("ptx/mbarrier.rs"));
    let barriers: u64 = barriers.map(|line| line.counts.instructions).sum();
    [report.total.instructions as f64, barriers as f64]
}

const PLAIN: Epilogue = Epilogue::Half(None);

#[test]
fn products_of_many_tokens_cost_few_instructions() {
    let gated = Epilogue::Gated(Activation::Silu);
    for (kernel, most, most_fixed) in [
        (GemmKernel::Prefill(128), 2.5, [49e3, 63e3, 66e3]),
        (GemmKernel::Prefill(256), 2.5, [49e3, 63e3, 66e3]),
        (GemmKernel::Hopper(128), 0.6, [38e3, 46e3, 60e3]),
        (GemmKernel::Hopper(256), 0.4, [24e3, 31e3, 45e3]),
        (GemmKernel::HopperPairs(128), 0.6, [38e3, 46e3, 60e3]),
        (GemmKernel::HopperPairs(256), 0.4, [24e3, 31e3, 45e3]),
    ] {
        // Both widths of tiles have the other epilogues in some kernel.
        let epilogues = match kernel {
            GemmKernel::Prefill(256) | GemmKernel::Hopper(256) | GemmKernel::HopperPairs(128) => 1,
            _ => 3,
        };
        for (epilogue, most_fixed) in [PLAIN, Epilogue::Add, gated].into_iter().zip(most_fixed).take(epilogues) {
            let [short, long] = [512, 1024].map(|k| instructions(kernel, epilogue, 512, k));
            let steps = f64::from(512 * 512 / (16 * 8) * 512 / 16);
            let [marginal, barriers] = [0, 1].map(|i| (long[i] - short[i]) / steps);
            let fixed = 2.0 * short[0] - long[0];
            println!(
                "{kernel:?}, {epilogue:?}: {marginal:.3} a step, {barriers:.3} of them on mbarriers, and {fixed:.0} fixed"
            );
            assert!(marginal <= most, "{kernel:?}: {marginal} a step");
            assert!(fixed <= most_fixed, "{kernel:?}, {epilogue:?}: {fixed} apart from the steps");
        }
    }
}

/// L2 moves the activations once for each column of tiles. It moves the weight once for each row of tiles, or once for
/// two rows in pairs.
#[test]
fn pairs_read_the_weight_once_for_two_tiles() {
    let (m, n, k) = (512, 512, 512);
    for columns in [128, 256] {
        let [alone, pairs] = [GemmKernel::Hopper(columns), GemmKernel::HopperPairs(columns)].map(|kernel| {
            let report = report(kernel, PLAIN, m, k);
            assert!(report.total.sector_ratio() <= 1.02 && report.total.bank_conflicts() == 0, "{report:?}");
            report.total.global_bytes
        });
        let bytes = |rows| 2 * u64::from(m * k * (n / columns) + n * k * (m / rows) + m * n);
        println!("tiles of {columns} columns: {alone} bytes, in pairs {pairs}");
        assert_eq!([alone, pairs], [bytes(128), bytes(256)]);
    }
}

/// Instructions for each KiB of the weight, from the slope over `k`.
#[test]
fn products_of_some_tokens_cost_few_instructions() {
    for (tokens, most) in [(8, 17.0), (16, 17.0), (32, 17.0), (64, 17.0)] {
        let [older, own] = [GemmKernel::Decode(tokens), GemmKernel::HopperDecode(tokens)].map(|kernel| {
            let [short, long] = [1024, 2048].map(|k| instructions(kernel, PLAIN, tokens, k));
            let [marginal, barriers] = [0, 1].map(|i| (long[i] - short[i]) / 1024.0);
            let fixed = 2.0 * short[0] - long[0];
            println!("{kernel:?}: {marginal:.2} a KiB, {barriers:.2} of them on mbarriers, and {fixed:.0} fixed");
            marginal
        });
        assert!(own <= most && own < older, "{tokens} tokens: {own} a KiB, with the older kernel {older}");
    }
}
