//! Runs cases: checks their results, then measures their cost.

use emulator::Counts;
use emulator::driver::LaunchReport;
use launch::{Event, Result};
use serde::Serialize;

use crate::case::{Case, Prepared};
use crate::gpu::Gpu;

/// Seeds for the order of warps and blocks in the emulator. Reports are taken from the last run, in the natural order.
const SEEDS: [u64; 3] = [1, 2, 0];
/// Number of graph launches that are timed on a GPU.
const REPLAYS: usize = 50;
/// Bytes that the problems of a graph cover together on a GPU. This exceeds every cache, as in a model, where weights,
/// keys and values come from memory.
const ROTATED_BYTES: u64 = 512 << 20;
/// Maximum number of problems in a graph. Data that is smaller than `ROTATED_BYTES` by this factor is cached in a model
/// too.
const MOST_TURNS: u64 = 16;

/// The result of running a case.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The kernel.
    pub kernel: String,
    /// The problem.
    pub shape: String,
    /// The largest error, relative to the allowed error.
    pub error: f64,
    /// Bytes that any kernel must move.
    pub floor_bytes: u64,
    /// Matrix-product operations that any kernel must do.
    pub floor_flops: u64,
    /// Its cost.
    #[serde(flatten)]
    pub cost: Cost,
    /// The emulator's report of each launch. Empty on a GPU.
    #[serde(skip)]
    pub reports: Vec<LaunchReport>,
}

/// The cost of running a case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cost {
    /// On a GPU.
    Time {
        /// The median time of a launch. Launches in a graph take turns on copies of the problem, and the graph is run
        /// repeatedly.
        microseconds: f64,
    },
    /// In the emulator.
    Counts {
        /// Warp instructions.
        instructions: u64,
        /// Bytes in the 32-byte sectors that were moved.
        sector_bytes: u64,
        /// Ratio of the sectors to the fewest that could hold the data of each instruction.
        sector_ratio: f64,
        /// Passes over shared memory beyond the fewest possible.
        bank_conflicts: u64,
        /// Branches at which the lanes of a warp diverge.
        divergent: u64,
        /// Matrix-product operations on the tensor cores.
        tensor_flops: u64,
    },
}

/// Runs a case. The emulator runs it in several orders of warps and blocks, and a GPU also times it.
///
/// # Errors
/// [`launch::Error`], also if a kernel faults.
pub fn measure(case: &Case, gpu: &mut Gpu) -> Result<Measured> {
    let prepared = (case.prepare)(gpu)?;
    let (mut error, mut reports) = (0f64, Vec::new());
    let seeds = if gpu.context().is_emulator() { &SEEDS[..] } else { &SEEDS[..1] };
    for &seed in seeds {
        gpu.seed(seed);
        reports = gpu.reported(|gpu| (prepared.launch)(gpu))?;
        let off = (prepared.error)(gpu)?;
        error = if off.is_nan() { f64::INFINITY } else { error.max(off) };
    }
    let cost = if gpu.context().is_emulator() { counts(&reports) } else { time(case, prepared, gpu)? };
    Ok(Measured {
        kernel: case.kernel.to_owned(),
        shape: case.shape.clone(),
        error,
        floor_bytes: case.floor.bytes,
        floor_flops: case.floor.flops,
        cost,
        reports,
    })
}

/// Sums the counts of all launches.
fn counts(reports: &[LaunchReport]) -> Cost {
    let mut total = Counts::default();
    reports.iter().for_each(|launch| total.add(&launch.report.total));
    Cost::Counts {
        instructions: total.instructions,
        sector_bytes: total.sectors * 32,
        sector_ratio: total.sector_ratio(),
        bank_conflicts: total.bank_conflicts(),
        divergent: total.divergent,
        tensor_flops: total.tensor_flops,
    }
}

/// Returns the median time of a launch. It is taken in a graph, which makes the overhead of launching negligible. The
/// case's kernels must be loaded.
fn time(case: &Case, prepared: Prepared, gpu: &mut Gpu) -> Result<Cost> {
    let stream = gpu.context().stream()?;
    let turns = ROTATED_BYTES.div_ceil(case.floor.bytes.max(1)).min(MOST_TURNS);
    let mut problems = vec![prepared];
    for _ in 1..turns {
        problems.push((case.prepare)(gpu)?);
    }
    let graph = gpu.captured(|gpu| problems.iter().try_for_each(|problem| (problem.launch)(gpu)))?;
    let (start, end) = (Event::new(gpu.context())?, Event::new(gpu.context())?);
    let mut times = Vec::with_capacity(REPLAYS);
    for _ in 0..REPLAYS {
        start.record(&stream)?;
        // SAFETY: the captured launches use buffers that `gpu` keeps alive.
        unsafe { graph.launch(&stream) }?;
        end.record(&stream)?;
        end.synchronize()?;
        times.push(end.since(&start)?);
    }
    times.sort_unstable();
    Ok(Cost::Time { microseconds: times[REPLAYS / 2].as_secs_f64() * 1e6 / turns as f64 })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use std::sync::Arc;

    use launch::{Driver, Ptx};

    use super::*;
    use crate::Scale;
    use crate::cases::read_stream;

    #[test]
    fn small_problems_take_turns_against_the_clock() {
        let ptx = Arc::new(Ptx::new(intrinsics::SM_90A).unwrap());
        let mut gpu = Gpu::new(Driver::emulator().unwrap(), (9, 0), ptx).unwrap();
        let case = read_stream(Scale::Small);
        let prepared = (case.prepare)(&mut gpu).unwrap();
        // As in `measure`, kernels are loaded before the capture.
        (prepared.launch)(&mut gpu).unwrap();
        let mut cost = None;
        let timed = |gpu: &mut Gpu| {
            cost = Some(time(&case, prepared, gpu)?);
            Ok(())
        };
        let reports = gpu.reported(timed).unwrap();
        assert_eq!(reports.len(), REPLAYS * MOST_TURNS as usize);
        assert!(matches!(cost, Some(Cost::Time { microseconds }) if microseconds.is_finite()), "{cost:?}");
    }
}
