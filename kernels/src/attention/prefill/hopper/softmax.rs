//! [`Softmax`](super::super::softmax::Softmax) for a warp of a warp group, with two rows per lane.

use core::marker::PhantomData;

use cuda_std::float::GpuFloat;
use cuda_std::warp::{self, FULL_MASK};

use super::products::Sums;
use crate::attention::LOG2_E;
use crate::attention::prefill::softmax::{NONE, over_row};
use crate::kv_element::KvElement;

/// The state of a lane's rows, `lane / 4` and `lane / 4 + 8` of its warp.
pub struct GroupSoftmax<T, const D: u32> {
    /// Factor from a product of query and key to a power of two.
    scale: f32,
    reference: [f32; 2],
    /// This lane's part of the sums.
    sum: [f32; 2],
    element: PhantomData<T>,
}

impl<T: KvElement, const D: u32> GroupSoftmax<T, D> {
    /// Creates the state of rows that have seen no key. `scale` is positive and multiplies the products of queries and
    /// keys.
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        Self { scale: scale * LOG2_E, reference: [NONE; 2], sum: [0.0; 2], element: PhantomData }
    }

    /// Replaces the scores of a tile by weights, and adds them to the sums. Rescales `output` if references change.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn weigh(&mut self, scores: &mut Sums, output: &mut Sums) {
        let mut most = [f32::NEG_INFINITY; 2];
        for four in scores.iter() {
            for (i, score) in four.iter().enumerate() {
                most[i / 2] = most[i / 2].max(*score);
            }
        }
        let most = most.map(|most| most * self.scale);
        let exceeds = |half: usize| most[half] > self.reference[half] + T::SLACK;
        // SAFETY: by this function's contract, all lanes are here. The vote gives them all the same answer.
        unsafe {
            if warp::warp_vote_any(FULL_MASK, exceeds(0) | exceeds(1)) {
                self.raise(most, output);
            }
        }
        for four in scores {
            for (i, score) in four.iter_mut().enumerate() {
                *score = score.mul_add(self.scale, -self.reference[i / 2]).exp2_fast();
                self.sum[i / 2] += *score;
            }
        }
    }

    /// Raises the references that scores exceed by more than the slack to the largest scores, and rescales sums and
    /// output to match.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    unsafe fn raise(&mut self, most: [f32; 2], output: &mut Sums) {
        for half in 0..2 {
            // SAFETY: all lanes are here, by this function's contract.
            let most = unsafe { over_row(most[half], f32::max) };
            let reference = self.reference[half];
            let new = if most > reference + T::SLACK { most } else { reference };
            let factor = (reference - new).exp2_fast();
            self.reference[half] = new;
            self.sum[half] *= factor;
            for four in &mut output[..D as usize / 8] {
                four[2 * half] *= factor;
                four[2 * half + 1] *= factor;
            }
        }
    }

    /// Returns the inverse of each row's sum of weights. `sink` returns the weight of a row's sink, relative to a
    /// reference.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn finish(self, sink: impl Fn(u32, f32) -> f32) -> [f32; 2] {
        [0, 1].map(|half: usize| {
            // SAFETY: all lanes are here, by this function's contract.
            let sum = unsafe { over_row(self.sum[half], |a, b| a + b) };
            (sum + sink(half as u32, self.reference[half])).rcp_fast()
        })
    }
}
