//! Phase 2: from logits to weights.
//!
//! The softmax is over all tokens, and every warp has seen only some of them. So the thread block first finds the
//! greatest logit (subtracting it keeps every exponential within 0 to 1), then each thread turns its part of the logits
//! into powers of two, in place, and the thread block finds their sum. The division by the sum is put off to the end,
//! where there are `head_size` numbers to divide and not one for each token.

use cuda_std::prelude::*;

use super::THREADS;

/// Replaces each of `count` logits by 2 to the power of its distance from the greatest. Returns the sum of the weights
/// that this thread computed.
///
/// # Safety
/// `logits` are `count` numbers in shared memory, written by all threads before a barrier. All threads of the block
/// call this together.
#[inline(always)]
pub unsafe fn exponentials(logits: *mut f32, count: u32, greatest: f32) -> f32 {
    let mut sum = 0.0;
    let mut slot = thread::thread_idx_x();
    while slot < count {
        // SAFETY: `slot` is below `count`, and no other thread has the same one.
        unsafe {
            let weight = (*logits.add(slot as usize) - greatest).exp2_fast();
            *logits.add(slot as usize) = weight;
            sum += weight;
        }
        slot += THREADS;
    }
    sum
}
