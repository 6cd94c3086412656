//! The outcome of a launch: a report or a fault.

use super::launch_kernel::LaunchKernel;
use super::state::meter::Meter;
use crate::fault::{Fault, Violation};
use crate::module::PtxModule;
use crate::program::Program;
use crate::report::{CostReport, Counts, LineCounts};
use std::collections::BTreeMap;

/// Creates the report of a launch that has ended.
pub(super) fn report(module: &PtxModule, program: &Program, meter: &Meter, distinct_sectors: u64) -> CostReport {
    let mut report = CostReport { barriers: meter.barriers, distinct_sectors, ..CostReport::default() };
    // The key has the file's index. Each line then looks up the name only once.
    let mut places: BTreeMap<(Option<u32>, u32), Counts> = BTreeMap::new();
    for (instruction, counts) in program.code.iter().zip(&meter.counts) {
        if counts.instructions == 0 {
            continue;
        }
        report.total.add(counts);
        *report.classes.entry(instruction.class).or_default() += counts.instructions;
        let key = instruction.place.map_or((None, instruction.line), |place| (Some(place.file), place.line));
        places.entry(key).or_default().add(counts);
    }
    let mut lines: BTreeMap<(String, u32), Counts> = BTreeMap::new();
    for ((file, line), counts) in places {
        let file = file.map_or_else(String::new, |file| module.file(file));
        lines.entry((file, line)).or_default().add(&counts);
    }
    report.lines = lines.into_iter().map(|((file, line), counts)| LineCounts { file, line, counts }).collect();
    report
}

/// Creates the fault of a violation.
///
/// The first tuple holds the index of the instruction, and of the calls that led to it, innermost first. The second
/// tuple holds the block's index, the size of a block, and the warp.
pub(super) fn fault(
    LaunchKernel { module, entry, program }: LaunchKernel<'_>,
    (pc, calls): (usize, impl Iterator<Item = usize>),
    (block, [bx, by, _], warp): ([u32; 3], [u32; 3], usize),
    violation: Violation,
) -> Box<Fault> {
    let instruction = &program.code[pc];
    let place_of = |pc: usize| program.code[pc].place.map(|place| (module.file(place.file), place.line));
    let source = violation.source.or_else(|| place_of(pc));
    let reached_from = match &source {
        Some((file, _)) if is_library(file) => {
            let calls: Vec<usize> = calls.collect();
            let in_kernel = calls.last().copied().unwrap_or(pc);
            calls.into_iter().chain((0..in_kernel).rev()).filter_map(place_of).find(|(file, _)| !is_library(file))
        }
        _ => None,
    };
    Box::new(Fault {
        kind: violation.kind,
        message: violation.message,
        kernel: entry.name().to_string(),
        source,
        reached_from,
        ptx_line: instruction.line,
        opcode: entry.opcodes()[instruction.opcode as usize].clone(),
        block,
        thread: violation.lane.map(|lane| {
            let thread = (warp * 32 + lane) as u32;
            [thread % bx, thread / bx % by, thread / bx / by]
        }),
        device: None,
        address: violation.address,
        buffer: violation.buffer,
    })
}

/// Returns whether a file belongs to a library. The builder names workspace sources relative to the root (`./`), and
/// others from `/`.
fn is_library(file: &str) -> bool {
    file.starts_with('/')
}
