//! Decode attention against plain attention in `f64`.
//!
//! Barriers, waits, commits and fences are taken away one at a time by a test below. Masks were taken away by hand, in the
//! source; what noticed:
//!
//! | without | noticed by |
//! | --- | --- |
//! | the mask of scores behind the end (`hide`) | every test of results: wrong results |
//! | the mask of scores before the window (`hide`) | `window_edges`: wrong results |
//! | zeros in place of what is behind the end (`Reader::fetch`) | every test of results: NaN |
//! | zeros in place of what is before the window (`Reader::fetch`) | `window_edges`: out of bounds |

use cuda_std::launch::LaunchShape;
use cuda_std::vector::Vector;
use emulator::CostReport;
use kernels::attention::decode::{
    self, DecodeLaunch, MIN_RANGE, PLAN_THREADS, Ranges, TILE, paged_attention, plan_paged_attention,
};
use kernels::layout::KvFormat;
use launch::Error;
use workbench::Buffer;
use workbench::number::{ProblemRng, Type};
use workbench::paged::{PagedProblem, PagedShape};

use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate;

/// Formats of 8 bits.
pub const CODES: [KvFormat; 2] = [KvFormat::Int8, KvFormat::Fp8];

/// What is in an output row that nobody writes.
const UNTOUCHED: u16 = 0x1234;

/// A decode step in the device's memory: a problem's sequences, with padding among them.
struct Step<'a> {
    problem: &'a PagedProblem,
    launch: DecodeLaunch,
    slots: u32,
    /// Which of the batch's sequences are the problem's; the others have length 0.
    real: Vec<usize>,
    lengths: Buffer<u32>,
    plan: Buffer<[u32; 4]>,
    arrivals: Buffer<u32>,
    output: Buffer<u16>,
    args: paged_attention,
    sequences: u32,
}

