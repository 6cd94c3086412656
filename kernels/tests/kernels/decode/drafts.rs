//! Sequences with a few query tokens, which become rows next to the heads.

use kernels::attention::decode::{DecodeLaunch, Ranges, TILE};
use kernels::attention::prefill::hopper;
use kernels::attention::prefill::shape::floor;
use kernels::layout::KvFormat;
use workbench::cases;
use workbench::number::{ProblemRng, Type};
use workbench::paged::{PagedProblem, PagedSequence, PagedShape};

use super::step::{Step, check_launch};
use super::{CODES, shape, targets};
use crate::frame::gpu::Gpu;

fn span(new: u32, context: u32) -> PagedSequence {
    PagedSequence { new, context }
}

fn drafts(shape: PagedShape, slots: u32) -> DecodeLaunch {
    DecodeLaunch::with_drafts(shape.supported().unwrap(), slots)
}

/// Sequences of one query token and of several. These are the whole context or a small part of it, and form one part or
/// several.
const SPANS: [PagedSequence; 9] = [
    PagedSequence { new: 1, context: 1 },
    PagedSequence { new: 5, context: 700 },
    PagedSequence { new: 2, context: 2 },
    PagedSequence { new: 1, context: 33 },
    PagedSequence { new: 8, context: 300 },
    PagedSequence { new: 3, context: 17 },
    PagedSequence { new: 17, context: 40 },
    PagedSequence { new: 4, context: 16 },
    PagedSequence { new: 6, context: 258 },
];

#[test]
fn every_head_size_block_size_and_group_size() {
    use Type::{Bf16, F16};
    let mut gpus = targets();
    for (shape, slots) in [
        (shape(F16, 2, 2, 32, 8, 0), 5),
        (shape(Bf16, 4, 2, 32, 16, 0), 7),
        (shape(F16, 3, 1, 64, 32, 0), 3),
        (shape(Bf16, 8, 2, 64, 8, 0), 6),
        (shape(F16, 5, 1, 80, 16, 0), 4),
        (shape(Bf16, 7, 1, 80, 32, 40), 5),
        (shape(Bf16, 8, 1, 96, 16, 0), 3),
        (shape(F16, 16, 1, 96, 8, 17), 4),
        (shape(F16, 4, 4, 128, 16, 0), 9),
        (shape(Bf16, 4, 1, 128, 32, 100), 3),
        (shape(F16, 19, 1, 128, 16, 0), 5),
        (shape(Bf16, 2, 1, 256, 8, 0), 3),
        (shape(F16, 12, 1, 256, 16, 0), 4),
        (shape(F16, 1, 1, 256, 16, 33), 4),
    ] {
        check_launch(&mut gpus, &PagedProblem::new(shape, &SPANS, 1, 7), drafts(shape, slots));
    }
}

#[test]
fn caches_of_8_bits() {
    let mut gpus = targets();
    for (i, (heads, kv_heads, size, block, window, slots)) in [
        (3, 3, 32, 8, 0, 5),
        (4, 2, 64, 16, 50, 4),
        (4, 1, 80, 32, 0, 3),
        (9, 1, 96, 16, 0, 3),
        (2, 1, 128, 8, 17, 6),
        (3, 1, 256, 16, 0, 4),
    ]
    .into_iter()
    .enumerate()
    {
        for (n, format) in CODES.into_iter().enumerate() {
            let shape = PagedShape { format, ..shape(Type::ALL[(i + n) % 2], heads, kv_heads, size, block, window) };
            check_launch(&mut gpus, &PagedProblem::new(shape, &SPANS, 1, 7), drafts(shape, slots));
        }
    }
}

/// Windows that begin and end within a draft, within a tile, and between tiles.
#[test]
fn window_edges() {
    let mut gpus = targets();
    for (i, (window, block_size)) in [(1, 16), (4, 8), (7, 16), (16, 8), (17, 16), (100, 32)].into_iter().enumerate() {
        for (heads, kv_heads) in [(2, 2), (4, 2), (4, 1)] {
            let format = if (i + heads as usize).is_multiple_of(3) { CODES[i % 2] } else { KvFormat::Plain };
            let shape = PagedShape { format, ..shape(Type::F16, heads, kv_heads, 64, block_size, window) };
            let contexts = [8, 15, 16, 17, 20, 99, 101, 103, 107, 108, 116, 300];
            let spans: Vec<_> = (0..).zip(contexts).map(|(i, context)| span(1 + 5 * i % 8, context)).collect();
            check_launch(&mut gpus, &PagedProblem::new(shape, &spans, 0, 7), drafts(shape, 6));
        }
    }
}

/// Random lengths, and ranges that begin anywhere.
#[test]
fn random_batches() {
    let (mut gpus, mut random) = (targets(), ProblemRng(11));
    for seed in 0..24 {
        let mut below = |n: u64| random.below(n) as u32;
        let (kv_heads, group) = (1 + below(2), 1 + below(9));
        let window = if below(2) == 0 { 0 } else { 1 + below(150) };
        let shape = shape(Type::ALL[seed as usize % 2], kv_heads * group, kv_heads, 32, 8 << below(3), window);
        let spans: Vec<_> = (0..1 + below(9))
            .map(|_| {
                let new = 1 + below(9);
                span(new, new + [below(4), below(60), below(900)][below(3) as usize])
            })
            .collect();
        let slots = 1 + below(12);
        check_launch(&mut gpus, &PagedProblem::new(shape, &spans, below(3), seed), drafts(shape, slots));
    }
}

