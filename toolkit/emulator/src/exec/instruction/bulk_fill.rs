//! Ends of bulk copies to shared memory.
//!
//! A copy ends at the latest moment that the program allows: when a thread tests its mbarrier for a phase that lacks
//! only the copy's bytes.

use crate::exec::state::block::BlockState;
use crate::exec::state::bulk::{PIECE, PendingFill};
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::Memory;

/// Ends the copies that an mbarrier waits for.
pub(crate) fn end_fills(block: &mut BlockState, memory: &Memory, clocks: usize, barrier: u64) -> Checked<()> {
    let all = std::mem::take(&mut block.fills);
    let (ending, others): (Vec<PendingFill>, _) = all.into_iter().partition(|fill| fill.barrier == barrier);
    block.fills = others;
    for PendingFill { bulk, .. } in ending {
        let mut now = vec![0; bulk.data.len()];
        bulk.read_global(memory, &mut now)?;
        if let Some(place) = (0..now.len()).find(|&place| now[place] != bulk.data[place]) {
            let message = format!("byte {place} of a bulk copy's source was written while the copy was in flight");
            return Err(Violation::new(FaultKind::AsyncRegion, message));
        }
        let Some((thread, epoch)) = note_filled(block, clocks, barrier, now.len()) else { continue };
        for (at, piece) in bulk.pieces().zip(now.as_chunks::<PIECE>().0) {
            block.shared.end_copy(at, piece, thread, epoch);
        }
    }
    Ok(())
}

/// Records that a copy has filled bytes. Returns the thread and the epoch that represent the copy.
fn note_filled(block: &mut BlockState, clocks: usize, at: u64, bytes: usize) -> Option<(usize, u32)> {
    block.fills_ended += 1;
    block.events += 1;
    let epoch = block.fills_ended;
    let barrier = block.mbarriers.get_mut(&at)?;
    let thread = (clocks - 1) * 32 + barrier.agent;
    barrier.arrived.add_thread(thread, epoch, clocks);
    barrier.bytes -= bytes as i64;
    barrier.step(clocks);
    Some((thread, epoch))
}
