//! What products of many tokens cost: warp instructions for each 16 x 8 x 16 of the work, by the slope over `k`, and what a
//! product costs besides. `BENCHMARKS.md` has the figures; with `-- --nocapture` this prints them.

use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GemmKernel, GemmPlan, Product};
use workbench::number::Type;
use workbench::product::{Data, ProductProblem};

use super::check;
use crate::frame::gpu::Gpu;

/// The instructions of a product of `m` tokens with 512 rows, and how many of them are on mbarriers, polls among them.
fn instructions(kernel: GemmKernel, m: u32, k: u32) -> [f64; 2] {
    let product = Product { m, n: 512, k, epilogue: Epilogue::Half(None) };
    let plan = GemmPlan { product, kernel, splits: 1, blocks: 132 };
    let data = Data { bias: false, every: 97, ..Data::new(Type::F16, 1) };
    let problem = ProductProblem::new(plan, data);
    let gpu = &mut Gpu::new("sm_90a");
    check(&problem, gpu);
    let placed = problem.place(gpu.bench()).unwrap();
    let report = gpu.bench().reported(|gpu| placed.launch(gpu)).unwrap().remove(0).report;
    let barriers = report.lines.iter().filter(|line| line.file.ends_with("ptx/mbarrier.rs"));
    let barriers: u64 = barriers.map(|line| line.counts.instructions).sum();
    [report.total.instructions as f64, barriers as f64]
}

#[test]
fn products_of_many_tokens_cost_few_instructions() {
    for (kernel, most, most_besides) in [
        (GemmKernel::Prefill(128), 2.4, 100e3),
        (GemmKernel::Prefill(256), 2.4, 100e3),
        (GemmKernel::Hopper(128), 0.6, 42e3),
        (GemmKernel::Hopper(256), 0.4, 26e3),
    ] {
        let [short, long] = [512, 1024].map(|k| instructions(kernel, 512, k));
        let steps = f64::from(512 * 512 / (16 * 8) * 512 / 16);
        let [marginal, barriers] = [0, 1].map(|i| (long[i] - short[i]) / steps);
        let besides = 2.0 * short[0] - long[0];
        println!("{kernel:?}: {marginal:.3} a step, {barriers:.3} of them on mbarriers, and {besides:.0} besides");
        assert!(marginal <= most, "{kernel:?}: {marginal} a step");
        assert!(besides <= most_besides, "{kernel:?}: {besides} besides the steps");
    }
}

/// For each KiB of the weight, by the slope over `k`.
#[test]
fn products_of_some_tokens_cost_few_instructions() {
    for (tokens, most) in [(8, 17.0), (16, 17.0), (32, 17.0), (64, 17.0)] {
        let [older, own] = [GemmKernel::Decode(tokens), GemmKernel::HopperDecode(tokens)].map(|kernel| {
            let [short, long] = [1024, 2048].map(|k| instructions(kernel, tokens, k));
            let [marginal, barriers] = [0, 1].map(|i| (long[i] - short[i]) / 1024.0);
            let besides = 2.0 * short[0] - long[0];
            println!("{kernel:?}: {marginal:.2} a KiB, {barriers:.2} of them on mbarriers, and {besides:.0} besides");
            marginal
        });
        assert!(own <= most && own < older, "{tokens} tokens: {own} a KiB, and {older}");
    }
}
