//! What products of many tokens cost: warp instructions for each 16 x 8 x 16 of the work, by the slope over `k`, and what a
//! product costs besides. `BENCHMARKS.md` has the figures; with `-- --nocapture` this prints them.

use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GemmKernel, GemmPlan, Product};
use workbench::number::Type;
use workbench::product::{Data, ProductProblem};

use super::check;
use crate::frame::gpu::Gpu;

/// The instructions of a product of 512 tokens with 512 rows, and how many of them are on mbarriers, polls among them.
fn instructions(kernel: GemmKernel, k: u32) -> [f64; 2] {
    let product = Product { m: 512, n: 512, k, epilogue: Epilogue::Half(None) };
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
        let [short, long] = [512, 1024].map(|k| instructions(kernel, k));
        let steps = f64::from(512 * 512 / (16 * 8) * 512 / 16);
        let [marginal, barriers] = [0, 1].map(|i| (long[i] - short[i]) / steps);
        let besides = 2.0 * short[0] - long[0];
        println!("{kernel:?}: {marginal:.3} a step, {barriers:.3} of them on mbarriers, and {besides:.0} besides");
        assert!(marginal <= most, "{kernel:?}: {marginal} a step");
        assert!(besides <= most_besides, "{kernel:?}: {besides} besides the steps");
    }
}
