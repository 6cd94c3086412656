//! Exchanges between blocks with the same number on different devices.

use cuda_std::flag::{load_acquire, load_relaxed, store_release};
use cuda_std::prelude::*;
use cuda_std::ptx::memory::store_l2;
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use super::{CAPACITY, FLAG_VECTORS, MAX_BLOCKS, MAX_RANKS};

/// Polls of a flag between reads of the abort word. A read of the abort word costs a round trip to the host.
const LOOKS: u32 = 32;

/// The slots of all ranks, null for ranks that do not exist.
pub(super) type Slots = [*const Vector; MAX_RANKS as usize];

/// A block's view of its group.
#[derive(Clone, Copy)]
pub(super) struct Exchange {
    /// The addresses of the ranks' mailboxes.
    pub(super) mailboxes: *const u64,
    /// The abort word, which the host sets when a rank has failed.
    pub(super) abort: *const u32,
    /// This rank's number.
    pub(super) rank: u32,
    /// The number of ranks.
    pub(super) ranks: u32,
    /// The number of the current exchange, modulo 2^32.
    epoch: u32,
}

impl Exchange {
    /// Resumes this block's sequence of exchanges where the last launch left it.
    ///
    /// A kernel makes all of its exchanges through one such value, in the same order on all ranks.
    ///
    /// # Safety
    /// As for the kernels that call this: `mailboxes` has the addresses of `ranks` mailboxes, `epochs` has a number for
    /// each block, and no other launch on this device uses them meanwhile.
    #[inline(always)]
    pub(super) unsafe fn resume(
        mailboxes: *const u64,
        epochs: *const u32,
        abort: *const u32,
        (rank, ranks): (u32, u32),
    ) -> Self {
        // SAFETY: `epochs` has an entry for each block.
        let epoch = unsafe { *epochs.add(thread::block_idx_x() as usize) };
        Exchange { mailboxes, abort, rank, ranks, epoch }
    }

    /// Stores the number of the last exchange for the next launch. Must follow a [`give`](Self::give).
    ///
    /// # Safety
    /// As for [`resume`](Self::resume), with the same `epochs`.
    #[inline(always)]
    pub(super) unsafe fn suspend(self, epochs: *mut u32) {
        if thread::thread_idx_x() == 0 {
            // SAFETY: `epochs` has an entry for each block. All threads read theirs before the barriers of `give`.
            unsafe { *epochs.add(thread::block_idx_x() as usize) = self.epoch };
        }
    }

    /// Returns the mailbox of a rank.
    ///
    /// # Safety
    /// `rank` is less than the number of ranks.
    #[inline(always)]
    unsafe fn mailbox(&self, rank: u32) -> *mut Vector {
        // SAFETY: there is an address for each rank.
        unsafe { *self.mailboxes.add(rank as usize) as *mut Vector }
    }

    /// Returns the slot in `rank`'s mailbox that its block with this block's number fills in the current exchange. A
    /// slot has [`CAPACITY`] vectors.
    ///
    /// # Safety
    /// `rank` is less than the number of ranks.
    #[inline(always)]
    pub(super) unsafe fn slot(&self, rank: u32) -> *mut Vector {
        let slot = (self.epoch & 1) * MAX_BLOCKS + thread::block_idx_x();
        // SAFETY: after its flags, a mailbox has two slots for each of `MAX_BLOCKS` blocks.
        unsafe { self.mailbox(rank).add((FLAG_VECTORS + slot * CAPACITY) as usize) }
    }

    /// Returns the slots of all ranks in the current exchange.
    ///
    /// # Safety
    /// There are at most [`MAX_RANKS`] ranks.
    #[inline(always)]
    pub(super) unsafe fn slots(&self) -> Slots {
        let mut slots = [core::ptr::null(); MAX_RANKS as usize];
        cuda_std::unroll::unroll::<{ MAX_RANKS as usize }>(|rank| {
            if (rank as u32) < self.ranks {
                // SAFETY: the rank was just checked.
                slots[rank] = unsafe { self.slot(rank as u32) };
            }
        });
        slots
    }

    /// Returns the flag in `to`'s mailbox that holds the epoch of `from`'s block with this block's number.
    ///
    /// # Safety
    /// Both are less than the number of ranks.
    #[inline(always)]
    unsafe fn flag(&self, to: u32, from: u32) -> *mut u32 {
        // SAFETY: a mailbox begins with a flag for each rank and block.
        unsafe { self.mailbox(to).cast::<u32>().add((from * MAX_BLOCKS + thread::block_idx_x()) as usize) }
    }

    /// Waits until the matching blocks of all ranks have arrived. Afterwards all threads of this block see everything
    /// that those blocks wrote before they arrived.
    ///
    /// Returns false if the group was aborted. The kernel must then return.
    ///
    /// # Safety
    /// As for [`resume`](Self::resume). All threads of the block call this together, in whole warps.
    #[inline(always)]
    unsafe fn meet(&self) -> bool {
        let aborted = shared_array![u32; 1];
        // Threads of the first warp write the flags, so the whole block's writes must come first.
        thread::sync_threads();
        if warp::warp_id() == 0 {
            let peer = warp::lane_id();
            let mut left = false;
            if peer < self.ranks {
                // SAFETY: the peer is a rank. Flags and the abort word are accessed only with these operations while
                // kernels run.
                unsafe {
                    store_release(self.flag(peer, self.rank), self.epoch);
                    let flag = self.flag(self.rank, peer);
                    let mut looks = 0;
                    // A peer may already have written the flag of the next exchange, but no later one.
                    while (load_acquire(flag).wrapping_sub(self.epoch) as i32) < 0 {
                        looks += 1;
                        if looks % LOOKS == 0 && load_relaxed(self.abort) != 0 {
                            left = true;
                            break;
                        }
                    }
                }
            }
            // SAFETY: all lanes of the first warp are here. Other threads read the word after the barrier, and it is
            // not written again before the next barrier.
            unsafe {
                let any = warp::warp_vote_any(FULL_MASK, left);
                if peer == 0 {
                    *aborted = any.into();
                }
            }
        }
        thread::sync_threads();
        // SAFETY: the word was written before the barrier.
        unsafe { *aborted == 0 }
    }

    /// Runs the next exchange: writes `count` vectors for the other ranks and waits until all ranks have written
    /// theirs.
    ///
    /// Returns false if the group was aborted. The kernel must then return.
    ///
    /// # Safety
    /// As for [`resume`](Self::resume). All threads of the block call this together, in whole warps. `count` is at most
    /// [`CAPACITY`].
    #[inline(always)]
    pub(super) unsafe fn give(&mut self, count: u32, vector: impl Fn(u32) -> Vector) -> bool {
        self.epoch = self.epoch.wrapping_add(1);
        // SAFETY: this block's rank exists, and its slot has room for the vectors. The rest is this function's
        // contract.
        unsafe {
            let own = self.slot(self.rank);
            each(count, |i| store_l2(own.add(i as usize), vector(i)));
            self.meet()
        }
    }
}

/// Calls `body` with each number below `count`, distributed over the threads of the block in turn.
#[inline(always)]
pub(super) fn each(count: u32, mut body: impl FnMut(u32)) {
    // All threads run the same number of iterations. Otherwise the compiler gives idle threads a separate path to the
    // next barrier.
    let mut first = 0;
    while first < count {
        let i = first + thread::thread_idx_x();
        if i < count {
            body(i);
        }
        first += thread::block_dim_x();
    }
}
