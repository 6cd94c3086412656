//! The weighted sum of the results of a token's experts.
//!
//! Each result is read once and each sum written once. Sums are in `f32`, in order of the experts' numbers, and rounded
//! once. A shared expert comes last.

use cuda_std::launch::LaunchShape;
use cuda_std::prelude::*;
use cuda_std::unroll::eight;
use cuda_std::vector::Vector;

use crate::element::{Bf16, Element, F16};
use crate::scaling;
use crate::vector::{narrow, widen};

/// The launch for `tokens` tokens with rows of `vectors` vectors.
pub const fn shape(tokens: u32, vectors: u32) -> LaunchShape {
    scaling::shape(1, tokens * vectors)
}

/// Adds up the results of each token's experts: `out[t] = sum of factors[t][i] * results[t][i]` over the experts from
/// `first` to `first + count`.
///
/// `results` and `chosen` have `top_k` rows or numbers for each of `tokens` tokens. Results of other experts are not
/// read. `shared` has a row for each token, whose factor follows those of the token's experts, or is null. Rows have
/// `vectors` vectors.
///
/// # Safety
/// The arrays have these shapes. The launch has the shape of [`shape`].
#[kernel(dependent, max_threads = 256, instances(T = [F16, Bf16]))]
pub unsafe fn combine_experts<T: Element>(
    results: *const Vector,
    chosen: *const u32,
    factors: *const f32,
    shared: *const Vector,
    out: *mut Vector,
    tokens: u32,
    vectors: u32,
    top_k: u32,
    first: u32,
    count: u32,
) {
    let at = thread::index_1d();
    if at >= tokens * vectors {
        return;
    }
    // SAFETY: the index was just checked, and a token that has a vector has no empty rows. Slots and factors belong to
    // the token.
    unsafe {
        core::hint::assert_unchecked(vectors != 0);
        let (token, column) = (at / vectors, at % vectors);
        let factors = factors.add((token * (top_k + u32::from(!shared.is_null()))) as usize);
        let mut sums = [0.0; 8];
        let mut i = 0;
        while i < top_k {
            let slot = token * top_k + i;
            if (*chosen.add(slot as usize)).wrapping_sub(first) < count {
                let values = widen::<T>(*results.add(slot as usize * vectors as usize + column as usize));
                let factor = *factors.add(i as usize);
                sums = eight(|e| sums[e] + factor * values[e]);
            }
            i += 1;
        }
        if !shared.is_null() {
            let (values, factor) = (widen::<T>(*shared.add(at as usize)), *factors.add(top_k as usize));
            sums = eight(|e| sums[e] + factor * values[e]);
        }
        *out.add(at as usize) = narrow::<T>(sums);
    }
}
