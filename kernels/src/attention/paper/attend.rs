//! Attention of one thread block with one query, shared by v1 and v2.
//!
//! Four barriers order data that other warps write to shared memory: the query, the logits, the weights, and the warps'
//! sums of values. Two of them are inside [`block::reduce`], which has to wait anyway.
//!
//! Shared memory: 1 KiB for the query, 4 KiB for the warps' sums of values, 32 bytes for the reductions, and 4 bytes
//! per token for the logits. The logits are in dynamic shared memory, since their number is only known at launch.

use cuda_std::block;
use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::vector::HalfVector;

use super::head::Head;
use super::scores::scores;
use super::softmax::{capped, exponentials};
use super::values::weigh;
use super::{MAX_HEAD_SIZE, WARPS};
use crate::attention::LOG2_E;
use crate::element::Element;

/// Attention before the division by the sum of its weights, with everything needed to merge it with attention to other
/// tokens. `greatest` and `sum` are the same for all threads.
pub struct Attended {
    /// The greatest logit. Logits are in powers of two.
    pub greatest: f32,
    /// The sum of the weights, `2^(logit - greatest)`. At least 1 if there are tokens at all.
    pub sum: f32,
    /// The sum of the values with these weights. Thread `i < D / 2` has elements `2 i` and `2 i + 1`.
    pub values: [f32; 2],
}

/// Attends to the tokens of `head.span`. With a positive `cap`, logits have a softcap. `sink` returns a further weight
/// relative to the greatest logit.
///
/// # Safety
/// The inputs of `head` are valid. Dynamic shared memory has room for `head.span.slots(B)` numbers. All threads of a
/// block of [`THREADS`](super::THREADS) call this together.
#[inline(always)]
pub unsafe fn attend<T: Element, const D: u32, const B: u32>(
    head: &Head<D, B>,
    scale: f32,
    cap: f32,
    sink: impl Fn(f32) -> f32,
) -> Attended {
    let query = shared_array![f32; MAX_HEAD_SIZE as usize];
    let room_for_maxima = shared_array![f32; WARPS as usize];
    let room_for_sums = shared_array![f32; WARPS as usize];
    let partial = shared_array![f32; (WARPS * MAX_HEAD_SIZE) as usize];
    // One number per slot: the logit after phase 1, the weight after phase 2.
    let logits = dynamic_shared_mem::<f32>();

    let thread = thread::thread_idx_x();
    // SAFETY: the arrays have room for `D` elements, or for one number per warp. Data of other threads is read after a
    // barrier, and all threads of the block reach each barrier, by this function's contract.
    unsafe {
        if thread < D / 2 {
            let pair = T::Pair::from_bits(*head.query.cast::<u32>().add(thread as usize));
            // The hardware has powers of two but not of e: exp(x) = 2^(x log2(e)). Folding the factor in here costs
            // nothing.
            let scaled = pair.to_f32().map(|x| x * (scale * LOG2_E));
            *query.cast::<HalfVector>().add(thread as usize) = HalfVector::from_f32(scaled);
        }
        thread::sync_threads(); // The query is complete.

        let greatest = scores::<T, D, B>(head, query, logits);
        // The barrier in this reduction also completes the logits.
        let greatest = block::reduce::<WARPS>(greatest, room_for_maxima, f32::NEG_INFINITY, f32::max);

        let count = head.span.slots(B);
        // The greatest logit stays the greatest under a softcap.
        let greatest = if cap > 0.0 { capped(greatest, cap) } else { greatest };
        let sum = exponentials(logits, count, greatest, cap);
        // The barrier in this reduction also completes the weights.
        let sum = block::reduce::<WARPS>(sum, room_for_sums, 0.0, |a, b| a + b) + sink(greatest);

        weigh::<T, D, B>(head, logits, partial);
        thread::sync_threads(); // All warps' sums of values are complete.

        let mut values = [0.0; 2];
        if thread < D / 2 {
            for warp in 0..WARPS {
                let [a, b] = (*partial.add((warp * D) as usize).cast::<HalfVector>().add(thread as usize)).to_f32();
                values = [values[0] + a, values[1] + b];
            }
        }
        Attended { greatest, sum, values }
    }
}

/// Writes a row of the output: values divided by the sum of their weights, rounded to 16 bits.
///
/// # Safety
/// `output` has room for `head_size` elements and is aligned to 4 bytes. Each thread passes the `values` that
/// [`Attended`] describes.
#[inline(always)]
pub unsafe fn write_row<T: Element>(output: *mut u16, head_size: u32, values: [f32; 2], sum: f32) {
    let thread = thread::thread_idx_x();
    // The sum is at least 1 unless there are no tokens. In that case the values are zero, and so is the output.
    let inverse = sum.max(1.0).rcp_fast();
    if thread < head_size / 2 {
        let pair = T::Pair::from_f32(values.map(|x| x * inverse)).to_bits();
        // SAFETY: `thread` is below `head_size / 2`, and `output` has room for that number of pairs, by this function's
        // contract.
        unsafe { *output.cast::<u32>().add(thread as usize) = pair };
    }
}
