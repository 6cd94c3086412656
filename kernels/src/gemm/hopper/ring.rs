//! A ring of tiles in shared memory. One lane fills it, and warps empty it.

use cuda_std::prelude::*;
use cuda_std::ptx::{control, mbarrier};
use cuda_std::unroll::hidden;

/// A ring of slots in shared memory, each with two mbarriers. A phase of the first ends when a tile has arrived, and a
/// phase of the second when all warps have read it.
#[derive(Clone, Copy)]
pub struct Ring {
    /// Offset of the first slot in shared memory.
    pub tiles: u32,
    /// Offset of the barriers: the full barriers of all slots, then the empty ones.
    pub barriers: u32,
    /// Number of slots.
    pub stages: u32,
}

/// Bytes of the barriers of a ring.
pub const fn barrier_bytes(stages: u32) -> u32 {
    2 * 8 * stages
}

impl Ring {
    /// Initialises the barriers for `readers` warps that read every tile.
    ///
    /// # Safety
    /// One thread calls this. All others use the barriers only after a barrier of the block.
    #[inline(always)]
    pub unsafe fn set_up(self, readers: u32) {
        // SAFETY: the contract is the same.
        unsafe { self.set_up_for(1, readers) }
    }

    /// Does the same as [`set_up`](Self::set_up) for tiles that `fillers` arrivals fill.
    ///
    /// # Safety
    /// As for [`set_up`](Self::set_up).
    #[inline(always)]
    pub unsafe fn set_up_for(self, fillers: u32, readers: u32) {
        let mut at = RingPlace::default();
        while at.stage < self.stages {
            // SAFETY: no thread uses the barriers yet, by this function's contract.
            unsafe {
                mbarrier::init(self.full(at), fillers);
                mbarrier::init(self.empty(at), readers);
            }
            at.stage += 1;
        }
        mbarrier::fence_init();
    }

    /// Waits until the slot at `at` is free, fills it, and advances `at`. `load` starts copies of `bytes` bytes that
    /// report to the barrier it is given.
    ///
    /// # Safety
    /// The barriers are set up, and only one thread fills the ring.
    #[inline(always)]
    pub unsafe fn fill(self, at: &mut RingPlace, bytes: u32, load: impl FnOnce(u32)) {
        // SAFETY: the barriers are set up, by this function's contract, and the slot is free after the wait.
        unsafe {
            mbarrier::wait(self.empty(*at), at.parity ^ 1);
            self.fill_free(at, bytes, load);
        }
    }

    /// Fills the ring for the first time and returns the number of the next tile. Fills one slot for each tile from
    /// `first` to `last`, as far as the ring has slots.
    ///
    /// `early` runs before the wait for earlier launches and starts copies of data that no launch writes. `late` runs
    /// after it and starts the remaining copies. Both take the slot's offset in shared memory, the tile's number, and
    /// the barrier. Together they bring `bytes` bytes to each slot, which is also the distance between slots.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill). No slot has been filled yet, and at least one tile exists.
    #[inline(always)]
    pub unsafe fn fill_first(
        self,
        at: &mut RingPlace,
        (first, last): (u32, u32),
        bytes: u32,
        early: impl Fn(u32, u32, u32),
        late: impl Fn(u32, u32, u32),
    ) -> u32 {
        let place = |at: RingPlace| self.tiles + at.stage * bytes;
        let end = last.min(first + self.stages);
        let (mut step, mut early_at) = (first, *at);
        // `hidden` keeps the compiler from unrolling the loops or testing before them, which would add code that never
        // runs.
        loop {
            let to = place(early_at);
            // SAFETY: the contract is the same, and all slots are free in the first round.
            unsafe { self.fill_free(&mut early_at, bytes, |full| early(to, step, full)) };
            step = hidden(step + 1);
            if step >= end {
                break;
            }
        }
        control::begin_dependent();
        step = first;
        loop {
            late(place(*at), step, self.full(*at));
            at.advance(self.stages);
            step = hidden(step + 1);
            if step >= end {
                return step;
            }
        }
    }

