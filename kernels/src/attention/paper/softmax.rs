//! Phase 2: turns logits into weights.
//!
//! The softmax is over all tokens, and every warp has seen only some of them. So the thread block first finds the
//! greatest logit. Subtracting it keeps every exponential between 0 and 1. Then each thread turns its part of the
//! logits into powers of two, in place, and the thread block adds them up. The division by the sum waits until the end,
//! because it then applies to `head_size` numbers instead of one per token.

use cuda_std::prelude::*;

use super::THREADS;

/// Replaces each of `count` logits by 2 to the power of its difference from the greatest. Returns the sum of the
/// weights that this thread computed.
///
/// # Safety
/// `logits` are `count` numbers in shared memory, written by all threads before a barrier. All threads of the block
/// call this together.
#[inline(always)]
pub unsafe fn exponentials(logits: *mut f32, count: u32, greatest: f32) -> f32 {
    let mut sum = 0.0;
    let mut slot = thread::thread_idx_x();
    while slot < count {
        // SAFETY: `slot` is below `count`, and each slot belongs to one thread.
        unsafe {
            let weight = (*logits.add(slot as usize) - greatest).exp2_fast();
            *logits.add(slot as usize) = weight;
            sum += weight;
        }
        slot += THREADS;
    }
    sum
}
