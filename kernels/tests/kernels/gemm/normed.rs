//! Products that are added to rows, with the norm of these rows in the same launch.

use cuda_std::launch::{DevicePtr, KernelCall, LaunchShape};
use emulator::ORDERING;
use kernels::gemm::plan::GemmKernel;
use kernels::norm::{NormShape, SumNorm, layer_norm, rms_norm};
use kernels::with_element;
use workbench::Case;
use workbench::cases::norm::EPS;
use workbench::cases::normed::{NormedProduct, PlacedNormedProduct};
use workbench::number::Type;
use workbench::product;

use super::target_of;
use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::{Mutant, only, without_each};

/// A problem for a kernel. A kernel without splits gets one part.
fn problem(kernel: GemmKernel, sizes: (u32, u32, u32), splits: u32, ty: Type, norm: SumNorm) -> NormedProduct {
    let splits = if matches!(kernel, GemmKernel::Gemv(_)) { 1 } else { splits };
    NormedProduct { kernel, sizes, splits, ty, norm, affine: (true, norm == SumNorm::Layer), neutral: false, seed: 7 }
}

/// Returns the bits that the norm's own kernel stores for the same rows.
fn normalised_separately(problem: NormedProduct, placed: &PlacedNormedProduct, gpu: &mut Gpu) -> Vec<u16> {
    let (rows, width, _) = problem.sizes;
    let NormShape { vectors, threads } = NormShape::of(width).unwrap();
    let out = gpu.alloc::<u16>("out", (rows * width) as usize);
    let (x, y, [weight, bias]) = (placed.x.mut_ptr(), DevicePtr::NULL, problem.used(placed.affine));
    let (out_ptr, eps) = (out.mut_ptr(), EPS);
    let call: KernelCall = match problem.norm {
        SumNorm::Layer => {
            let args = layer_norm { x, y, weight, bias, out: out_ptr, eps, vectors };
            with_element!(problem.ty.element(), T => args.instance::<T>())
        }
        _ => {
            let args = rms_norm { x, y, weight, out: out_ptr, eps, vectors };
            with_element!(problem.ty.element(), T => args.instance::<T>())
        }
    };
    // SAFETY: the grid has a block for each row, and the shape was made for this width.
    unsafe { gpu.launch(LaunchShape::linear(rows, threads), call) };
    gpu.download(out)
}

/// Launches a problem. Asserts that the result is right and has the bits of the norm's own kernel, and returns these
/// bits.
fn check(problem: NormedProduct, gpu: &mut Gpu) -> Vec<u16> {
    let arrivals = gpu.upload("arrivals", &[0u32]);
    let placed = problem.place(gpu.bench(), arrivals).unwrap();
    placed.launch(gpu.bench()).unwrap_or_else(|error| panic!("{problem:?}: {error}"));
    let error = problem.error(&placed, gpu.bench()).unwrap_or_else(|error| panic!("{problem:?}: {error}"));
    assert!(error <= 1.0, "{problem:?}: the error is {error} times the allowed one");
    let normed = gpu.download(placed.out);
    assert!(normed == normalised_separately(problem, &placed, gpu), "{problem:?}");
    normed
}

/// Fewer rows than tiles, as many, and more. One vector for each thread, and several. With splits and without.
#[test]
fn rows_are_normalised_to_the_bit_as_in_a_separate_launch() {
    let kernels = product::kernels("sm_90a").filter(|(kernel, _)| kernel.normalises());
    for (i, (kernel, tokens)) in kernels.enumerate() {
        let mut gpu = Gpu::new(target_of(kernel, i));
        for (j, (m, n, splits)) in
            [(tokens, 72, 1), (tokens, 520, 2), (tokens.div_ceil(2), 8, 1)].into_iter().enumerate()
        {
            let (ty, norm) = (Type::ALL[(i + j) % 2], [SumNorm::Layer, SumNorm::Rms][(i / 2 + j) % 2]);
            gpu.seed((i * j) as u64);
            check(problem(kernel, (m, n, 512), splits, ty, norm), &mut gpu);
        }
    }
    // More vectors than the norm's own kernel has threads, and the widest row.
    for (kernel, width) in
        [(GemmKernel::Gemv(2), 8192), (GemmKernel::Decode(8), 4104), (GemmKernel::HopperDecode(8), 5120)]
    {
        check(problem(kernel, (2, width, 64), 1, Type::F16, SumNorm::Layer), &mut Gpu::new("sm_90a"));
    }
}

