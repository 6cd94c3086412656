//! `paged_attention_v1` and `paged_attention_v2` with its reduction, against attention in `f64`.
//!
//! `each_barrier_is_needed` removes barriers. These were removed from the source by hand, and each made the named tests
//! fail:
//!
//! | removed | failed |
//! | --- | --- |
//! | logits past the last token are minus infinity (`scores.rs`) | `logits_beyond_the_exponents_of_f32`, `windows_begin_and_end_anywhere_in_a_block` |
//! | logits before the window are minus infinity (`scores.rs`) | `windows_begin_and_end_anywhere_in_a_block` |
//! | values of weight zero are zeroed (`values.rs`) | `logits_beyond_the_exponents_of_f32`, `windows_begin_and_end_anywhere_in_a_block` |
//! | rows are below the head size, where values are read (`values.rs`) | `no_order_of_warps_and_blocks_changes_a_bit` |
//! | rows are below the head size, where sums are written (`values.rs`) | `no_order_of_warps_and_blocks_changes_a_bit` |
//! | partitions that are empty end at once (`v2.rs`) | five, among them `a_sequence_of_no_tokens_gets_zeros` |
//! | the end of a partition (`span.rs`) | five, among them `a_bound_beyond_the_longest_length_changes_nothing` |
//! | the first partition begins with the window (`span.rs`) | `windows_begin_and_end_anywhere_in_a_block` |
//! | the greatest logit is subtracted (`softmax.rs`) | `logits_beyond_the_exponents_of_f32` |
//! | partitions are counted by the length (`reduce.rs`) | four, among them `a_bound_beyond_the_longest_length_changes_nothing` |
//! | partial results are rescaled (`reduce.rs`) | `logits_beyond_the_exponents_of_f32`, `windows_begin_and_end_anywhere_in_a_block` |
//! | the sum is at least 1 (`attend.rs`) | `a_sequence_of_no_tokens_gets_zeros` |

use emulator::CostReport;
use kernels::attention::BLOCK_SIZES;
use kernels::attention::paper::floor::floor;
use kernels::attention::paper::launch::Version;
use kernels::layout::KvFormat;
use launch::Result;
use workbench::number::{ProblemRng, Type};
use workbench::paged::{PagedProblem, PagedShape};
use workbench::paper::{PlacedAttention, versions};

use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::without_each;

fn shape(ty: Type, heads: u32, kv_heads: u32, head_size: u32, block_size: u32) -> PagedShape {
    PagedShape { ty, heads, kv_heads, head_size, block_size, window: 0, format: KvFormat::Plain }
}

/// Runs a version. Returns the output, and a report of each launch.
fn try_run(gpu: &mut Gpu, problem: &PagedProblem, version: Version) -> Result<(Vec<u16>, Vec<CostReport>)> {
    let gpu = gpu.bench();
    let attention = PlacedAttention::upload(gpu, problem, version)?;
    let reports = gpu.reported(|gpu| attention.launch(gpu))?;
    Ok((gpu.download(attention.output)?, reports.into_iter().map(|launch| launch.report).collect()))
}

/// Runs a version and asserts that it does not fault.
#[track_caller]
fn run(gpu: &mut Gpu, problem: &PagedProblem, version: Version) -> (Vec<u16>, Vec<CostReport>) {
    try_run(gpu, problem, version).unwrap_or_else(|error| panic!("{:?}: {error}", problem.shape))
}

#[track_caller]
fn assert_close(problem: &PagedProblem, output: &[u16], version: Version) {
    let error = problem.error(output);
    let contexts = problem.contexts();
    assert!(error <= problem.shape.ty.tolerance(), "{error:.1e}: {:?}, {contexts:?}, {version:?}", problem.shape);
}

/// Checks both versions on a target in one order of warps and blocks.
#[track_caller]
fn check(target: &str, seed: u64, problem: &PagedProblem) {
    let longest = problem.contexts().into_iter().max().unwrap();
    for version in versions(problem, longest) {
        let mut gpu = Gpu::new(target);
        gpu.seed(seed);
        let (output, _) = run(&mut gpu, problem, version);
        assert_close(problem, &output, version);
    }
}

#[test]
fn ragged_lengths_with_shared_blocks_under_any_order() {
    let lengths = [8192, 1, 16, 17, 15, 511, 512, 513, 2049];
    for (ty, (target, _)) in Type::ALL.into_iter().zip(TARGETS) {
        let problem = PagedProblem::decode(shape(ty, 2, 2, 64, 16), &lengths, 0, 3);
        check(target, 0, &problem);
        check(target, 5, &problem);
        let shared = PagedProblem::decode(shape(ty, 2, 1, 64, 8), &[1031, 700, 1024, 800], 80, 4);
        assert!(shared.tables.iter().all(|table| table[..80] == shared.tables[0][..80]));
        check(target, 6, &shared);
    }
}

