//! Vectorised scans over all logits of a row, since vocabularies are large.
//!
//! No result depends on the order of summation, so results are the same on every instruction set.

#![allow(clippy::needless_range_loop)] // a loop is compiled for the dispatched instruction set, a closure might not be

use pulp::Arch;

/// Logits per iteration.
const LANES: usize = 64;

/// Whether no logit is NaN or positive infinity. Negative infinity is the logit of a token that cannot be chosen.
pub(crate) fn below_infinity(logits: &[f32]) -> bool {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            // Not `all`, which would check for an early exit after each logit.
            let (chunks, rest) = logits.as_chunks::<LANES>();
            let is_below = |logits: &[f32]| logits.iter().fold(true, |all, &v| all & (v < f32::INFINITY));
            chunks.iter().fold(true, |all, chunk| all & is_below(chunk)) & is_below(rest)
        },
    )
}

/// The index of the greatest element, the first among equals. NaN elements are ignored.
pub(crate) fn argmax(x: &[f32]) -> u32 {
    let at = Arch::new().dispatch(
        #[inline(always)]
        || {
            let greater = |a: f32, b: f32| if b > a { b } else { a };
            let (chunks, rest) = x.as_chunks::<LANES>();
            let mut most = [f32::NEG_INFINITY; LANES];
            for chunk in chunks {
                for i in 0..LANES {
                    most[i] = greater(most[i], chunk[i]);
                }
            }
            let most = most.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| greater(a, b));
            let has_it = |chunk: &[f32; LANES]| chunk.iter().fold(false, |has, &v| has | (v == most));
            let before = chunks.iter().position(has_it).unwrap_or(chunks.len()) * LANES;
            x[before..].iter().position(|&v| v == most).map(|at| before + at)
        },
    );
    at.unwrap_or(0) as u32
}

/// The sum of `value(x)` over all elements.
pub(crate) fn sum(x: &[f32], value: impl Fn(f32) -> u64) -> u64 {
    Arch::new().dispatch(
        #[inline(always)]
        || x.iter().map(|&x| value(x)).sum(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_finds_the_first_greatest_element() {
        for len in [1, 2, 63, 64, 65, 128, 200] {
            for at in 0..len {
                let mut x: Vec<f32> = (0..len).map(|i| (i * 37 % 11) as f32 - 20.0).collect();
                (x[at], x[len - 1]) = (3.0, 3.0);
                assert_eq!(argmax(&x), at as u32, "of {len}");
            }
            assert_eq!(argmax(&vec![f32::NEG_INFINITY; len]), 0);
            assert_eq!(argmax(&vec![-0.0; len]), 0);
        }
        assert_eq!(argmax(&[f32::NAN, 1.0, f32::NAN, 2.0]), 3);
    }

    #[test]
    fn nan_and_infinity_are_detected() {
        for len in [1, 64, 65, 150] {
            for at in 0..len {
                for (odd, want) in [(f32::NAN, false), (f32::INFINITY, false), (f32::NEG_INFINITY, true)] {
                    let mut x = vec![1.0; len];
                    x[at] = odd;
                    assert_eq!(below_infinity(&x), want, "{odd} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn sum_adds_every_element() {
        let x: Vec<f32> = (0..151).map(|i| i as f32).collect();
        assert_eq!(sum(&x, |x| x as u64), 75 * 151);
    }
}
