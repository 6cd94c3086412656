//! A ring of tiles in shared memory: filled by one lane, emptied by warps.

use cuda_std::prelude::*;
use cuda_std::ptx::{control, mbarrier};
use cuda_std::unroll::hidden;

/// The ring. For each of its places there are two mbarriers: of one phase the first ends when the tile has come, and the second
/// when all warps have read it.
#[derive(Clone, Copy)]
pub struct Ring {
    /// Offset of the tiles in shared memory.
    pub tiles: u32,
    /// Offset of the barriers: those of full places, then those of empty ones.
    pub barriers: u32,
    /// Places.
    pub stages: u32,
}

/// Bytes of the barriers of a ring.
pub const fn barrier_bytes(stages: u32) -> u32 {
    2 * 8 * stages
}

impl Ring {
    /// Sets the barriers up, for `readers` warps that read every tile.
    ///
    /// # Safety
    /// One thread calls this; all others use the barriers behind a barrier of the block.
    #[inline(always)]
    pub unsafe fn set_up(self, readers: u32) {
        let mut at = RingPlace::default();
        while at.stage < self.stages {
            // SAFETY: the barriers are used by nobody yet, by this function's contract.
            unsafe {
                mbarrier::init(self.full(at), 1);
                mbarrier::init(self.empty(at), readers);
            }
            at.stage += 1;
        }
        mbarrier::fence_init();
    }

    /// Fills the place at `at`, when it was read by all or never filled, and goes on to the next: `load` starts copies of so many
    /// bytes, for the barrier that it is given.
    ///
    /// # Safety
    /// The barriers are set up, and one thread alone fills the ring.
    #[inline(always)]
    pub unsafe fn fill(self, at: &mut RingPlace, bytes: u32, load: impl FnOnce(u32)) {
        // SAFETY: the barriers are set up, by this function's contract, and the place is free then.
        unsafe {
            mbarrier::wait(self.empty(*at), at.parity ^ 1);
            self.fill_free(at, bytes, load);
        }
    }

    /// Fills the ring for the first time, with as many of the tiles from `first` to `last` as it has places, and returns the number of
    /// the next one. Ahead of the wait for the launches ahead `early` starts copies of what no launch writes, and behind it `late` those of the
    /// rest, both with the tile's place in shared memory, its number, and the barrier. Together they bring `bytes`, which a place is apart from the next.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill); nothing has been filled yet, and there is a tile.
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
        // The compiler must not write these loops out, nor test ahead of them: copies of what is in them would never run.
        loop {
            let to = place(early_at);
            // SAFETY: this function's contract is the same, and all places are free in the first round.
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

    /// [`fill`](Self::fill) with a place that is known to be free.
    ///
    /// # Safety
    /// As for that, and the place is free.
    #[inline(always)]
    unsafe fn fill_free(self, at: &mut RingPlace, bytes: u32, load: impl FnOnce(u32)) {
        let full = self.full(*at);
        // SAFETY: the barriers are set up, and their phases lack this thread's arrival, by this function's contract.
        unsafe { mbarrier::arrive_expect(full, bytes) };
        load(full);
        at.advance(self.stages);
    }

    /// Does `work` with the tile at `at`, when it has come, gives its place back, and goes on to the next.
    ///
    /// # Safety
    /// The barriers are set up; all lanes of each reading warp are here together, and no longer use the tile when `work` is done.
    #[inline(always)]
    pub unsafe fn read<R>(self, at: &mut RingPlace, work: impl FnOnce() -> R) -> R {
        let give_back = |at| {
            if warp::lane_id() == 0 {
                // SAFETY: the barriers are set up, and every warp arrives once, by this function's contract.
                unsafe { mbarrier::arrive(self.empty(at)) };
            }
        };
        // SAFETY: this function's contract is the same.
        unsafe { self.read_giving(at, work, give_back) }
    }

    /// [`read`](Self::read), with another way to give a place back.
    ///
    /// # Safety
    /// As for that; `give_back` arrives once for each warp that reads the place.
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

    /// Waits until all places have been given back: from then on nobody arrives here any more. To have heard that of the last
    /// place would not do, since arrivals from other blocks may overtake each other.
    ///
    /// # Safety
    /// The barriers are set up, and this thread alone has filled the ring, up to `at`.
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

    /// The barrier that says that a tile has come.
    #[inline(always)]
    pub fn full(self, at: RingPlace) -> u32 {
        self.barriers + 8 * at.stage
    }

    /// The barrier that says that a tile was read by all.
    #[inline(always)]
    pub fn empty(self, at: RingPlace) -> u32 {
        self.full(at) + 8 * self.stages
    }
}

/// A place in a ring, and the parity of the round.
#[derive(Clone, Copy, Default)]
pub struct RingPlace {
    /// The place, from 0.
    pub stage: u32,
    /// 0 in the first round, and then by turns.
    pub parity: u32,
}

impl RingPlace {
    /// Goes on to the next place.
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
    fn places_come_by_turns_and_rounds_alternate() {
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
