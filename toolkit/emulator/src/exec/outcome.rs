//! What a launch ends with: a report, or a fault.

use super::state::meter::Meter;
use crate::entry::Entry;
use crate::fault::{Fault, Violation};
use crate::module::Module;
use crate::program::{Instruction, Program};
use crate::report::{Counts, LineCounts, Report};
use std::collections::BTreeMap;

/// The report of a launch that has ended.
pub(super) fn report(module: &Module, program: &Program, meter: &Meter, distinct_sectors: u64) -> Report {
    let mut report = Report { barriers: meter.barriers, distinct_sectors, ..Report::default() };
    let mut lines: BTreeMap<(String, u32), Counts> = BTreeMap::new();
    for (instruction, counts) in program.code.iter().zip(&meter.counts) {
        if counts.instructions == 0 {
            continue;
        }
        report.total.add(counts);
        *report.classes.entry(instruction.class).or_default() += counts.instructions;
        let key = match instruction.place {
            Some(place) => (module.file(place.file), place.line),
            None => (String::new(), instruction.line),
        };
        lines.entry(key).or_default().add(counts);
    }
    report.lines = lines.into_iter().map(|((file, line), counts)| LineCounts { file, line, counts }).collect();
    report
}

/// The fault that a violation is, with the place where it happened: an instruction, the block's index, the size of a block and
/// the warp.
pub(super) fn fault(
    module: &Module,
    entry: &Entry,
    instruction: &Instruction,
    (block, [bx, by, _], warp): ([u32; 3], [u32; 3], usize),
    violation: Violation,
) -> Box<Fault> {
    Box::new(Fault {
        kind: violation.kind,
        message: violation.message,
        kernel: entry.name().to_string(),
        source: instruction.place.map(|place| (module.file(place.file), place.line)),
        ptx_line: instruction.line,
        opcode: entry.opcodes()[instruction.opcode as usize].clone(),
        block,
        thread: violation.lane.map(|lane| {
            let thread = (warp * 32 + lane) as u32;
            [thread % bx, thread / bx % by, thread / bx / by]
        }),
        address: violation.address,
        buffer: violation.buffer,
    })
}