/// Rows of drafts do not affect other sequences: on one block both launches give the same bits.
#[test]
fn drafts_do_not_change_the_results_of_other_sequences() {
    let mut gpu = Gpu::new("sm_90a");
    for heads in [2, 8, 12] {
        let shape = shape(Type::F16, heads, 2, 64, 16, 0);
        let problem = PagedProblem::decode(shape, &[90, 700, 5], 0, 3);
        let plain = DecodeLaunch::new(shape.supported().unwrap(), 1);
        let [without, with] = [plain, drafts(shape, 1)].map(|launch| {
            let step = Step::of(&mut gpu, &problem, launch);
            step.plan(&mut gpu);
            step.attend(&mut gpu);
            step.output(&gpu)
        });
        assert_eq!(without, with, "{heads} heads");
    }
}

/// Heads, key/value heads, head size, format, contexts, and slots.
type Counted<'a> = (u32, u32, u32, KvFormat, &'a [u32], u32);

/// Prints the cost of drafts as rows, as sequences of one token each, and in prefill's kernels: warp instructions,
/// blocks with work, instructions of the busiest block, and bytes over the floor. The problems are single sequences,
/// whose ranges are as short as allowed, and a batch that keeps the grid busy.
fn count_drafts(problems: &[Counted<'_>]) {
    println!("| heads | contexts | tokens | kernel | warp instructions | blocks | of the longest | bytes / floor |");
    for &(heads, kv_heads, head_size, format, contexts, slots) in problems {
        let shape = PagedShape { format, ..shape(Type::F16, heads, kv_heads, head_size, 16, 0) };
        let checked = shape.supported().unwrap();
        let launch = drafts(shape, slots);
        for new in if contexts[0] > 1024 { &[4][..] } else { &[4, 8] } {
            let spans: Vec<_> = contexts.iter().map(|&context| span(*new, context)).collect();
            let floor: u64 = spans.iter().map(|span| floor(checked, span.new, span.context, 0).bytes).sum();
            let run = |case: &workbench::Case| Gpu::new("sm_90a").run(case).total;
            let count = |what: &str, case: &workbench::Case, blocks: u32, longest: Option<u64>| {
                let total = run(case);
                // All ranges have the same length.
                let longest = longest.unwrap_or(total.instructions / u64::from(blocks));
                let bytes = (32 * total.sectors) as f64 / floor as f64;
                println!(
                    "| {heads}/{kv_heads} of {head_size}, {format:?} | {contexts:?} | {new} | {what} | {} | {blocks} | {longest} | {bytes:.2} |",
                    total.instructions
                );
                (longest, bytes)
            };
            // As many blocks as ranges.
            let ranges = |lengths: &[u32], streams: u32| {
                Ranges::of(lengths.iter().map(|length| length.div_ceil(TILE) * streams).sum(), slots).count
            };
            let parts = |span: &PagedSequence| launch.parts(span.new, span.context).map(|(_, length)| length);
            let lengths: Vec<u32> = spans.iter().flat_map(parts).collect();
            let blocks = ranges(&lengths, launch.streams());
            let rows = count("rows", &cases::decode::attend_drafts(shape, spans.clone(), blocks), blocks, None);
            let one = |span: &PagedSequence| span.context - span.new + 1..=span.context;
            let ones: Vec<u32> = spans.iter().flat_map(one).collect();
            let blocks = ranges(&ones, DecodeLaunch::new(checked, slots).streams());
            let one_by_one = count("one by one", &cases::decode::attend(shape, ones, blocks), blocks, None);
            let blocks = kv_heads * spans.len() as u32;
            let prefill = |what, on_hopper| {
                let case = |spans: &[PagedSequence]| cases::prefill::attend(shape, spans, on_hopper).unwrap();
                // The first sequence is the longest.
                let longest = run(&case(&spans[..1])).instructions / u64::from(kv_heads);
                count(what, &case(&spans), blocks, Some(longest))
            };
            let by_prefill = prefill("prefill", false);
            if hopper::shape::serves(checked) {
                prefill("prefill, Hopper", true);
            }
            assert!(rows.1 < one_by_one.1, "rows read less than sequences of one token each");
            assert!(2 * rows.0 < by_prefill.0 || slots < 396, "a block's share is less than half of one of prefill's");
        }
    }
}

#[test]
fn counts_of_drafts() {
    count_drafts(&[
        (8, 2, 128, KvFormat::Plain, &[1024], 396),
        (8, 2, 64, KvFormat::Int8, &[1024], 396),
        (4, 2, 64, KvFormat::Plain, &[2048, 1500, 500], 6),
    ]);
}

#[test]
#[ignore = "takes half a minute; .ci/run nightly has a part for it"]
fn counts_of_drafts_in_long_contexts() {
    count_drafts(&[
        (4, 4, 64, KvFormat::Plain, &[1024], 396),
        (8, 1, 128, KvFormat::Plain, &[1024], 396),
        (8, 2, 128, KvFormat::Plain, &[16_384], 396),
        (8, 2, 128, KvFormat::Plain, &[4096, 3000, 1000], 6),
    ]);
}
