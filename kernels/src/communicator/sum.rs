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

/// What a chunk's sums are added to, and what becomes of them.
#[derive(Clone, Copy)]
struct Sums {
    /// Where they are stored.
    x: *mut Vector,
    /// What this rank gives to them.
    part: *const Vector,
    /// Whether they are added to what is in `x`.
    adds: bool,
}

impl Sums {
    /// Those that begin at a vector of [`all_reduce()`]'s `x`.
    ///
    /// # Safety
    /// There is such a vector.
    #[inline(always)]
    unsafe fn at(x: *mut Vector, part: *const Vector, first: u32) -> Self {
        let adds = !part.is_null();
        // SAFETY: this function's contract.
        unsafe {
            let x = x.add(first as usize);
            Sums { x, part: if adds { part.add(first as usize) } else { x }, adds }
        }
    }

    /// The new `x` at `at`: the sum over `ranks` ranks of what lies there in their slots, and of what was in `x` if it is
    /// added to that. Rounded once.
    ///
    /// # Safety
    /// There is such a vector in the slots of all these ranks, and nobody writes to it meanwhile.
    #[inline(always)]
    unsafe fn sum<T: Element>(&self, slots: &Slots, ranks: u32, at: u32) -> Vector {
        // SAFETY: this function's contract.
        let mut total = unsafe { sum::<T>(slots, ranks, at) };
        if self.adds {
            // SAFETY: as above.
            let residual = widen::<T>(unsafe { *self.x.add(at as usize) });
            total = eight(|i| residual[i] + total[i]);
        }
        narrow::<T>(total)
    }
}

/// A norm of rows.
#[derive(Clone, Copy)]
struct RowNorm {
    norm: u32,
    weight: *const Vector,
    bias: *const Vector,
    eps: f32,
    /// Vectors of a row.
    row: u32,
}

impl RowNorm {
    /// Normalises the rows that begin in the first `count` vectors of `x`, which the block's threads have stored.
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
            // The row was stored by other threads; and the norm of the row before is done.
            thread::sync_threads();
            // SAFETY: by this function's contract there are whole rows; all threads are here.
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

/// The sum over `ranks` ranks of what lies at `at` in their slots.
///
/// # Safety
/// There is such a vector in the slots of all these ranks, and nobody writes to it meanwhile.
#[inline(always)]
unsafe fn sum<T: Element>(slots: &Slots, ranks: u32, at: u32) -> [f32; 8] {
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
    total
}

/// Adds up the parts of all ranks, in `x`, and normalises the rows of the sums if a norm follows.
///
/// `x += sum of the ranks' part`, and without a `part`, which may be null, `x = sum of the ranks' x`. Then, as `norm` says
/// (a [`SumNorm`]), `out = norm(x) * weight + bias`, as [`norm`](crate::norm) has it, of rows of `row` vectors.
///
/// With one of `shots` each rank reads all of what the others have. With two it sums up an Nth of every chunk, and takes the
/// sums of the others in a second exchange.
///
/// # Safety
/// `x` has `vectors` vectors, and so has `part` unless it is null; what is added to `x` must be the same for all ranks.
/// `mailboxes` has the addresses of the mailboxes of `ranks` ranks, of which this is number `rank`; each has
/// [`MAILBOX_BYTES`](super::MAILBOX_BYTES), and its flags were zero before the group's first collective. `epochs` has
/// [`MAX_BLOCKS`](super::MAX_BLOCKS) words of this rank's own, zero before the first, too. All ranks launch the group's
/// collectives in the same order and with the same sizes, one after the other on each device, as
/// [`ExchangeShape`](super::ExchangeShape) says; all blocks are resident together. `abort` stays where it is until all have
/// run. With a norm, `out` has as many vectors as `x`, of whole rows, `weight` and `bias` are as for the norm, and chunks are
/// of whole rows.
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
    // SAFETY: by this kernel's contract there is a mailbox for each rank and an epoch for each block; all threads go the
    // same way, as the loop's bounds are the same for all; chunks lie within `x`, and parts of a chunk fit its slot.
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
                // The last ranks' shares may be shorter, or empty. Not zero, as the compiler cannot know.
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
