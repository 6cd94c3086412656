//! Decode attention against plain attention in `f64`.
//!
//! A test below removes barriers, waits, commits and fences one at a time. These masks were removed from the source by
//! hand:
//!
//! | removed | noticed by |
//! | --- | --- |
//! | the mask of scores past the end (`hide`) | every test of results: wrong results |
//! | the mask of scores before the window (`hide`) | `window_edges`: wrong results |
//! | zeros instead of data past the end (`Reader::fetch`) | every test of results: NaN |
//! | zeros instead of data before the window (`Reader::fetch`) | `window_edges`: out of bounds |
//! | the mask of a draft's later tokens (`RowSight::own`) | every test of results of `drafts`: wrong results |

mod drafts;
mod features;
mod step;

use cuda_std::launch::LaunchShape;
use kernels::attention::decode::{self, MIN_RANGE, PLAN_THREADS, Ranges, TILE, plan_paged_attention};
use kernels::layout::KvFormat;
use workbench::number::{ProblemRng, Type};
use workbench::paged::{PagedProblem, PagedShape};

use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate;
use step::Step;

pub use step::{check, check_problem, targets};

/// The 8-bit formats.
pub const CODES: [KvFormat; 2] = [KvFormat::Int8, KvFormat::Fp8];

pub fn shape(ty: Type, heads: u32, kv_heads: u32, head_size: u32, block_size: u32, window: u32) -> PagedShape {
    PagedShape { ty, heads, kv_heads, head_size, block_size, window, format: KvFormat::Plain }
}

#[test]
fn every_head_size_block_size_and_group_size() {
    use Type::{Bf16, F16};
    let (mut gpus, contexts) = (targets(), [1, 700, 16, 33, 300]);
    for (shape, slots) in [
        (shape(F16, 2, 2, 32, 8, 0), 5),
        (shape(Bf16, 4, 2, 32, 16, 0), 7),
        (shape(F16, 3, 1, 64, 32, 0), 3),
        (shape(Bf16, 8, 2, 64, 8, 0), 6),
        (shape(F16, 5, 1, 80, 16, 0), 4),
        (shape(Bf16, 7, 1, 80, 32, 0), 5),
        (shape(Bf16, 8, 1, 96, 16, 0), 3),
        (shape(F16, 16, 1, 96, 8, 0), 4),
        (shape(F16, 4, 4, 128, 16, 0), 9),
        (shape(Bf16, 16, 1, 128, 32, 0), 3),
        (shape(F16, 19, 1, 128, 16, 0), 5),
        (shape(Bf16, 2, 1, 256, 8, 0), 3),
        (shape(F16, 12, 1, 256, 16, 0), 4),
        (shape(F16, 9, 1, 32, 32, 0), 2),
        (shape(Bf16, 10, 1, 64, 16, 0), 2),
        (shape(F16, 11, 1, 80, 8, 0), 2),
        (shape(F16, 8, 1, 512, 16, 0), 3),
        (shape(Bf16, 3, 1, 512, 8, 0), 4),
        (shape(Bf16, 18, 2, 512, 32, 0), 2),
    ] {
        check(&mut gpus, shape, &contexts, 1, slots);
    }
}

#[test]
fn window_edges() {
    let mut gpus = targets();
    for (i, (window, block_size)) in [(1, 16), (4, 8), (16, 8), (17, 16), (100, 32), (257, 16)].into_iter().enumerate()
    {
        for format in [KvFormat::Plain, CODES[i % 2]] {
            let shape = PagedShape { format, ..shape(Type::F16, 4, 2, 64, block_size, window) };
            check(&mut gpus, shape, &[1, 15, 16, 17, 99, 100, 101, 256, 257, 258, 640], 0, 6);
        }
    }
}

#[test]
fn batches_of_one_to_64_and_lengths_to_8192() {
    let (mut gpus, mut random) = (targets(), ProblemRng(3));
    let short: Vec<u32> = (0..64).map(|_| 1 + random.below(90) as u32).collect();
    check(&mut gpus, shape(Type::F16, 2, 1, 32, 16, 0), &short, 0, 24);
    check(&mut gpus, shape(Type::Bf16, 1, 1, 64, 16, 0), &[8192], 0, 20);
    check(&mut gpus, shape(Type::F16, 4, 1, 32, 8, 0), &[8191, 1, 4097, 256, 255], 9, 30);
    // Fewer tiles than a range has, and slots without a range.
    check(&mut gpus, shape(Type::F16, 1, 1, 128, 16, 0), &[3], 0, 5);
}

