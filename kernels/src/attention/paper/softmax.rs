//! Phase 2: turns logits into weights.
//!
//! The softmax is over all tokens, and every warp has seen only some of them. So the thread block first finds the
//! greatest logit. Subtracting it keeps every exponential between 0 and 1. Then each thread turns its part of the
//! logits into powers of two, in place, and the thread block adds them up. The division by the sum waits until the end,
//! because it then applies to `head_size` numbers instead of one per token.

use cuda_std::prelude::*;

use super::THREADS;
use crate::attention::LOG2_E;

/// Replaces each of `count` logits by 2 to the power of its difference from the greatest. Returns the sum of the
/// weights that this thread computed. With a positive `cap`, logits have a softcap first, and `greatest` has it already.
///
/// # Safety
/// `logits` are `count` numbers in shared memory, written by all threads before a barrier. All threads of the block
/// call this together.
#[inline(always)]
pub unsafe fn exponentials(logits: *mut f32, count: u32, greatest: f32, cap: f32) -> f32 {
    let mut sum = 0.0;
    let mut slot = thread::thread_idx_x();
    while slot < count {
        // SAFETY: `slot` is below `count`, and each slot belongs to one thread.
        unsafe {
            let mut logit = *logits.add(slot as usize);
            // Tokens outside the span keep minus infinity.
            if cap > 0.0 && logit > f32::NEG_INFINITY {
                logit = capped(logit, cap);
            }
            let weight = (logit - greatest).exp2_fast();
            *logits.add(slot as usize) = weight;
            sum += weight;
        }
        slot += THREADS;
    }
    sum
}

/// Returns a logit under a softcap. Logits are powers of two.
#[inline(always)]
pub fn capped(logit: f32, cap: f32) -> f32 {
    // tanh(u) = 1 - 2 / (1 + e^(2u))
    let outer = cap * LOG2_E;
    let power = (logit * 2.0 * cap.rcp_fast()).exp2_fast();
    GpuFloat::mul_add(-2.0 * outer, (1.0 + power).rcp_fast(), outer)
}
