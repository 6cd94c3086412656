//! Epilogues in registers. They apply to sums where the tensor cores leave them, before they are rounded to 16 bits.
//!
//! A lane holds its sums of 16 tokens by 8 weight rows in one array of four, as `mma` and `wgmma` both leave them. The
//! gate and up sums of an output are in neighbouring arrays of one lane, see
//! [`GATED_ROWS`](super::epilogue::GATED_ROWS).

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::unroll;
use cuda_std::unroll::{hidden, unroll};

use super::activation::{Activation, activate};
use super::epilogue::{ACTIVATION, ADD, GATED, ProductOutput};
use super::split::add;
use crate::element::Element;

const RELU: u32 = Activation::Relu as u32;
const GATED_SILU: u32 = GATED | Activation::Silu as u32;
const GATED_GELU: u32 = GATED | Activation::GeluTanh as u32;

/// Returns whether sums can be finished in registers for [these bits](super::epilogue::Epilogue::bits). This would work
/// for any bits, but the code is unrolled for each sum. Only the epilogues that models use most are therefore
/// supported.
pub const fn is_light(epilogue: u32) -> bool {
    const LIGHT: u32 = 1 | 1 << RELU | 1 << ADD | 1 << GATED_SILU | 1 << GATED_GELU;
    epilogue < 32 && LIGHT >> epilogue & 1 == 1
}

/// Applies bias, activation and gate to a warp's sums of `TOKENS` tokens by `COLUMNS` weight rows from `column` on. The
/// arrays of each 16 tokens follow those of the previous 16. Gated outputs take the first half of the arrays.
///
/// # Safety
/// The epilogue is [light](is_light), `n` is even, and the bias is as declared.
#[inline(always)]
pub unsafe fn finish<T: Element, const TOKENS: usize, const COLUMNS: usize>(
    sums: &mut [[f32; 4]; 32],
    column: u32,
    output: ProductOutput,
) {
    if !output.bias.is_null() {
        unroll::<32>(|j| {
            if j < COLUMNS / 8 {
                // SAFETY: the bias is not null. It is as declared and `n` is even, by this function's contract.
                let [x, y] = unsafe { output.bias2::<T>(column + j as u32 * 8 + warp::lane_id() % 4 * 2) };
                unroll!(i in [0 1 2 3] {
                    if i < TOKENS / 16 {
                        let at = i * (COLUMNS / 8) + j;
                        sums[at] = add(sums[at], [x, y, x, y]);
                    }
                });
            }
        });
    }
    match output.epilogue & (GATED | ACTIVATION) {
        RELU => unroll::<32>(|j| {
            if j < TOKENS / 16 * COLUMNS / 8 {
                sums[j] = each(sums[j], |x| activate(RELU, x));
            }
        }),
        GATED_SILU => gate::<TOKENS, COLUMNS>(sums, |x| activate(Activation::Silu as u32, x)),
        GATED_GELU => gate::<TOKENS, COLUMNS>(sums, |x| activate(Activation::GeluTanh as u32, x)),
        _ => {}
    }
}

/// Multiplies each array of up sums with the activated gate sums before it. The outputs take the first half of the
/// arrays.
#[inline(always)]
fn gate<const TOKENS: usize, const COLUMNS: usize>(sums: &mut [[f32; 4]; 32], activate: impl Fn(f32) -> f32) {
    unroll::<16>(|j| {
        if j < TOKENS / 16 * COLUMNS / 16 {
            let ([a, b, c, d], [e, f, g, h]) = (each(sums[2 * j], &activate), sums[2 * j + 1]);
            sums[j] = [a * e, b * f, c * g, d * h];
        }
    });
}

/// Applies a function to each of four numbers. Written out, as [`add`] is.
#[inline(always)]
fn each([a, b, c, d]: [f32; 4], f: impl Fn(f32) -> f32) -> [f32; 4] {
    [f(a), f(b), f(c), f(d)]
}

/// An 8 x 8 identity matrix, as half of `mma`'s second factor. Multiplying the previous output by it adds that output
/// to the sums.
///
/// This takes two instructions for 16 x 16 elements, instead of 8 that widen and 8 that add. The result is rounded like
/// every other sum of products. An infinite or NaN element makes its neighbours in 16 columns NaN. The next norm and
/// product would make the whole row NaN anyway.
#[derive(Clone, Copy)]
pub struct Identity(u32);

impl Identity {
    /// Returns this lane's part of the identity for elements of type `T`.
    #[inline(always)]
    pub fn new<T: Element>() -> Self {
        // Hidden, since the identity would take too many registers if it were kept across a main loop.
        let lane = hidden(warp::lane_id());
        // A lane has rows `2 (lane % 4)` and `2 (lane % 4) + 1` of column `lane / 4`.
        let one = T::Pair::from_f32([1.0, 0.0]).to_bits();
        Identity(if lane % 4 == lane / 8 { one << (lane / 4 % 2 * 16) } else { 0 })
    }

    /// Adds 16 x 16 elements to the sums at `at` and `at + 1`, which have eight columns each. The elements have the
    /// layout of `mma`'s first factor, as `ldmatrix` loads it.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn add<T: Element>(self, elements: [u32; 4], sums: &mut [[f32; 4]; 32], at: usize) {
        // SAFETY: all lanes of the warp are here, by this function's contract.
        unsafe {
            sums[at] = T::mma(elements, [self.0, 0], sums[at]);
            sums[at + 1] = T::mma(elements, [0, self.0], sums[at + 1]);
        }
    }
}
