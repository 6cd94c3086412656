//! Running cases: right first, then what they cost.

use emulator::Counts;
use emulator::driver::LaunchReport;
use launch::{Event, Result};
use serde::Serialize;

use crate::case::{Case, Prepared};
use crate::gpu::Gpu;

/// Orders of warps and blocks that a case is run in, in the emulator; what is reported is of the last, the natural one.
const SEEDS: [u64; 3] = [1, 2, 0];
/// Times that a case is run on a GPU.
const REPLAYS: usize = 50;
/// Bytes that launches on a GPU take turns at: more than any cache holds, since a model's weights and its sequences' keys
/// and values come from memory.
const ROTATED_BYTES: u64 = 512 << 20;
/// Most problems that take turns. What is smaller by this factor comes from a cache in a model, too.
const MOST_TURNS: u64 = 16;

/// The result of running a case.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The kernel.
    pub kernel: String,
    /// The problem.
    pub shape: String,
    /// The greatest distance from the reference, as a part of what is allowed.
    pub error: f64,
    /// Bytes that any kernel must move.
    pub floor_bytes: u64,
    /// Operations of matrix products that any kernel must do.
    pub floor_flops: u64,
    /// What it cost.
    #[serde(flatten)]
    pub cost: Cost,
    /// The emulator's report of each launch; none from a GPU.
    #[serde(skip)]
    pub reports: Vec<LaunchReport>,
}

/// What running a case cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cost {
    /// On a GPU.
    Time {
        /// The median over runs of a graph, of one of the launches in it, which take turns at copies of the problem.
        microseconds: f64,
    },
    /// In the emulator.
    Counts {
        /// Warp instructions.
        instructions: u64,
        /// Bytes in the 32-byte sectors that were moved.
        sector_bytes: u64,
        /// Sectors over the fewest that could hold what each instruction asked for.
        sector_ratio: f64,
        /// Passes over shared memory beyond the fewest possible.
        bank_conflicts: u64,
        /// Branches at which the lanes of a warp parted.
        divergent: u64,
        /// Operations of matrix products on the tensor cores.
        tensor_flops: u64,
    },
}

/// Runs a case: in the emulator in several orders of warps and blocks, on a GPU also against the clock.
///
/// # Errors
/// [`launch::Error`], also for a kernel's fault.
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

/// The sum over launches.
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

/// The median time of a launch, in a graph, so that launching costs next to nothing. The case's kernels are loaded already.
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
        // SAFETY: what was captured are launches on buffers that `gpu` keeps.
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

    use launch::Driver;

    use super::*;
    use crate::Scale;
    use crate::cases::read_stream;

    #[test]
    fn small_problems_take_turns_against_the_clock() {
        let mut gpu = Gpu::new(Driver::emulator().unwrap(), (9, 0), vocabulary::SM_90A).unwrap();
        let case = read_stream(Scale::Small);
        let prepared = (case.prepare)(&mut gpu).unwrap();
        // As `measure` does: kernels are loaded before anything is captured.
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