impl<'a> Step<'a> {
    fn new(gpu: &mut Gpu, problem: &'a PagedProblem, slots: u32) -> Step<'a> {
        let shape = problem.shape;
        let launch = DecodeLaunch::new(shape.supported().unwrap(), slots);
        // Padding at the front, at the end, and after every third sequence.
        let real: Vec<usize> = (0..problem.spans.len()).map(|s| 1 + s + s / 3).collect();
        let sequences = real.last().unwrap() + 2;
        let (mut tables, starts) = problem.flat_tables();
        let row = (shape.heads * shape.head_size) as usize;
        // Rows of queries are parts of longer ones.
        let stride = row + 24;
        let (mut query, mut lengths) = (vec![shape.ty.nan(); sequences * stride], vec![0; sequences]);
        let mut table_starts = vec![u32::MAX; sequences];
        for (s, &at) in real.iter().enumerate() {
            query[at * stride..at * stride + row].copy_from_slice(&problem.query[s * row..(s + 1) * row]);
            lengths[at] = problem.spans[s].context;
            table_starts[at] = starts[s];
            // Blocks that the window has left behind may be gone.
            let window = if shape.window > 0 { shape.window } else { u32::MAX };
            let gone = problem.spans[s].context.saturating_sub(window) / shape.block_size;
            tables[starts[s] as usize..][..gone as usize].fill(u32::MAX);
        }
        // Padding has no queries that could be read.
        query.truncate(real.last().unwrap() * stride + row);
        let output = gpu.upload("output", &vec![UNTOUCHED; sequences * row]);
        let lengths = gpu.upload("lengths", &lengths);
        let plan = gpu.alloc("plan", decode::plan_vectors(slots, sequences as u32) as usize);
        let partials = gpu.alloc::<Vector>("partials", launch.partial_vectors() as usize);
        let arrivals = gpu.upload("arrivals", &vec![0u32; launch.arrivals() as usize]);
        let args = paged_attention {
            output: output.mut_ptr(),
            query: gpu.upload("query", &query).ptr(),
            cache: gpu.upload("cache", &problem.cache()).ptr(),
            tables: gpu.upload("tables", &tables).ptr(),
            table_starts: gpu.upload("table starts", &table_starts).ptr(),
            plan: plan.ptr(),
            partials: partials.mut_ptr(),
            arrivals: arrivals.mut_ptr(),
            query_stride: stride as u32,
            kv_heads: shape.kv_heads,
            group: shape.heads / shape.kv_heads,
            block_size: shape.block_size,
            scale: shape.scale(),
        };
        Step { problem, launch, slots, real, lengths, plan, arrivals, output, args, sequences: sequences as u32 }
    }

    fn plan(&self, gpu: &mut Gpu) -> CostReport {
        let call = plan_paged_attention {
            lengths: self.lengths.ptr(),
            plan: self.plan.mut_ptr(),
            sequences: self.sequences,
            window: self.problem.shape.window,
            streams: self.launch.streams(),
            slots: self.slots,
        };
        // SAFETY: there is a length for each sequence, and the plan has its size.
        unsafe { gpu.launch(LaunchShape::linear(1, PLAN_THREADS), call) }
    }

    fn try_attend(&self, gpu: &mut Gpu) -> Result<CostReport, Error> {
        let call = self.launch.call(self.problem.shape.ty.element(), self.args);
        // SAFETY: the plan was made for this batch, and the workspace has its size.
        unsafe { gpu.try_launch(self.launch.shape(), call) }
    }

    fn attend(&self, gpu: &mut Gpu) -> CostReport {
        self.try_attend(gpu).unwrap_or_else(|error| panic!("{:?}: {error}", self.problem.shape))
    }

    /// The output rows of the problem's sequences; those of padding must be untouched.
    fn output(&self, gpu: &Gpu) -> Vec<u16> {
        let row = (self.problem.shape.heads * self.problem.shape.head_size) as usize;
        let mut rows = gpu.download(self.output);
        let real = self.real.iter().flat_map(|&s| rows[s * row..(s + 1) * row].to_vec()).collect();
        self.real.iter().for_each(|&s| rows[s * row..(s + 1) * row].fill(UNTOUCHED));
        assert!(rows.iter().all(|&bits| bits == UNTOUCHED), "padding was written");
        real
    }

    /// Whether the output is what `problem` asks for, and the workspace ready for the next launch.
    fn is_right(&self, gpu: &Gpu, problem: &PagedProblem) -> bool {
        let error = problem.error(&self.output(gpu));
        error <= problem.shape.ty.tolerance() && gpu.download(self.arrivals).iter().all(|&count| count == 0)
    }
}

pub fn shape(ty: Type, heads: u32, kv_heads: u32, head_size: u32, block_size: u32, window: u32) -> PagedShape {
    PagedShape { ty, heads, kv_heads, head_size, block_size, window, format: KvFormat::Plain }
}

/// A device for each target.
pub fn targets() -> [Gpu; 2] {
    TARGETS.map(|(target, _)| Gpu::new(target))
}

/// Plans and attends on all devices, under several orders of warps and blocks. Results must not depend on the order.
pub fn check(gpus: &mut [Gpu], shape: PagedShape, contexts: &[u32], shared: u32, slots: u32) {
    check_problem(gpus, &PagedProblem::decode(shape, contexts, shared, 7), slots);
}

/// The same of a problem.
pub fn check_problem(gpus: &mut [Gpu], problem: &PagedProblem, slots: u32) {
    let (shape, contexts) = (problem.shape, problem.contexts());
    for gpu in gpus {
        let step = Step::new(gpu, problem, slots);
        let mut first = None;
        for seed in [0, 1, 2] {
            gpu.seed(seed);
            step.plan(gpu);
            step.attend(gpu);
            let output = step.output(gpu);
            let error = problem.error(&output);
            assert!(error <= shape.ty.tolerance(), "{shape:?} {contexts:?} {slots} {seed}: {error}");
            assert!(gpu.download(step.arrivals).iter().all(|&count| count == 0), "counters are left at zero");
            assert_eq!(*first.get_or_insert_with(|| output.clone()), output, "{shape:?}: the order shows");
        }
    }
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
    // Fewer tiles than a range has; and slots without a range.
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

/// Lengths from 1 to 8,192.
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
        let call = plan_paged_attention { lengths: list, plan: ranges, sequences, window, streams, slots };
        // SAFETY: there is a length for each sequence, and the plan has its size.
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
            // Even to a tile, and of 256 tokens at least where there are as many.
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
    // What a block costs is what a launch costs in which no other has a range.
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
        assert!(most <= 1.1 * mean, "{what}: {most} at most, {mean} in the mean");
    }
}

#[test]
fn memory_is_read_once_and_without_conflicts() {
    use Type::{Bf16, F16};
    // Some thousands of tokens for each block, as in batches that fill a GPU.
    for (shape, contexts, slots) in [
        (shape(F16, 4, 4, 128, 16, 0), [2048, 1500], 4),
        (shape(Bf16, 8, 2, 128, 16, 0), [8192, 5000], 6),
        (shape(F16, 8, 1, 64, 32, 0), [8192, 7000], 3),
        (shape(F16, 16, 1, 96, 8, 0), [8192, 5500], 3),
        (shape(Bf16, 5, 1, 80, 16, 0), [8192, 6000], 3),
        (shape(F16, 3, 1, 256, 16, 0), [4000, 6000], 2),
        (shape(F16, 2, 1, 32, 16, 0), [8192, 5000], 2),
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
            "{shape:?}: {over:.4} of the floor, {:.1} bytes an instruction",
            floor.bytes as f64 / total.instructions as f64
        );
        assert_eq!(total.bank_conflicts(), 0, "{shape:?}");
        assert!(total.sector_ratio() <= 1.02, "{shape:?}: {} of ideal", total.sector_ratio());
        // Beside keys and values each warp reads a sector of the block table for a tile, and the queries of its heads.
        let small = shape.head_size < 80 || shape.format.is_coded();
        let most = if small || shape.heads / shape.kv_heads > 8 { 1.04 } else { 1.02 };
        assert!(over <= most, "{shape:?}: {over} of the floor");
    }
}

/// Takes away each barrier, wait, commit and fence in turn: a fault, or a wrong result, under some order.
#[test]
fn nothing_that_orders_memory_can_be_missing() {
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
        assert!(noticed, "nothing comes of removing {}", mutant.removed);
    }
}
