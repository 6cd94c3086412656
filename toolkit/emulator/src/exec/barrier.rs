//! Barriers of a block, the numbered ones.

use super::clock::Gathering;
use super::machine::Machine;
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};

/// A barrier of the block.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Threads that have arrived.
    pub arrived: u32,
    /// Threads that must arrive; `None` is all that live.
    pub expected: Option<u32>,
    pub views: Gathering,
}

impl Machine<'_> {
    pub(super) fn barrier(
        &mut self,
        warp: &mut Warp,
        id: u32,
        count: Option<u32>,
        waits: bool,
        mask: u32,
    ) -> Checked<()> {
        let first = mask.trailing_zeros() as usize;
        let word = |slot: u32| warp.registers.words[slot as usize][first];
        let (id, expected) = (word(id) as usize, count.map(word));
        if mask != warp.live {
            let message = format!("reached by lanes {mask:#010x} of the warp's living lanes {:#010x} only", warp.live);
            return Err(Violation::new(FaultKind::DivergentBarrier, message).lane(first));
        }
        let fault = |message: String| Err(Violation::new(FaultKind::DivergentBarrier, message).lane(first));
        let Some(barrier) = self.block.barriers.get_mut(id) else {
            return fault(format!("there is no barrier {id}"));
        };
        if expected.is_some_and(|count| count == 0 || count % 32 != 0) {
            return fault("the count of threads must be a multiple of 32".into());
        }
        if barrier.arrived != 0 && barrier.expected != expected {
            return fault(format!(
                "others expect {:?} threads at barrier {id}, this one {expected:?}",
                barrier.expected
            ));
        }
        barrier.expected = expected;
        barrier.arrived += 32; // a warp counts as whole
        barrier.views.add(&mut warp.clock, warp.id, self.clocks, mask);
        if waits {
            warp.waits_at = Some(id);
        }
        Ok(())
    }
}
