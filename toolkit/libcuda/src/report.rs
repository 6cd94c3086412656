//! Fault reports in the style of NVIDIA's compute-sanitizer, printed when a fault is found, and a summary when the
//! process exits.

use crate::settings;
use emulator::driver::Notice;
use emulator::{Fault, FaultKind};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The prefix of every report line.
const MARK: &str = "=========";

/// The number of faults so far.
static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Reports an error and counts it if it is a fault.
pub fn on_notice(notice: Notice<'_>) {
    match notice {
        Notice::Fault(fault) => {
            FAULTS.fetch_add(1, Ordering::Relaxed);
            print(&describe(fault));
        }
        Notice::Refusal(fault) => print(&describe_refusal(fault)),
    }
}

/// Prints the number of faults if there were any, or if a report file is set. Returns whether there were any.
pub fn summarise() -> bool {
    let faults = FAULTS.load(Ordering::Relaxed);
    if faults != 0 || settings::current().is_some_and(|settings| settings.report.is_some()) {
        print(&summary(faults));
    }
    faults != 0
}

/// Appends to the report file, or prints to standard error if none is set.
fn print(text: &str) {
    let file = settings::current().and_then(|settings| settings.report.as_ref());
    let written = match file {
        Some(path) => {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
        }
        None => return eprint!("{text}"),
    };
    if let Err(error) = written {
        eprintln!("{text}{MARK} The report could not be written: {error}");
    }
}

fn summary(faults: usize) -> String {
    format!("{MARK} ERROR SUMMARY: {faults} error{}\n", if faults == 1 { "" } else { "s" })
}

fn describe_refusal(fault: &Fault) -> String {
    let line = if fault.ptx_line == 0 { String::new() } else { format!(" (PTX line {})", fault.ptx_line) };
    format!("{MARK} Refused: `{}`: {}{line}\n", fault.kernel, fault.message)
}

/// The memory space and the kind of access of an instruction.
fn access(opcode: &str) -> (&'static str, &'static str) {
    let space = ["shared", "local", "const", "param"].into_iter().find(|space| opcode.contains(&format!(".{space}")));
    let space = match space {
        Some("shared") => "__shared__",
        Some("local") => "__local__",
        Some("const" | "param") => "__constant__",
        _ => "__global__",
    };
    let way = match opcode.split('.').next() {
        Some("st" | "stmatrix") => "write",
        Some("atom" | "red") => "atomic",
        Some("cp") => "copy",
        _ => "read",
    };
    (space, way)
}

fn heading(fault: &Fault) -> String {
    let (space, way) = access(&fault.opcode);
    match fault.kind {
        FaultKind::OutOfBounds | FaultKind::Misaligned if fault.opcode.is_empty() => {
            "Invalid argument of a call".into()
        }
        FaultKind::OutOfBounds => format!("Invalid {space} {way}"),
        FaultKind::Misaligned => format!("Invalid {space} {way}: misaligned address"),
        FaultKind::Uninitialised => format!("Uninitialized {space} memory read"),
        FaultKind::SharedRace => "Race reported between accesses to __shared__ memory".into(),
        FaultKind::GlobalRace => "Race reported between accesses to __global__ memory".into(),
        FaultKind::MissingLanes => "Barrier error detected. Divergent thread(s) in warp".into(),
        FaultKind::DivergentBarrier => "Barrier error detected. Divergent thread(s) in block".into(),
        FaultKind::Deadlock => "Barrier error detected. Threads wait for an event that can no longer happen".into(),
        FaultKind::Mbarrier => "Barrier error detected. Invalid use of an mbarrier".into(),
        FaultKind::AsyncRegion => "Race reported with an asynchronous copy or product".into(),
        FaultKind::MissingProxyFence => "Race reported between the generic and the asynchronous proxy".into(),
        FaultKind::Trap => "Trap".into(),
        FaultKind::Assertion => "Device-side assert".into(),
        FaultKind::InstructionLimit => "The kernel does not end".into(),
        FaultKind::Unsupported => "An instruction is not supported".into(),
        FaultKind::Launch => "Invalid launch".into(),
    }
}

/// Describes a fault in several lines.
fn describe(fault: &Fault) -> String {
    let tuple = |[x, y, z]: [u32; 3]| format!("({x},{y},{z})");
    let mut text = format!("{MARK} {}\n", heading(fault));
    let mut line = |words: String| {
        let _ = writeln!(text, "{MARK}     {words}"); // writing to a string cannot fail
    };
    let mut place = format!("at {}", fault.kernel);
    if let Some((file, line)) = &fault.source {
        let _ = write!(place, " in {file}:{line}");
    }
    if fault.ptx_line != 0 {
        let _ = write!(place, " (PTX line {}, `{}`)", fault.ptx_line, fault.opcode);
    }
    line(place);
    if let Some((file, number)) = &fault.reached_from {
        line(format!("reached from {file}:{number}"));
    }
    match fault.thread {
        Some(thread) => line(format!("by thread {} in block {}", tuple(thread), tuple(fault.block))),
        None if fault.ptx_line != 0 => line(format!("in block {}", tuple(fault.block))),
        None => {}
    }
    if let Some(device) = fault.device {
        line(format!("on device {device}"));
    }
    line(fault.message.clone());
    if let Some(address) = fault.address {
        line(format!("Address {address:#x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_described_in_several_lines() {
        let fault = Fault {
            kind: FaultKind::OutOfBounds,
            message: "4 bytes at offset 8 of `x`, which has 8 bytes".into(),
            kernel: "twice".into(),
            source: Some(("k.rs".into(), 3)),
            reached_from: None,
            ptx_line: 12,
            opcode: "st.global.u32".into(),
            block: [1, 0, 0],
            thread: Some([2, 0, 0]),
            device: None,
            address: Some(16),
            buffer: Some("x".into()),
        };
        let wanted = "========= Invalid __global__ write\n\
            =========     at twice in k.rs:3 (PTX line 12, `st.global.u32`)\n\
            =========     by thread (2,0,0) in block (1,0,0)\n\
            =========     4 bytes at offset 8 of `x`, which has 8 bytes\n\
            =========     Address 0x10\n";
        assert_eq!(describe(&fault), wanted);
        let shared = Fault { kind: FaultKind::Uninitialised, opcode: "ld.shared.f32".into(), ..fault };
        assert!(describe(&shared).starts_with("========= Uninitialized __shared__ memory read\n"));
    }

    #[test]
    fn the_summary_counts_faults() {
        assert_eq!(summary(1), "========= ERROR SUMMARY: 1 error\n");
        assert_eq!(summary(2), "========= ERROR SUMMARY: 2 errors\n");
    }
}
