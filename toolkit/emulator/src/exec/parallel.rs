//! Blocks that do not communicate, on several cores.
//!
//! Blocks run in the natural order, one after the other. While some of them run, others that come later run ahead on copies of
//! the memory, on other cores. If these touched nothing that was stored before their turn, they did what they would have done in
//! their turn, and it is taken over. Else it is forgotten, and they run in their turn.

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

/// Instructions after which it is known what a block takes.
const KNOWN: u64 = 1 << 15;
/// The most bytes that are copied for an instruction which is still to come: they take less than half of the time that is saved.
const COPIED: u64 = 32;
/// How often as many instructions as were to come a part may execute: it may wait for what an earlier one would store.
const PATIENCE: u64 = 16;
/// The most parts of a grid.
const MOST: usize = 8;
/// Parts begin at multiples of so many clusters where there are many: neighbours often store into one sector.
const TOGETHER: u64 = 32;

/// Whether a kernel's blocks may run beside each other: nothing tells them of others but memory, and of that nothing strong.
pub(super) fn is_separable(program: &Program) -> bool {
    program.code.iter().all(|instruction| match &instruction.op {
        Op::Clock(_) | Op::CallSystem(_) => false,
        Op::Atomic(atomic) => atomic.space == Space::Shared,
        Op::Load(access) | Op::Store(access) => access.order.is_none() || access.space == Space::Shared,
        _ => true,
    })
}

/// The parts into which the rest of a grid is cut, if that is worth it.
pub(super) fn parts(run: &GridRun, launch: &LaunchConstants<'_>, memory: &Memory) -> Option<Vec<Range<u64>>> {
    let rest = run.end - run.started;
    if run.meter.executed < KNOWN || rest < 2 || memory.has_host() {
        return None;
    }
    let cores = (launch.options.cores.min(MOST) as u64).min(rest);
    let to_come = to_come(run);
    if to_come < KNOWN || memory.bytes() * (cores - 1) > to_come * COPIED {
        return None;
    }
    let border = |part: u64| {
        let at = run.started + rest * part / cores;
        if rest >= TOGETHER * cores && part != 0 && part != cores { at / TOGETHER * TOGETHER } else { at }
    };
    Some((0..cores).map(|part| border(part)..border(part + 1)).collect())
}

/// About how many instructions the blocks will execute that have not started.
fn to_come(run: &GridRun) -> u64 {
    run.meter.executed / run.started.max(1) * (run.end - run.started)
}

/// Runs the first part of a grid, and beside it the others. Afterwards the grid goes on behind the last part that was taken over.
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

/// Runs a grid to the end of its part, as long as no block waits for another one. Returns whether it got there.
fn run_first(run: &mut GridRun, launch: &LaunchConstants<'_>, shared: &mut Shared<'_>) -> Checked<bool> {
    loop {
        match run.round(launch, shared)? {
            Progress::Ended => return Ok(true),
            Progress::Spins => return Ok(false),
            Progress::Runs => {}
        }
    }
}

/// Runs a part of a grid on a copy of the memory. Nothing if it has a fault, waits for another part, goes on for too long, or shall stop.
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