#[test]
fn factors_and_biases_may_be_missing() {
    for affine in [(false, false), (true, false), (false, true)] {
        let problem = problem(GemmKernel::Decode(8), (5, 136, 64), 1, Type::Bf16, SumNorm::Layer);
        check(NormedProduct { affine, ..problem }, &mut Gpu::new("sm_80"));
    }
}

/// The result does not depend on which blocks run first.
#[test]
fn the_order_of_blocks_does_not_change_results() {
    for (kernel, m) in [(GemmKernel::Gemv(4), 3), (GemmKernel::Decode(32), 20), (GemmKernel::HopperDecode(16), 9)] {
        let problem = problem(kernel, (m, 640, 512), 2, Type::F16, SumNorm::Layer);
        let runs = (0..5).map(|seed| {
            let mut gpu = Gpu::new("sm_90a");
            gpu.seed(seed);
            check(problem, &mut gpu)
        });
        let runs: Vec<_> = runs.collect();
        assert!(runs.iter().all(|run| *run == runs[0]), "{problem:?}");
    }
}

/// Consecutive launches count in the same word, whatever their tiles.
#[test]
fn launches_share_the_count_of_arrivals() {
    let mut gpu = Gpu::new("sm_90a");
    let arrivals = gpu.upload("arrivals", &[0u32]);
    for (i, width) in [64, 640, 128, 8, 1032].into_iter().enumerate() {
        let kernel = [GemmKernel::Decode(8), GemmKernel::Gemv(4), GemmKernel::HopperDecode(8)][i % 3];
        let problem = problem(kernel, (4, width, 512), 2, Type::F16, SumNorm::Rms);
        let placed = problem.place(gpu.bench(), arrivals).unwrap();
        placed.launch(gpu.bench()).unwrap();
        assert!(problem.error(&placed, gpu.bench()).unwrap() <= 1.0, "{problem:?}");
        assert_eq!(gpu.download(arrivals), [((i as u32 + 1) % 2) << 31]);
    }
}

/// Problems that need every instruction that a norm adds to a product's kernel. In one a block has several rows and no
/// splits, in the other the launch has several blocks. Empty for a kernel without norms.
pub fn normed_cases(kernel: GemmKernel, m: u32) -> Vec<Case> {
    let problems = [((m, 8, 64), 1, SumNorm::Rms), ((m, 264, 512), 2, SumNorm::Layer)];
    let case = |(sizes, splits, norm)| problem(kernel, sizes, splits, Type::F16, norm).case();
    if kernel.normalises() { problems.map(case).into() } else { Vec::new() }
}

/// Every instruction that orders the blocks, the copies of a row or the threads, each missing once.
#[test]
fn mutants_are_noticed() {
    for (kernel, m) in [(GemmKernel::Gemv(2), 2), (GemmKernel::Decode(8), 6)] {
        let cases = normed_cases(kernel, m);
        let entry = cases[0].kernel;
        let alone = only(TARGETS[0].1, entry);
        // A count and a flag that order nothing.
        let weaker = [("atom.acq_rel.", "atom.relaxed."), ("ld.acquire.", "ld.relaxed.")];
        let mutants = weaker.map(|(from, to)| {
            assert!(alone.contains(from), "{entry} has no {from}");
            Mutant { removed: from.to_owned(), ptx: alone.replace(from, to) }
        });
        let mutants = without_each(TARGETS[0].1, entry, &ORDERING).into_iter().chain(mutants);
        let unnoticed = mutants.filter(|mutant| !cases.iter().any(|case| Gpu::notices(&mutant.ptx, case)));
        let unnoticed: Vec<_> = unnoticed.map(|mutant| mutant.removed).collect();
        assert_eq!(unnoticed, Vec::<String>::new(), "{entry}");
    }
}
