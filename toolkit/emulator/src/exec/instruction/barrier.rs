//! Numbered barriers of a block.

use crate::exec::state::barrier::Barrier;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::BarrierVote;

/// The arrival of a warp at a barrier.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// The slot of the barrier's number.
    pub id: u32,
    /// The slot of the count of threads that must arrive. `None` means all living threads.
    pub count: Option<u32>,
    /// Whether the warp waits for the others.
    pub waits: bool,
    /// The vote that the warp takes part in.
    pub vote: Option<BarrierVote>,
}

/// Returns the fault of an instruction that only some lanes reached, although all living lanes must execute it
/// together.
#[cold]
pub(crate) fn divergent(mask: u32, live: u32) -> Box<Violation> {
    let message = format!("reached by lanes {mask:#010x} of the warp's living lanes {live:#010x} only");
    Violation::new(FaultKind::DivergentBarrier, message).lane(mask.trailing_zeros() as usize)
}

/// Lets a warp arrive at one of the block's barriers. `clocks` is the number of warps in a view.
pub(crate) fn arrive(
    barriers: &mut [Barrier],
    warp: &mut Warp,
    arrival: Arrival,
    clocks: usize,
    mask: u32,
) -> Checked<()> {
    let first = mask.trailing_zeros() as usize;
    let word = |slot: u32| warp.registers.words[slot as usize][first];
    let (id, expected) = (word(arrival.id) as usize, arrival.count.map(word));
    if mask != warp.live {
        return Err(divergent(mask, warp.live));
    }
    let fault = |message: String| Err(Violation::new(FaultKind::DivergentBarrier, message).lane(first));
    let Some(barrier) = barriers.get_mut(id) else {
        return fault(format!("there is no barrier {id}"));
    };
    if expected.is_some_and(|count| count == 0 || count % 32 != 0) {
        return fault("the count of threads must be a multiple of 32".into());
    }
    if barrier.arrived != 0 && barrier.expected != expected {
        return fault(format!("others expect {:?} threads at barrier {id}, this one {expected:?}", barrier.expected));
    }
    barrier.expected = expected;
    barrier.arrived += 32; // a warp counts as 32 threads
    if let Some(BarrierVote { predicate: (slot, negated), .. }) = arrival.vote {
        let predicate = warp.registers.masks[slot as usize];
        let votes = mask & if negated { !predicate } else { predicate };
        barrier.votes += votes.count_ones();
        barrier.voters += mask.count_ones();
    }
    warp.vote = arrival.vote;
    barrier.views.add(&mut warp.clock, clocks, mask);
    if arrival.waits {
        warp.waits_at = Some(id);
    }
    Ok(())
}