#[test]
fn batches_of_1_to_64() {
    let mut random = ProblemRng(9);
    for (sequences, (target, _)) in [1, 2, 9, 64].into_iter().zip(TARGETS.into_iter().cycle()) {
        let lengths: Vec<u32> = (0..sequences).map(|_| 1 + random.below(700) as u32).collect();
        check(target, sequences, &PagedProblem::decode(shape(Type::F16, 2, 1, 32, 16), &lengths, 0, sequences));
    }
}

#[test]
fn every_size_of_a_group() {
    for (i, group) in [1, 2, 3, 4, 5, 7, 8, 16].into_iter().enumerate() {
        let (ty, (target, _)) = (Type::ALL[i % 2], TARGETS[i / 2 % 2]);
        check(target, i as u64, &PagedProblem::decode(shape(ty, 2 * group, 2, 32, 32), &[45, 550], 0, 1));
    }
}

#[test]
fn windows_begin_and_end_anywhere_in_a_block() {
    for (i, window) in [1, 2, 7, 8, 9, 16, 100, 505, 512, 513, 1024, 5000].into_iter().enumerate() {
        let block_size = BLOCK_SIZES[i % 3];
        let shape = PagedShape { window, ..shape(Type::F16, 1, 1, 32, block_size) };
        let problem = PagedProblem::decode(shape, &[1, window, window + 1, 1040, 1500], 0, 2);
        check(TARGETS[i % 2].0, i as u64, &problem);
    }
}

#[test]
fn logits_beyond_the_exponents_of_f32() {
    for ty in Type::ALL {
        let mut problem = PagedProblem::decode(shape(ty, 2, 2, 64, 16), &[3, 700], 0, 8);
        problem.query.iter_mut().for_each(|q| *q = ty.bits(150.0 * ty.number(*q)));
        check("sm_90a", 1, &problem);
    }
}

#[test]
fn sinks_and_softcaps() {
    for (i, block_size) in BLOCK_SIZES.into_iter().enumerate() {
        for (ty, window) in [(Type::ALL[i % 2], 0), (Type::ALL[(i + 1) % 2], 70)] {
            let shape = PagedShape { window, ..shape(ty, 4, 2, [32, 80, 256][i], block_size) };
            let problem = || PagedProblem::decode(shape, &[1, 20, 700], 0, i as u64);
            check(TARGETS[i % 2].0, i as u64, &problem().with_sinks());
            check(TARGETS[i % 2].0, i as u64, &problem().with_softcap(2.5));
            check(TARGETS[i % 2].0, i as u64, &problem().with_softcap(0.5).with_sinks());
        }
    }
    let mut problem = PagedProblem::decode(shape(Type::F16, 4, 2, 64, 16), &[3, 600], 0, 2);
    problem.sinks = Some(vec![300.0, -300.0, 3e38, f32::NEG_INFINITY]);
    check("sm_90a", 1, &problem);
}

/// Batches are padded with sequences of length 0 to the sizes that CUDA graphs were captured for.
#[test]
fn a_sequence_of_no_tokens_gets_zeros() {
    let problem = PagedProblem::decode(shape(Type::F16, 2, 1, 64, 16), &[20, 600], 0, 8);
    for version in versions(&problem, 600) {
        let mut padded = PagedProblem::decode(problem.shape, &[20, 600], 0, 8);
        padded.spans[0].context = 0;
        padded.tables[0].clear();
        let (output, _) = run(&mut Gpu::new("sm_90a"), &padded, version);
        let (full, _) = run(&mut Gpu::new("sm_90a"), &problem, version);
        assert!(output[..128] == [0; 128] && output[128..] == full[128..], "{version:?}");
    }
}

#[test]
fn no_order_of_warps_and_blocks_changes_a_bit() {
    // The cache's last block is in use, so reading past its rows is a fault.
    let problems = (0..).map(|seed| PagedProblem::decode(shape(Type::Bf16, 2, 1, 80, 8), &[77, 900], 0, seed));
    let problem = problems.into_iter().find(|p| p.tables.concat().contains(&(p.blocks - 1))).unwrap();
    for version in versions(&problem, 900) {
        let (expected, _) = run(&mut Gpu::new("sm_80"), &problem, version);
        for seed in 1..6 {
            let mut gpu = Gpu::new("sm_80");
            gpu.seed(seed);
            assert!(run(&mut gpu, &problem, version).0 == expected, "seed {seed}, {version:?}");
        }
    }
}

