//! Sums over all ranks.

use cuda_std::prelude::*;
use cuda_std::ptx::memory::load_l2;
use cuda_std::unroll::{eight, unroll};
use cuda_std::vector::Vector;

use super::MAX_RANKS;
use super::exchange::{Exchange, Slots, each};
use crate::element::{Bf16, Element, F16};
use crate::vector::{narrow, widen};

/// The sum over `ranks` ranks of what lies at `at` in their slots.
///
/// # Safety
/// There is such a vector in the slots of all these ranks, and nobody writes to it meanwhile.
#[inline(always)]
unsafe fn sum<T: Element>(slots: &Slots, ranks: u32, at: u32) -> Vector {
    let mut held = [Vector::default(); MAX_RANKS as usize];
    // All on their way together.
    unroll::<{ MAX_RANKS as usize }>(|rank| {
        if (rank as u32) < ranks {
            // SAFETY: this function's contract.
            held[rank] = unsafe { load_l2(slots[rank].add(at as usize)) };
        }
    });
    let mut total = widen::<T>(held[0]);
    unroll::<{ MAX_RANKS as usize - 1 }>(|before| {
        if (before as u32) + 1 < ranks {
            let more = widen::<T>(held[before + 1]);
            total = eight(|i| total[i] + more[i]);
        }
    });
    narrow::<T>(total)
}

/// Replaces `x` by the sum of all ranks' `x`. Each rank reads all of what the others have.
///
/// # Safety
/// `x` has `vectors` vectors. `mailboxes` has the addresses of the mailboxes of `ranks` ranks, of which this is number
/// `rank`; each has [`MAILBOX_BYTES`](super::MAILBOX_BYTES), and its flags were zero before the group's first collective.
/// `epochs` has [`MAX_BLOCKS`](super::MAX_BLOCKS) words of this rank's own, zero before the first, too. All ranks launch the
/// group's collectives in the same order and with the same sizes, one after the other on each device, as
/// [`ExchangeShape`](super::ExchangeShape) says; all blocks are resident together. `abort` stays where it is until all have
/// run.
#[kernel(max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn all_reduce<T: Element>(
    x: *mut Vector,
    vectors: u32,
    chunk: u32,
    mailboxes: *const u64,
    epochs: *mut u32,
    abort: *const u32,
    rank: u32,
    ranks: u32,
) {
    // SAFETY: by this kernel's contract there is a mailbox for each rank and an epoch for each block; all threads go the
    // same way, as the loop's bounds are the same for all; chunks lie within `x`.
    unsafe {
        let mut exchange = Exchange::resume(mailboxes, epochs, abort, (rank, ranks));
        let mut first = thread::block_idx_x() * chunk;
        while first < vectors {
            let (x, count) = (x.add(first as usize), chunk.min(vectors - first));
            if !exchange.give(count, |i| *x.add(i as usize)) {
                return;
            }
            let slots = exchange.slots();
            each(count, |i| *x.add(i as usize) = sum::<T>(&slots, ranks, i));
            first += thread::grid_dim_x() * chunk;
        }
        exchange.suspend(epochs);
    }
}

/// As [`all_reduce()`]. Each rank sums up an Nth of every chunk, and takes the sums of the others in a second exchange.
///
/// # Safety
/// As for [`all_reduce()`].
#[kernel(max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn all_reduce_two_shot<T: Element>(
    x: *mut Vector,
    vectors: u32,
    chunk: u32,
    mailboxes: *const u64,
    epochs: *mut u32,
    abort: *const u32,
    rank: u32,
    ranks: u32,
) {
    // SAFETY: as in `all_reduce`; parts of a chunk fit its slot.
    unsafe {
        let mut exchange = Exchange::resume(mailboxes, epochs, abort, (rank, ranks));
        let mut first = thread::block_idx_x() * chunk;
        while first < vectors {
            let (x, count) = (x.add(first as usize), chunk.min(vectors - first));
            if !exchange.give(count, |i| *x.add(i as usize)) {
                return;
            }
            let slots = exchange.slots();
            // The last ranks' parts may be shorter, or empty. Not zero, as the compiler cannot know.
            let part = count.div_ceil(ranks.max(1)).max(1);
            let begin = (rank * part).min(count);
            if !exchange.give(part.min(count - begin), |i| sum::<T>(&slots, ranks, begin + i)) {
                return;
            }
            each(count, |i| {
                let from = i / part;
                *x.add(i as usize) = load_l2(exchange.slot(from).add((i - from * part) as usize));
            });
            first += thread::grid_dim_x() * chunk;
        }
        exchange.suspend(epochs);
    }
}
