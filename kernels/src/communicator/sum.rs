//! Sums over all ranks.

use cuda_std::prelude::*;
use cuda_std::ptx::memory::load_l2;
use cuda_std::unroll::{eight, unroll};
use cuda_std::vector::Vector;

use super::MAX_RANKS;
use super::exchange::{Exchange, Slots, each};
use crate::element::{Bf16, Element, F16};
use crate::norm::{SumNorm, layer_norm_row, rms_norm_row};
use crate::vector::{narrow, widen};

/// The source and destination of one chunk's sums.
#[derive(Clone, Copy)]
struct Sums {
    /// The destination of the sums.
    x: *mut Vector,
    /// This rank's addends.
    part: *const Vector,
    /// Whether the sums are added to the previous contents of `x` instead of replacing them.
    adds: bool,
}

impl Sums {
    /// Returns the sums of the chunk that begins at vector `first` of [`all_reduce()`]'s `x`.
    ///
    /// # Safety
    /// `first` is a valid index into `x`, and into `part` if that is not null.
    #[inline(always)]
    unsafe fn at(x: *mut Vector, part: *const Vector, first: u32) -> Self {
        let adds = !part.is_null();
        // SAFETY: by this function's contract, the offset is within both arrays.
        unsafe {
            let x = x.add(first as usize);
            Sums { x, part: if adds { part.add(first as usize) } else { x }, adds }
        }
    }

    /// Computes the new `x` at `at`: the sum of vector `at` of the slots of `ranks` ranks, plus the previous `x` if
    /// [`Self::adds`]. Rounds once.
    ///
    /// # Safety
    /// The slots of all these ranks have this vector, and no thread writes to it meanwhile. If [`Self::adds`], `x` has
    /// it too.
    #[inline(always)]
    unsafe fn sum<T: Element>(&self, slots: &Slots, ranks: u32, at: u32) -> Vector {
        // SAFETY: this function's contract is the same as the callee's.
        let mut total = unsafe { sum::<T>(slots, ranks, at) };
        if self.adds {
            // SAFETY: `x` has this vector, by this function's contract.
            let residual = widen::<T>(unsafe { *self.x.add(at as usize) });
            total = eight(|i| residual[i] + total[i]);
        }
        narrow::<T>(total)
    }
}

/// The norm applied to the finished rows, if any.
#[derive(Clone, Copy)]
struct RowNorm {
    norm: u32,
    weight: *const Vector,
    bias: *const Vector,
    eps: f32,
    /// Vectors per row.
    row: u32,
}

impl RowNorm {
    /// Normalises the rows that begin in the first `count` vectors of `x`, which the block's threads have just stored.
    /// Returns at once if the norm is [`SumNorm::None`].
    ///
    /// # Safety
    /// As for [`all_reduce()`]. All threads of the block call this together.
    #[inline(always)]
    unsafe fn apply<T: Element>(&self, x: *mut Vector, out: *mut Vector, count: u32) {
        let RowNorm { norm, weight, bias, eps, row } = *self;
        if norm == SumNorm::None as u32 {
            return;
        }
        let mut at = 0;
        while at < count {
            // Other threads stored the row, and the norm of the previous row may still use shared memory.
            thread::sync_threads();
            // SAFETY: rows are whole, by this function's contract, and all threads of the block are here.
            unsafe {
                let (x, out) = (x.add(at as usize), out.add(at as usize));
                if norm == SumNorm::Rms as u32 {
                    rms_norm_row::<T>(x, core::ptr::null(), weight, out, eps, row);
                } else {
                    layer_norm_row::<T>(x, core::ptr::null(), weight, bias, out, eps, row);
                }
            }
            at += row;
        }
    }
}

