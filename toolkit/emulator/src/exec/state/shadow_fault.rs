//! Faults that the shadow of shared memory reports.

use crate::fault::{FaultKind, Violation};

/// The value of `Cell::in_flight` if an mbarrier is stored in the cell.
pub(super) const MBARRIER: u16 = u16::MAX;

/// Names a thread. `warps` has the number of warps in a block and in its cluster.
pub(super) fn name(thread: usize, (block, cluster): (usize, usize)) -> String {
    let threads = block * 32;
    if cluster > block {
        format!("thread {} of block {} of the cluster", thread % threads, thread / threads)
    } else {
        format!("thread {thread}")
    }
}

#[cold]
pub(super) fn race(
    at: usize,
    bytes: usize,
    (thread, does): (usize, &str),
    (other, did): (usize, &str),
    warps: (usize, usize),
) -> Box<Violation> {
    let (thread, other) = (name(thread, warps), name(other, warps));
    let message = format!(
        "{thread} {does} {bytes} bytes at offset {at:#x} of shared memory that {other} {did}, with no barrier between"
    );
    Violation::new(FaultKind::SharedRace, message).address(at as u64).buffer("shared memory")
}

#[cold]
pub(super) fn in_flight(thread: u16, at: usize, does: &str, warps: (usize, usize)) -> Box<Violation> {
    if thread == MBARRIER {
        let message = format!("{does} offset {at:#x} of shared memory, where an mbarrier lives");
        return Violation::new(FaultKind::Mbarrier, message).address(at as u64).buffer("shared memory");
    }
    let message = format!(
        "{does} offset {at:#x} of shared memory while the asynchronous copy of {} still writes it: a wait is missing",
        name(usize::from(thread) - 1, warps)
    );
    Violation::new(FaultKind::AsyncRegion, message).address(at as u64).buffer("shared memory")
}

#[cold]
pub(super) fn async_read(at: usize) -> Box<Violation> {
    let message = format!(
        "writes offset {at:#x} of shared memory while an asynchronous copy or product still reads it: a wait is missing"
    );
    Violation::new(FaultKind::AsyncRegion, message).address(at as u64).buffer("shared memory")
}

#[cold]
pub(super) fn unproxied(at: usize, writer: u16, warps: (usize, usize)) -> Box<Violation> {
    let writer = name(writer.into(), warps);
    let message = format!(
        "an asynchronous copy or product reads offset {at:#x} of shared memory, which {writer} wrote, with no `fence.proxy.async` between"
    );
    Violation::new(FaultKind::MissingProxyFence, message).address(at as u64).buffer("shared memory")
}