    /// Does the same as [`fill`](Self::fill) for a slot that is known to be free.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill), and the slot is free.
    #[inline(always)]
    unsafe fn fill_free(self, at: &mut RingPlace, bytes: u32, load: impl FnOnce(u32)) {
        let full = self.full(*at);
        // SAFETY: the barriers are set up, and the phase still lacks this thread's arrival, by this function's
        // contract.
        unsafe { mbarrier::arrive_expect(full, bytes) };
        load(full);
        at.advance(self.stages);
    }

    /// Waits for the tile at `at`, runs `work` on it, releases its slot, and advances `at`.
    ///
    /// # Safety
    /// The barriers are set up. All lanes of each reading warp call this together and no longer use the tile when
    /// `work` returns.
    #[inline(always)]
    pub unsafe fn read<R>(self, at: &mut RingPlace, work: impl FnOnce() -> R) -> R {
        let give_back = |at| {
            if warp::lane_id() == 0 {
                // SAFETY: the barriers are set up, and every warp arrives once, by this function's contract.
                unsafe { mbarrier::arrive(self.empty(at)) };
            }
        };
        // SAFETY: the contract is the same, and one lane of each warp arrives.
        unsafe { self.read_giving(at, work, give_back) }
    }

    /// Does the same as [`read`](Self::read), but calls `give_back` to release the slot.
    ///
    /// # Safety
    /// As for [`read`](Self::read). `give_back` arrives once for each warp that reads the slot.
    #[inline(always)]
    pub unsafe fn read_giving<R>(
        self,
        at: &mut RingPlace,
        work: impl FnOnce() -> R,
        give_back: impl FnOnce(RingPlace),
    ) -> R {
        // SAFETY: the barriers are set up, by this function's contract.
        unsafe { mbarrier::wait(self.full(*at), at.parity) };
        let result = work();
        give_back(*at);
        at.advance(self.stages);
        result
    }

    /// Waits until all slots have been released. From then on no other block arrives at the barriers.
    ///
    /// It is not enough to wait for the last slot, since arrivals from other blocks may overtake each other.
    ///
    /// # Safety
    /// The barriers are set up, and only this thread has filled the ring, up to `at`.
    #[inline(always)]
    pub unsafe fn drain(self, mut at: RingPlace) {
        let mut left = self.stages;
        while left > 0 {
            // SAFETY: the barriers are set up, by this function's contract.
            unsafe { mbarrier::wait(self.empty(at), at.parity ^ 1) };
            at.advance(self.stages);
            left = hidden(left - 1);
        }
    }

    /// Returns the barrier whose phase ends when the slot's tile has arrived.
    #[inline(always)]
    pub fn full(self, at: RingPlace) -> u32 {
        self.barriers + 8 * at.stage
    }

    /// Returns the barrier whose phase ends when all warps have read the slot's tile.
    #[inline(always)]
    pub fn empty(self, at: RingPlace) -> u32 {
        self.full(at) + 8 * self.stages
    }
}

/// A slot of a ring, and the parity of the current round.
#[derive(Clone, Copy, Default)]
pub struct RingPlace {
    /// The slot's index, from 0.
    pub stage: u32,
    /// 0 in the first round, then alternately 1 and 0.
    pub parity: u32,
}

impl RingPlace {
    /// Advances to the next slot.
    #[inline(always)]
    pub fn advance(&mut self, stages: u32) {
        self.stage += 1;
        if self.stage == stages {
            *self = RingPlace { stage: 0, parity: self.parity ^ 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn slots_repeat_and_the_parity_alternates() {
        let mut at = RingPlace::default();
        let places: Vec<_> = (0..7)
            .map(|_| {
                let place = (at.stage, at.parity);
                at.advance(3);
                place
            })
            .collect();
        assert_eq!(places, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 0)]);
    }
}