/// Returns the sum over `ranks` ranks of vector `at` of their slots.
///
/// # Safety
/// The slots of all these ranks have this vector, and no thread writes to it meanwhile.
#[inline(always)]
unsafe fn sum<T: Element>(slots: &Slots, ranks: u32, at: u32) -> [f32; 8] {
    let mut parts = [Vector::default(); MAX_RANKS as usize];
    // Issue all loads before the first is used.
    unroll::<{ MAX_RANKS as usize }>(|rank| {
        if (rank as u32) < ranks {
            // SAFETY: the slot has this vector, by this function's contract.
            parts[rank] = unsafe { load_l2(slots[rank].add(at as usize)) };
        }
    });
    let mut total = widen::<T>(parts[0]);
    unroll::<{ MAX_RANKS as usize - 1 }>(|before| {
        if (before as u32) + 1 < ranks {
            let more = widen::<T>(parts[before + 1]);
            total = eight(|i| total[i] + more[i]);
        }
    });
    total
}

/// Sums the parts of all ranks into `x`, and normalises the rows of the result if a norm follows.
///
/// With `part`, computes `x += sum of the ranks' part`. If `part` is null, computes `x = sum of the ranks' x`. Then,
/// depending on `norm` (a [`SumNorm`]), computes `out = norm(x) * weight + bias` on rows of `row` vectors, as in
/// [`norm`](crate::norm).
///
/// `shots` is the number of exchanges. With one, each rank reads all of the other ranks' data. With two, each rank sums
/// one Nth of every chunk, and takes the other sums from the other ranks in a second exchange.
///
/// # Safety
/// - `x` has `vectors` vectors, and so has `part` unless it is null. If `part` is not null, all ranks have the same
///   contents in `x`.
/// - `mailboxes` has the addresses of the mailboxes of `ranks` ranks, and this rank is number `rank`. Each mailbox has
///   [`MAILBOX_BYTES`](super::MAILBOX_BYTES), and its flags were zero before the group's first collective.
/// - `epochs` is this rank's own and has [`MAX_BLOCKS`](super::MAX_BLOCKS) words, which were zero before the group's
///   first collective.
/// - All ranks launch the group's collectives in the same order and with the same sizes, as
///   [`ExchangeShape`](super::ExchangeShape) says. On each device they run one after another. All blocks are resident
///   at the same time.
/// - `abort` stays valid until all kernels have finished.
/// - With a norm, `out` has as many vectors as `x`, rows are whole, chunks are whole rows, and `weight` and `bias` are
///   as for the norm.
#[kernel(max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn all_reduce<T: Element>(
    x: *mut Vector,
    part: *const Vector,
    vectors: u32,
    chunk: u32,
    shots: u32,
    norm: u32,
    weight: *const Vector,
    bias: *const Vector,
    out: *mut Vector,
    eps: f32,
    row: u32,
    mailboxes: *const u64,
    epochs: *mut u32,
    abort: *const u32,
    rank: u32,
    ranks: u32,
) {
    let then = RowNorm { norm, weight, bias, eps, row };
    // SAFETY: by this kernel's contract, there is a mailbox for each rank and an epoch for each block. All threads take
    // the same path, since the loop bounds are the same for all. Chunks are within `x`, and parts of a chunk fit its
    // slot.
    unsafe {
        let mut exchange = Exchange::resume(mailboxes, epochs, abort, (rank, ranks));
        let mut first = thread::block_idx_x() * chunk;
        while first < vectors {
            let (sums, count) = (Sums::at(x, part, first), chunk.min(vectors - first));
            if !exchange.give(count, |i| *sums.part.add(i as usize)) {
                return;
            }
            let slots = exchange.slots();
            if shots == 1 {
                each(count, |i| *sums.x.add(i as usize) = sums.sum::<T>(&slots, ranks, i));
            } else {
                // The last ranks' shares may be shorter, or empty. The `max` rules out zero, which the compiler cannot
                // do.
                let share = count.div_ceil(ranks.max(1)).max(1);
                let begin = (rank * share).min(count);
                if !exchange.give(share.min(count - begin), |i| sums.sum::<T>(&slots, ranks, begin + i)) {
                    return;
                }
                each(count, |i| {
                    let from = i / share;
                    *sums.x.add(i as usize) = load_l2(exchange.slot(from).add((i - from * share) as usize));
                });
            }
            then.apply::<T>(sums.x, out.wrapping_add(first as usize), count);
            first += thread::grid_dim_x() * chunk;
        }
        exchange.suspend(epochs);
    }
}
