//! A decode step in device memory, and checks of its results.

use cuda_std::launch::{DevicePtr, LaunchShape};
use cuda_std::vector::Vector;
use emulator::CostReport;
use kernels::attention::decode::{self, DecodeLaunch, PLAN_THREADS, paged_attention, plan_paged_attention};
use launch::Error;
use workbench::Buffer;
use workbench::paged::{PagedProblem, PagedShape};

use crate::frame::gpu::{Gpu, TARGETS};

/// Value of the output rows that no kernel writes.
const UNTOUCHED: u16 = 0x1234;

/// A decode step in device memory: a problem's sequences in parts, with padding between them.
pub struct Step<'a> {
    problem: &'a PagedProblem,
    launch: DecodeLaunch,
    /// The problem's rows of queries and results. All other rows are padding, with length 0 and one token.
    pub real: Vec<usize>,
    pub lengths: Buffer<u32>,
    query_starts: Buffer<u32>,
    pub plan: Buffer<[u32; 4]>,
    pub arrivals: Buffer<u32>,
    output: Buffer<u16>,
    args: paged_attention,
    pub sequences: u32,
}

impl<'a> Step<'a> {
    /// Creates a step of sequences with one query token.
    pub fn new(gpu: &mut Gpu, problem: &'a PagedProblem, slots: u32) -> Step<'a> {
        Step::of(gpu, problem, DecodeLaunch::new(problem.supported().unwrap(), slots))
    }

    pub fn of(gpu: &mut Gpu, problem: &'a PagedProblem, launch: DecodeLaunch) -> Step<'a> {
        let (shape, slots) = (problem.shape, launch.arrivals());
        let (mut tables, starts) = problem.flat_tables();
        let [part_lengths, part_tables, part_queries] = problem.parts(launch, &starts);
        // Padding at the front, at the end, and after every third part.
        let (mut lengths, mut table_starts, mut query_starts) = (vec![0], vec![u32::MAX], vec![0, 1]);
        let (mut real, mut rows) = (Vec::new(), 1);
        for (i, (&length, &table)) in part_lengths.iter().zip(&part_tables).enumerate() {
            let first = rows;
            rows += part_queries[i + 1] - part_queries[i];
            real.extend((first..rows).map(|row| row as usize));
            lengths.push(length);
            table_starts.push(table);
            query_starts.push(rows);
            if i % 3 == 2 || i + 1 == part_lengths.len() {
                rows += 1;
                lengths.push(0);
                table_starts.push(u32::MAX);
                query_starts.push(rows);
            }
        }
        let row = (shape.heads * shape.head_size) as usize;
        // Rows of queries are parts of longer rows.
        let stride = row + 24;
        let mut query = vec![shape.ty.nan(); rows as usize * stride];
        for (&at, own) in real.iter().zip(problem.query.chunks_exact(row)) {
            query[at * stride..at * stride + row].copy_from_slice(own);
        }
        for (span, &start) in problem.spans.iter().zip(&starts) {
            // Blocks before the window of the first token may have been freed.
            let window = if shape.window > 0 { shape.window } else { u32::MAX };
            let freed = (span.context - span.new + 1).saturating_sub(window) / shape.block_size;
            tables[start as usize..][..freed as usize].fill(u32::MAX);
        }
        // The buffer ends with the last real row, so reading the padding after it is out of bounds.
        query.truncate(real.last().unwrap() * stride + row);
        let sequences = lengths.len() as u32;
        let output = gpu.upload("output", &vec![UNTOUCHED; rows as usize * row]);
        let lengths = gpu.upload("lengths", &lengths);
        let query_starts = gpu.upload("query starts", &query_starts);
        let plan = gpu.alloc("plan", decode::plan_vectors(slots, sequences) as usize);
        let partials = gpu.alloc::<Vector>("partials", launch.partial_vectors() as usize);
        let arrivals = gpu.upload("arrivals", &vec![0u32; launch.arrivals() as usize]);
        let args = paged_attention {
            output: output.mut_ptr(),
            query: gpu.upload("query", &query).ptr(),
            cache: gpu.upload("cache", &problem.cache()).ptr(),
            tables: gpu.upload("tables", &tables).ptr(),
            table_starts: gpu.upload("table starts", &table_starts).ptr(),
            query_starts: query_starts.ptr(),
            plan: plan.ptr(),
            partials: partials.mut_ptr(),
            arrivals: arrivals.mut_ptr(),
            sinks: problem.sinks.as_ref().map_or(DevicePtr::NULL, |sinks| gpu.upload("sinks", sinks).ptr()),
            query_stride: stride as u32,
            kv_heads: shape.kv_heads,
            group: shape.heads / shape.kv_heads,
            block_size: shape.block_size,
            padding: problem.padding,
            rows: launch.rows(),
            window: shape.window,
            scale: shape.scale(),
        };
        Step { problem, launch, real, lengths, query_starts, plan, arrivals, output, args, sequences }
    }

    pub fn plan(&self, gpu: &mut Gpu) -> CostReport {
        let call = plan_paged_attention {
            lengths: self.lengths.ptr(),
            query_starts: self.query_starts.ptr(),
            plan: self.plan.mut_ptr(),
            sequences: self.sequences,
            window: self.problem.shape.window,
            streams: self.launch.streams(),
            slots: self.launch.arrivals(),
        };
        // SAFETY: each sequence has a length, and the plan has its size.
        unsafe { gpu.launch(LaunchShape::linear(1, PLAN_THREADS), call) }
    }

    pub fn try_attend(&self, gpu: &mut Gpu) -> Result<CostReport, Error> {
        let element = self.problem.shape.ty.element();
        let call = match self.problem.softcap {
            Some(cap) => self.launch.capped_call(element, self.args, cap),
            None => self.launch.call(element, self.args),
        };
        // SAFETY: the plan was made for this batch, and the workspace has its size.
        unsafe { gpu.try_launch(self.launch.shape(), call) }
    }

    pub fn attend(&self, gpu: &mut Gpu) -> CostReport {
        self.try_attend(gpu).unwrap_or_else(|error| panic!("{:?}: {error}", self.problem.shape))
    }

    /// Returns the output rows of the problem's tokens, and asserts that padding rows are untouched.
    pub fn output(&self, gpu: &Gpu) -> Vec<u16> {
        let row = (self.problem.shape.heads * self.problem.shape.head_size) as usize;
        let mut rows = gpu.download(self.output);
        let real = self.real.iter().flat_map(|&s| rows[s * row..(s + 1) * row].to_vec()).collect();
        self.real.iter().for_each(|&s| rows[s * row..(s + 1) * row].fill(UNTOUCHED));
        assert!(rows.iter().all(|&bits| bits == UNTOUCHED), "padding was written");
        real
    }

    /// Returns whether the output is right for `problem`, and the workspace is ready for the next launch.
    pub fn is_right(&self, gpu: &Gpu, problem: &PagedProblem) -> bool {
        let error = problem.error(&self.output(gpu));
        error <= problem.shape.ty.tolerance() && gpu.download(self.arrivals).iter().all(|&count| count == 0)
    }
}

/// Returns a device for each target.
pub fn targets() -> [Gpu; 2] {
    TARGETS.map(|(target, _)| Gpu::new(target))
}

/// Plans and attends on all devices, in several orders of warps and blocks. Results must not depend on the order.
pub fn check(gpus: &mut [Gpu], shape: PagedShape, contexts: &[u32], shared: u32, slots: u32) {
    check_problem(gpus, &PagedProblem::decode(shape, contexts, shared, 7), slots);
}

/// Does the same as [`check`] for a problem.
pub fn check_problem(gpus: &mut [Gpu], problem: &PagedProblem, slots: u32) {
    check_launch(gpus, problem, DecodeLaunch::new(problem.supported().unwrap(), slots));
}

/// Does the same as [`check`] for a problem and a launch.
pub fn check_launch(gpus: &mut [Gpu], problem: &PagedProblem, launch: DecodeLaunch) {
    let shape = problem.shape;
    for gpu in gpus {
        let step = Step::of(gpu, problem, launch);
        let mut first = None;
        for seed in [0, 1, 2] {
            gpu.seed(seed);
            step.plan(gpu);
            step.attend(gpu);
            let output = step.output(gpu);
            let error = problem.error(&output);
            assert!(error <= shape.ty.tolerance(), "{shape:?} {:?} {launch:?} {seed}: {error}", problem.spans);
            assert!(gpu.download(step.arrivals).iter().all(|&count| count == 0), "counters are not left at zero");
            assert_eq!(
                *first.get_or_insert_with(|| output.clone()),
                output,
                "{shape:?}: the result depends on the order"
            );
        }
    }
}