#[test]
fn the_same_launches_serve_other_lengths() {
    let longest = PagedProblem::decode(shape(Type::F16, 4, 2, 64, 16, 0), &[900, 40, 333, 2000], 0, 7);
    let mut gpu = Gpu::new("sm_90a");
    let step = Step::new(&mut gpu, &longest, 7);
    let mut problem = PagedProblem::decode(longest.shape, &longest.contexts(), 0, 7);
    for contexts in [[900, 40, 333, 2000], [899, 1, 17, 1999], [5, 6, 7, 8], [16, 40, 333, 1024]] {
        let mut lengths = vec![0; step.sequences as usize];
        for ((&at, span), context) in step.real.iter().zip(&mut problem.spans).zip(contexts) {
            span.context = context;
            lengths[at] = context;
        }
        gpu.write(step.lengths, &lengths);
        step.plan(&mut gpu);
        step.attend(&mut gpu);
        assert!(step.is_right(&gpu, &problem), "{contexts:?}");
    }
}

/// Returns `count` lengths from 1 to 8,192, both included.
fn ragged(count: usize, seed: u64) -> Vec<u32> {
    let mut random = ProblemRng(seed);
    let mut lengths: Vec<u32> = (2..count).map(|_| 1 + random.below(8192) as u32).collect();
    lengths.extend([1, 8192]);
    random.shuffle(&mut lengths);
    lengths
}

#[test]
fn the_plan_covers_every_tile_once_and_evenly() {
    for (count, window, slots) in [(64, 0, 396), (300, 0, 264), (33, 1000, 132), (1, 0, 396), (2, 3, 5)] {
        let mut gpu = Gpu::new("sm_90a");
        let (lengths, streams) = (if count == 1 { vec![0] } else { ragged(count, 5) }, 8);
        let plan = gpu.alloc::<[u32; 4]>("plan", decode::plan_vectors(slots, count as u32) as usize);
        let list = gpu.upload("lengths", &lengths).ptr();
        let (ranges, sequences) = (plan.mut_ptr(), count as u32);
        let query_starts = gpu.upload("query starts", &(0..=sequences).collect::<Vec<u32>>()).ptr();
        let call =
            plan_paged_attention { lengths: list, query_starts, plan: ranges, sequences, window, streams, slots };
        // SAFETY: each sequence has a length, and the plan has its size.
        unsafe { gpu.launch(LaunchShape::linear(1, PLAN_THREADS), call) };
        let plan = gpu.download(plan);

        let spans = &plan[1 + slots as usize..];
        let mut total = 0;
        for (&length, &span) in lengths.iter().zip(spans) {
            let first = if window > 0 { length.saturating_sub(window) } else { 0 };
            let tiles = length.div_ceil(TILE) - first / TILE;
            assert_eq!(span, [total, tiles, first, length]);
            total += tiles * streams;
        }
        let ranges = Ranges::of(total, slots);
        assert_eq!(plan[0], [ranges.count, ranges.quotient, ranges.remainder, total]);
        let mut at = 0;
        for (slot, &[begin, end, sequence, _]) in (0..slots).zip(&plan[1..]) {
            if slot >= ranges.count || total == 0 {
                assert_eq!(begin, end, "no range");
                continue;
            }
            assert_eq!((begin, end), (at, ranges.begin(slot + 1)));
            at = end;
            // Ranges differ by at most a tile, and have at least 256 tokens if there are enough.
            assert!((end - begin).abs_diff(total / ranges.count) <= 1);
            assert!(end - begin >= MIN_RANGE || ranges.count == 1);
            let [start, tiles, ..] = spans[sequence as usize];
            assert!(start <= begin && begin < start + tiles * streams, "the sequence of the first tile");
        }
        assert_eq!(at, total);
    }
}

#[test]
fn blocks_have_the_same_work_within_a_tenth() {
    // A block's cost is measured in a launch where only this block has a range.
    let problem = PagedProblem::decode(shape(Type::F16, 4, 1, 32, 16, 0), &ragged(12, 11), 0, 5);
    let (mut gpu, slots) = (Gpu::new("sm_90a"), 16);
    let step = Step::new(&mut gpu, &problem, slots);
    step.plan(&mut gpu);
    let plan = gpu.download(step.plan);
    let costs: Vec<_> = (1..=slots as usize)
        .map(|own| {
            let mut alone = plan.clone();
            (1..=slots as usize).filter(|&other| other != own).for_each(|other| alone[other] = [0; 4]);
            gpu.write(step.plan, &alone);
            gpu.write(step.arrivals, &vec![0; slots as usize]);
            let total = step.attend(&mut gpu).total;
            [total.global_bytes, total.instructions]
        })
        .collect();
    for (what, cost) in ["bytes", "instructions"].iter().zip([0, 1].map(|i| costs.iter().map(move |c| c[i]))) {
        let mean = cost.clone().sum::<u64>() as f64 / f64::from(slots);
        let most = cost.max().unwrap() as f64;
        assert!(most <= 1.1 * mean, "{what}: at most {most}, on average {mean}");
    }
}

