//! Runs blocks that do not communicate on several CPU cores.
//!
//! Blocks run in the natural order. While some of them run, later blocks run ahead on other cores, each part on its own
//! copy of the memory. If a part touched nothing that earlier blocks stored meanwhile, its results are the same as in
//! its turn, and they are merged. Otherwise they are dropped, and the blocks run again in their turn.

use super::grid_run::{GridRun, Progress, Shared};
use super::state::constants::LaunchConstants;
use super::state::fences::GlobalReleases;
use super::state::meter::Meter;
use crate::fault::Checked;
use crate::memory::Memory;
use crate::program::{Op, Program};
use crate::ptx::ast::Space;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A grid is divided only after it has executed this many instructions, and if as many are still to come. They show how
/// long a block takes.
const MIN_INSTRUCTIONS: u64 = 1 << 15;
/// The most bytes to copy per instruction still to come. The copies then take less than half of the time that they
/// save.
const MAX_COPIED: u64 = 32;
/// A part may execute this many times the instructions that are still to come. It may be waiting for a store of an
/// earlier part.
const PATIENCE: u64 = 16;
/// The most parts of a grid.
const MAX_PARTS: usize = 8;
/// In a large grid, parts begin at multiples of this many clusters, because neighbours often store to one sector.
const PART_ALIGN: u64 = 32;

/// Returns whether a kernel's blocks may run in parallel: they communicate only through weak memory accesses.
pub(super) fn is_separable(program: &Program) -> bool {
    program.code.iter().all(|instruction| match &instruction.op {
        Op::Clock(_) | Op::CallSystem(_) => false,
        Op::Atomic(atomic) => atomic.space == Space::Shared,
        Op::Load(access) | Op::Store(access) => access.order.is_none() || access.space == Space::Shared,
        _ => true,
    })
}

/// Divides the rest of a grid into parts. Returns `None` if that is not worthwhile.
pub(super) fn parts(run: &GridRun, launch: &LaunchConstants<'_>, memory: &Memory) -> Option<Vec<Range<u64>>> {
    let rest = run.end - run.started;
    if run.meter.executed < MIN_INSTRUCTIONS || rest < 2 || memory.has_host() {
        return None;
    }
    let cores = (launch.options.cores.min(MAX_PARTS) as u64).min(rest);
    let to_come = to_come(run);
    if to_come < MIN_INSTRUCTIONS || memory.bytes() * (cores - 1) > to_come * MAX_COPIED {
        return None;
    }
    let border = |part: u64| {
        let at = run.started + rest * part / cores;
        if rest >= PART_ALIGN * cores && part != 0 && part != cores { at / PART_ALIGN * PART_ALIGN } else { at }
    };
    Some((0..cores).map(|part| border(part)..border(part + 1)).collect())
}

/// Estimates the instructions that the remaining blocks will execute.
fn to_come(run: &GridRun) -> u64 {
    run.meter.executed / run.started.max(1) * (run.end - run.started)
}

/// Runs the first part of a grid, and the other parts in parallel to it. The grid then continues after the last part
/// that was merged.
pub(super) fn divide(
    run: &mut GridRun,
    launch: &LaunchConstants<'_>,
    shared: &mut Shared<'_>,
    parts: &[Range<u64>],
) -> Checked<()> {
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    let (end, stop) = (run.end, &AtomicBool::new(false));
    let most = to_come(run).saturating_mul(PATIENCE);
    let forks = shared.memory.fork(others.len());
    let taken = thread::scope(|scope| {
        let ahead = |(part, memory): (&Range<u64>, Memory)| {
            let part = part.clone();
            (part.end, scope.spawn(move || run_ahead(launch, part, memory, (stop, most))))
        };
        let threads: Vec<_> = others.iter().zip(forks).map(ahead).collect();
        run.end = first.end;
        let result = run_first(run, launch, shared);
        let mut fits = matches!(result, Ok(true));
        for (end, thread) in threads {
            stop.fetch_or(!fits, Ordering::Relaxed);
            let ahead = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match ahead.filter(|(memory, meter)| {
                let work = run.meter.work() + meter.work();
                fits && work <= launch.options.instruction_limit && !shared.memory.conflicts(memory)
            }) {
                Some((memory, meter)) => {
                    shared.memory.take_over(&memory);
                    run.meter.take_over(&meter);
                    run.started = end;
                }
                None => fits = false,
            }
        }
        result
    });
    run.end = end;
    taken.map(drop)
}

/// Runs a grid to the end of its part. Returns false if it stopped because a block waits for another one.
fn run_first(run: &mut GridRun, launch: &LaunchConstants<'_>, shared: &mut Shared<'_>) -> Checked<bool> {
    loop {
        match run.round(launch, shared)? {
            Progress::Ended => return Ok(true),
            Progress::Spins => return Ok(false),
            Progress::Runs => {}
        }
    }
}

/// Runs a part of a grid on a copy of the memory.
///
/// Returns `None` if the part has a fault, waits for another part, executes too many instructions, or is told to stop.
fn run_ahead(
    launch: &LaunchConstants<'_>,
    part: Range<u64>,
    mut memory: Memory,
    (stop, most): (&AtomicBool, u64),
) -> Option<(Memory, Meter)> {
    let (mut run, mut releases) = (GridRun::new(launch, false), GlobalReleases::default());
    (run.started, run.end) = (part.start, part.end);
    while !stop.load(Ordering::Relaxed) && run.meter.executed <= most {
        let mut shared = Shared { memory: &mut memory, releases: &mut releases };
        match run.round(launch, &mut shared) {
            Ok(Progress::Ended) => return Some((memory, run.meter)),
            Ok(Progress::Runs) => {}
            _ => return None,
        }
    }
    None
}