/// A graph's launches have the size for the longest sequences that may come.
#[test]
fn a_bound_beyond_the_longest_length_changes_nothing() {
    let problem = PagedProblem::decode(shape(Type::F16, 2, 1, 64, 16), &[1, 600], 0, 5);
    for (exact, bound) in versions(&problem, 600).into_iter().zip(versions(&problem, 4000)) {
        let (expected, _) = run(&mut Gpu::new("sm_90a"), &problem, exact);
        assert!(run(&mut Gpu::new("sm_90a"), &problem, bound).0 == expected, "{bound:?}");
    }
}

#[test]
fn no_more_is_read_than_the_floor_and_without_bank_conflicts() {
    for (block_size, group) in [(8, 1), (16, 1), (32, 1), (16, 4)] {
        let problem = PagedProblem::decode(shape(Type::F16, 4, 4 / group, 128, block_size), &[1024, 2048], 0, 1);
        let bytes = floor(workbench::paper::shape(&problem), &problem.contexts(), 0).bytes;
        for version in versions(&problem, 2048) {
            let (_, reports) = run(&mut Gpu::new("sm_90a"), &problem, version);
            let sum = |count: fn(&CostReport) -> u64| reports.iter().map(count).sum::<u64>();
            for report in &reports {
                assert!(report.total.sector_ratio() <= 1.02, "{version:?}: {}", report.total.sector_ratio());
                assert_eq!(report.total.bank_conflicts(), 0, "{version:?}");
            }
            // The block table is read by sectors, an entry at a time: 64 bytes for each block besides its keys and
            // values.
            let table = 1.0 + 64.0 / f64::from(512 * block_size);
            let requested = 32.0 * sum(|r| r.total.sectors) as f64 / f64::from(group) / bytes as f64;
            assert!(requested <= table + 0.01, "{version:?}, blocks of {block_size}: {requested}");
            let instructions = sum(|r| r.total.instructions) as f64 / f64::from(group) / (bytes / 1024) as f64;
            assert!(instructions <= 90.0, "{version:?}, blocks of {block_size}: {instructions} a KiB");
            // DRAM moves keys and values once for all heads of a group.
            let distinct = 32.0 * sum(|r| r.distinct_sectors) as f64 / bytes as f64;
            assert!(distinct <= 1.02, "{version:?}: {distinct}");
        }
    }
}

#[test]
fn each_barrier_is_needed() {
    let problem = PagedProblem::decode(shape(Type::F16, 1, 1, 32, 8), &[600], 0, 1);
    let [v1, v2] = versions(&problem, 600);
    let partials = {
        let mut gpu = Gpu::new("sm_90a");
        attend(gpu.bench(), &problem, v2).unwrap()
    };
    let wrong = |output: &[u16]| problem.error(output) > problem.shape.ty.tolerance();
    let mut count = 0;
    for entry in ["paged_attention_v1_f16_32_8", "paged_attention_v2_f16_32_8", "paged_attention_v2_reduce_f16"] {
        for mutant in without_each(TARGETS[1].1, entry, &["bar.sync"]) {
            let mut gpu = Gpu::with_ptx(&mutant.ptx);
            gpu.seed(1);
            let noticed = match entry {
                "paged_attention_v1_f16_32_8" => {
                    try_run(&mut gpu, &problem, v1).map_or(true, |(output, _)| wrong(&output))
                }
                "paged_attention_v2_f16_32_8" => {
                    attend(gpu.bench(), &problem, v2).map_or(true, |found| found != partials)
                }
                _ => reduce(gpu.bench(), &problem, v2, &partials).map_or(true, |output| wrong(&output)),
            };
            assert!(noticed, "{entry} without {}", mutant.removed);
            count += 1;
        }
    }
    assert_eq!(count, 4 + 4 + 2);
}

/// Returns the partial results that v2 leaves for the reduction.
fn attend(gpu: &mut workbench::Gpu, problem: &PagedProblem, version: Version) -> Result<[Vec<f32>; 3]> {
    let attention = PlacedAttention::upload(gpu, problem, version)?;
    attention.attend(gpu)?;
    let [values, maxima, sums] = attention.partials;
    Ok([gpu.download(values)?, gpu.download(maxima)?, gpu.download(sums)?])
}

/// Returns the reduction's output for these partial results.
fn reduce(
    gpu: &mut workbench::Gpu,
    problem: &PagedProblem,
    version: Version,
    partials: &[Vec<f32>; 3],
) -> Result<Vec<u16>> {
    let attention = PlacedAttention::upload(gpu, problem, version)?;
    for (buffer, partial) in attention.partials.into_iter().zip(partials) {
        gpu.write(buffer, partial)?;
    }
    attention.reduce(gpu)?;
    gpu.download(attention.output)
}
