//! Online softmax over tiles of keys, in powers of two.
//!
//! A row keeps a reference and its sum of `2^(score - reference)`. The reference need not be the largest score so far.
//! It is enough that no score exceeds it by more than [a slack](KvElement::SLACK). Then the powers stay far below the
//! largest 16-bit number, with the same relative precision. After the first tiles this nearly always holds. While it
//! does, the lanes need not agree on a maximum, and the sums need not be rescaled.

use core::marker::PhantomData;

use cuda_std::float::GpuFloat;
use cuda_std::warp::{self, FULL_MASK, WARP_SIZE};

use super::fragment::{FRAGMENTS, OutputFragments, ScoreFragments};
use super::shape::{columns, fragments, tile_keys};
use crate::attention::LOG2_E;
use crate::kv_element::KvElement;

/// The reference of a row that has seen no key: below every score, but finite.
pub const NONE: f32 = -1e30;

/// One value for each row that a lane has part of: rows `lane / 4` and `lane / 4 + 8` of each fragment.
pub type PerRow<V> = [[V; 2]; FRAGMENTS];

/// The state of a warp's rows.
pub struct Softmax<T, const D: u32> {
    /// Factor from a product of query and key to a power of two.
    scale: f32,
    reference: PerRow<f32>,
    /// This lane's part of the sums.
    sum: PerRow<f32>,
    element: PhantomData<T>,
}

impl<T: KvElement, const D: u32> Softmax<T, D> {
    /// Creates the state of rows that have seen no key. `scale` is positive and multiplies the products of queries and
    /// keys.
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        Self::of_powers(scale * LOG2_E * T::KEY_FACTOR)
    }

    /// Creates the state of rows that have seen no key, for scores that `scale` turns into powers of two.
    #[inline(always)]
    pub fn of_powers(scale: f32) -> Self {
        let (reference, sum) = ([[NONE; 2]; FRAGMENTS], [[0.0; 2]; FRAGMENTS]);
        Self { scale, reference, sum, element: PhantomData }
    }

    /// Replaces the scores of a tile by weights, and adds them to the sums. Rescales `output` if references change.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn weigh(&mut self, scores: &mut ScoreFragments, output: &mut OutputFragments) {
        let most = self.largest(scores);
        let exceeds = |fragment: usize, half: usize| most[fragment][half] > self.reference[fragment][half] + T::SLACK;
        let mut any = false;
        for fragment in 0..fragments(D) as usize {
            any |= exceeds(fragment, 0) | exceeds(fragment, 1);
        }
        // SAFETY: by this function's contract, all lanes are here. The vote gives them all the same answer, so either
        // all take the branch or none does.
        unsafe {
            if warp::warp_vote_any(FULL_MASK, any) {
                self.raise(most, output);
            }
        }
        for (fragment, scores) in scores[..fragments(D) as usize].iter_mut().enumerate() {
            for four in &mut scores[..tile_keys(D, T::FORMAT) as usize / 8] {
                for (i, score) in four.iter_mut().enumerate() {
                    *score = score.mul_add(self.scale, -self.reference[fragment][i / 2]).exp2_fast();
                    self.sum[fragment][i / 2] += *score;
                }
            }
        }
    }

    /// Returns the largest of this lane's scores in each row, in powers of two.
    #[inline(always)]
    fn largest(&self, scores: &ScoreFragments) -> PerRow<f32> {
        let mut most = [[f32::NEG_INFINITY; 2]; FRAGMENTS];
        for fragment in 0..fragments(D) as usize {
            for four in &scores[fragment][..tile_keys(D, T::FORMAT) as usize / 8] {
                for (i, score) in four.iter().enumerate() {
                    most[fragment][i / 2] = most[fragment][i / 2].max(*score);
                }
            }
            for most in &mut most[fragment] {
                *most *= self.scale;
            }
        }
        most
    }

    /// Raises the references that scores exceed by more than the slack to the largest scores, and rescales sums and
    /// output to match. A row's result does not depend on the warp's other rows.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    unsafe fn raise(&mut self, most: PerRow<f32>, output: &mut OutputFragments) {
        for fragment in 0..fragments(D) as usize {
            for half in 0..2 {
                let reference = self.reference[fragment][half];
                // SAFETY: by this function's contract, all lanes are here. The loops are the same for all of them.
                let most = unsafe { over_row(most[fragment][half], f32::max) };
                let new = if most > reference + T::SLACK { most } else { reference };
                let factor = (reference - new).exp2_fast();
                self.reference[fragment][half] = new;
                self.sum[fragment][half] *= factor;
                for four in &mut output[fragment][..columns(D) as usize / 8] {
                    four[2 * half] *= factor;
                    four[2 * half + 1] *= factor;
                }
            }
        }
    }

    /// Returns the factor for each row's output: the inverse of its sum of weights, adjusted for the gain of the value
    /// scales. `sink` returns the weight of a row's sink, relative to a reference.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn finish(self, sink: impl Fn(u32, u32, f32) -> f32) -> PerRow<f32> {
        let mut inverse = self.sum;
        for (fragment, rows) in inverse[..fragments(D) as usize].iter_mut().enumerate() {
            for (half, row) in rows.iter_mut().enumerate() {
                let sink = sink(fragment as u32, half as u32, self.reference[fragment][half]);
                // SAFETY: by this function's contract, all lanes are here. The loops are the same for all of them.
                let sum = unsafe { over_row(*row, |a, b| a + b) } + sink;
                *row = (sum * T::SUM_GAIN).rcp_fast();
            }
        }
        inverse
    }
}

/// Combines the values of the four lanes that share a row, and returns the result in each of them.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
pub unsafe fn over_row(value: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    // SAFETY: all lanes of the warp are here together, by this function's contract.
    unsafe {
        let value = combine(value, warp::warp_shuffle_xor(FULL_MASK, value, 1, WARP_SIZE));
        combine(value, warp::warp_shuffle_xor(FULL_MASK, value, 2, WARP_SIZE))
    }
}