#[test]
fn memory_is_read_once_and_without_conflicts() {
    use Type::{Bf16, F16};
    // A few thousand tokens for each block, as in batches that fill a GPU.
    for (shape, contexts, slots) in [
        (shape(F16, 4, 4, 128, 16, 0), [2048, 1500], 4),
        (shape(Bf16, 8, 2, 128, 16, 0), [8192, 5000], 6),
        (shape(F16, 8, 1, 64, 32, 0), [8192, 7000], 3),
        (shape(F16, 16, 1, 96, 8, 0), [8192, 5500], 3),
        (shape(Bf16, 5, 1, 80, 16, 0), [8192, 6000], 3),
        (shape(F16, 3, 1, 256, 16, 0), [4000, 6000], 2),
        (shape(F16, 2, 1, 32, 16, 0), [8192, 5000], 2),
        (shape(F16, 8, 1, 512, 16, 0), [4000, 3000], 2),
        (PagedShape { format: KvFormat::Int8, ..shape(F16, 8, 2, 64, 16, 0) }, [8192, 5000], 3),
        (PagedShape { format: KvFormat::Fp8, ..shape(F16, 4, 1, 64, 8, 0) }, [8192, 5000], 3),
        (PagedShape { format: KvFormat::Int8, ..shape(Bf16, 8, 1, 128, 32, 0) }, [8192, 5000], 3),
        (PagedShape { format: KvFormat::Fp8, ..shape(Bf16, 4, 4, 128, 16, 0) }, [2048, 1500], 3),
    ] {
        let problem = PagedProblem::decode(shape, &contexts, 0, 5);
        let mut gpu = Gpu::new("sm_90a");
        let step = Step::new(&mut gpu, &problem, slots);
        step.plan(&mut gpu);
        let report = step.attend(&mut gpu);
        let floor = decode::floor(shape.supported().unwrap(), u64::from(contexts[0] + contexts[1]), 2);
        let total = report.total;
        let over = (32 * total.sectors) as f64 / floor.bytes as f64;
        println!(
            "{shape:?}: {over:.4} of the floor, {:.1} bytes an instruction, {:.0} instructions a KiB",
            floor.bytes as f64 / total.instructions as f64,
            1024.0 * total.instructions as f64 / floor.bytes as f64
        );
        assert_eq!(total.bank_conflicts(), 0, "{shape:?}");
        assert!(total.sector_ratio() <= 1.02, "{shape:?}: {} of ideal", total.sector_ratio());
        // Besides keys and values, each warp reads a sector of the block table for a tile, and the queries of its
        // heads.
        let small = shape.head_size < 80 || shape.format.is_coded();
        let most = if small || shape.heads / shape.kv_heads > 8 { 1.04 } else { 1.02 };
        assert!(over <= most, "{shape:?}: {over} of the floor");
    }
}

/// Removes each barrier, wait, commit and fence in turn. Each removal must fault or give a wrong result in some order.
#[test]
fn every_ordering_instruction_is_needed() {
    let problem = PagedProblem::decode(shape(Type::F16, 2, 1, 32, 16, 0), &[5, 700, 40, 300, 1000], 0, 5);
    let (target, ptx) = TARGETS[1];
    let mut gpu = Gpu::new(target);
    let whole = Step::new(&mut gpu, &problem, 4);
    whole.plan(&mut gpu);
    let plan = gpu.download(whole.plan);
    let ordering = ["bar.", "membar", "cp.async.wait", "cp.async.commit"];
    let mutants = mutate::without_each(ptx, "paged_attention_f16_32_8", &ordering);
    assert!(mutants.len() > 8, "found {}", mutants.len());
    for mutant in mutants {
        let mut gpu = Gpu::with_ptx(&mutant.ptx);
        let step = Step::new(&mut gpu, &problem, 4);
        gpu.write(step.plan, &plan);
        let noticed = (0..6).any(|seed| {
            gpu.seed(seed);
            step.try_attend(&mut gpu).is_err() || !step.is_right(&gpu, &problem)
        });
        assert!(noticed, "removing {} goes unnoticed", mutant.removed);
    }
}
