//! A block's exchanges with the blocks of the same number on other devices.

use cuda_std::flag::{load_acquire, load_relaxed, store_release};
use cuda_std::prelude::*;
use cuda_std::ptx::memory::store_l2;
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use super::{CAPACITY, FLAG_VECTORS, MAX_BLOCKS, MAX_RANKS};

/// A look at the abort word costs a trip to the host: it comes after so many looks at a flag.
const LOOKS: u32 = 32;

/// Slots of all ranks; those of ranks that there are not are null.
pub(super) type Slots = [*const Vector; MAX_RANKS as usize];

/// What a block knows of its group.
#[derive(Clone, Copy)]
pub(super) struct Exchange {
    /// The addresses of the ranks' mailboxes.
    pub(super) mailboxes: *const u64,
    /// Set by the host when a rank has failed.
    pub(super) abort: *const u32,
    /// The rank that this is.
    pub(super) rank: u32,
    /// How many ranks there are.
    pub(super) ranks: u32,
    /// The number of the present exchange, modulo 2^32.
    epoch: u32,
}

impl Exchange {
    /// This block's exchanges up to now. All of them go through one such value, in the same order on all ranks.
    ///
    /// # Safety
    /// As for the kernels here: `mailboxes` has the addresses of `ranks` mailboxes, `epochs` a number for each block, and
    /// no other launch uses them meanwhile on this device.
    #[inline(always)]
    pub(super) unsafe fn resume(
        mailboxes: *const u64,
        epochs: *const u32,
        abort: *const u32,
        (rank, ranks): (u32, u32),
    ) -> Self {
        // SAFETY: there is an epoch for each block.
        let epoch = unsafe { *epochs.add(thread::block_idx_x() as usize) };
        Exchange { mailboxes, abort, rank, ranks, epoch }
    }

    /// Leaves the number of the last exchange for the next launch. Comes after a [`give`](Self::give).
    ///
    /// # Safety
    /// As for [`resume`](Self::resume), with the same `epochs`.
    #[inline(always)]
    pub(super) unsafe fn suspend(self, epochs: *mut u32) {
        if thread::thread_idx_x() == 0 {
            // SAFETY: there is an epoch for each block, which all threads have read before they met.
            unsafe { *epochs.add(thread::block_idx_x() as usize) = self.epoch };
        }
    }

    /// The mailbox of a rank.
    ///
    /// # Safety
    /// There is such a rank.
    #[inline(always)]
    unsafe fn mailbox(&self, rank: u32) -> *mut Vector {
        // SAFETY: there is an address for each rank.
        unsafe { *self.mailboxes.add(rank as usize) as *mut Vector }
    }

    /// Where a rank's block with this block's number leaves what it gives in the present exchange: [`CAPACITY`] vectors.
    ///
    /// # Safety
    /// There is such a rank.
    #[inline(always)]
    pub(super) unsafe fn slot(&self, rank: u32) -> *mut Vector {
        let slot = (self.epoch & 1) * MAX_BLOCKS + thread::block_idx_x();
        // SAFETY: a mailbox has two slots for each of `MAX_BLOCKS` blocks behind its flags.
        unsafe { self.mailbox(rank).add((FLAG_VECTORS + slot * CAPACITY) as usize) }
    }

    /// The slots of all ranks.
    ///
    /// # Safety
    /// There are no more ranks than [`MAX_RANKS`].
    #[inline(always)]
    pub(super) unsafe fn slots(&self) -> Slots {
        let mut slots = [core::ptr::null(); MAX_RANKS as usize];
        cuda_std::unroll::unroll::<{ MAX_RANKS as usize }>(|rank| {
            if (rank as u32) < self.ranks {
                // SAFETY: there is such a rank.
                slots[rank] = unsafe { self.slot(rank as u32) };
            }
        });
        slots
    }

    /// The flag in the mailbox of `to` by which this block's counterpart on `from` says how far it is.
    ///
    /// # Safety
    /// There are such ranks.
    #[inline(always)]
    unsafe fn flag(&self, to: u32, from: u32) -> *mut u32 {
        // SAFETY: a mailbox begins with a flag for each rank and block.
        unsafe { self.mailbox(to).cast::<u32>().add((from * MAX_BLOCKS + thread::block_idx_x()) as usize) }
    }

    /// Waits until the blocks of all ranks are here. Afterwards all threads of the block see what any of these blocks
    /// wrote before. False if the group was aborted: then the kernel must end.
    ///
    /// # Safety
    /// As for [`resume`](Self::resume). All threads of the block call this together, in whole warps.
    #[inline(always)]
    unsafe fn meet(&self) -> bool {
        let aborted = shared_array![u32; 1];
        // What the block's threads wrote comes before the flags, which are written by threads of the first warp.
        thread::sync_threads();
        if warp::warp_id() == 0 {
            let peer = warp::lane_id();
            let mut left = false;
            if peer < self.ranks {
                // SAFETY: there is such a rank; flags are accessed in this way only, and so is the abort word.
                unsafe {
                    store_release(self.flag(peer, self.rank), self.epoch);
                    let flag = self.flag(self.rank, peer);
                    let mut looks = 0;
                    // A peer may have written the flag of the next exchange already, but none beyond that.
                    while (load_acquire(flag).wrapping_sub(self.epoch) as i32) < 0 {
                        looks += 1;
                        if looks % LOOKS == 0 && load_relaxed(self.abort) != 0 {
                            left = true;
                            break;
                        }
                    }
                }
            }
            // SAFETY: all lanes of the first warp are here; the word is read behind the barrier, and not written again
            // before the next one.
            unsafe {
                let any = warp::warp_vote_any(FULL_MASK, left);
                if peer == 0 {
                    *aborted = any.into();
                }
            }
        }
        thread::sync_threads();
        // SAFETY: written before the barrier.
        unsafe { *aborted == 0 }
    }

    /// Begins the next exchange: leaves `count` vectors for the others, and waits until all have left theirs. False if the
    /// group was aborted: then the kernel must end.
    ///
    /// # Safety
    /// As for [`meet`](Self::meet), and `count` is at most [`CAPACITY`].
    #[inline(always)]
    pub(super) unsafe fn give(&mut self, count: u32, vector: impl Fn(u32) -> Vector) -> bool {
        self.epoch = self.epoch.wrapping_add(1);
        // SAFETY: this is one of the ranks, whose slot has room for the vectors; the rest is this function's contract.
        unsafe {
            let own = self.slot(self.rank);
            each(count, |i| store_l2(own.add(i as usize), vector(i)));
            self.meet()
        }
    }
}

/// Calls `body` with the numbers below `count`, dealt out to the threads of the block in turn.
#[inline(always)]
pub(super) fn each(count: u32, mut body: impl FnMut(u32)) {
    // All threads go round equally often: the compiler would give those that have nothing to do a way of their own to the
    // barrier that follows.
    let mut first = 0;
    while first < count {
        let i = first + thread::thread_idx_x();
        if i < count {
            body(i);
        }
        first += thread::block_dim_x();
    }
}
