//! Numbers of `f32` as sums of two 16-bit numbers, for products on the tensor cores.
//!
//! The high part is the nearest 16-bit number, and the low part the nearest one to the rest. The range of `f16` is small.
//! Numbers are therefore multiplied by a power of two that makes the greatest of a warp's numbers about 2^12, so that the
//! low parts of numbers that are 2^-14 as large still are normal.

use cuda_std::half::Half2;
use cuda_std::unroll;
use cuda_std::warp::warp_max;

use crate::element::Element;

/// The first factor of `mma`, 16 x 16, in two parts.
#[derive(Clone, Copy)]
pub struct Parts {
    pub high: [u32; 4],
    pub low: [u32; 4],
}

/// Returns the two parts of a pair.
#[inline(always)]
pub fn parts_of<T: Element>(pair: [f32; 2]) -> [u32; 2] {
    let high = T::Pair::from_f32(pair);
    let [a, b] = high.to_f32();
    [high.to_bits(), T::Pair::from_f32([pair[0] - a, pair[1] - b]).to_bits()]
}

impl Parts {
    /// Makes a factor of two neighbouring results of `mma`, multiplied by `by`.
    #[inline(always)]
    pub fn new<T: Element>(first: [f32; 4], second: [f32; 4], by: f32) -> Parts {
        let [a, b, c, d] = first;
        let [e, f, g, h] = second;
        let (a, b) = (parts_of::<T>([a * by, b * by]), parts_of::<T>([c * by, d * by]));
        let (c, d) = (parts_of::<T>([e * by, f * by]), parts_of::<T>([g * by, h * by]));
        Parts { high: [a[0], b[0], c[0], d[0]], low: [a[1], b[1], c[1], d[1]] }
    }

    /// Adds the products with two factors of 16 x 8, which are exact, to `sums`.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn times<T: Element>(&self, [a, b, c, d]: [u32; 4], sums: [[f32; 4]; 2]) -> [[f32; 4]; 2] {
        let [mut first, mut second] = sums;
        // SAFETY: all lanes of the warp are here.
        unsafe {
            first = T::mma(self.low, [a, b], first);
            second = T::mma(self.low, [c, d], second);
            first = T::mma(self.high, [a, b], first);
            second = T::mma(self.high, [c, d], second);
        }
        [first, second]
    }

    /// Adds the products with two factors of 16 x 8, which have two parts, to `sums`.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn times_parts<T: Element>(
        &self,
        high: [u32; 4],
        low: [u32; 4],
        [mut first, mut second]: [[f32; 4]; 2],
    ) -> [[f32; 4]; 2] {
        // SAFETY: all lanes of the warp are here.
        unsafe {
            first = T::mma(self.high, [low[0], low[1]], first);
            second = T::mma(self.high, [low[2], low[3]], second);
            self.times::<T>(high, [first, second])
        }
    }
}

/// Adds the products of an exact first factor with two factors of 16 x 8, which have two parts, to `sums`.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
pub unsafe fn exact_times_parts<T: Element>(
    factor: [u32; 4],
    high: [u32; 4],
    low: [u32; 4],
    [mut first, mut second]: [[f32; 4]; 2],
) -> [[f32; 4]; 2] {
    // SAFETY: all lanes of the warp are here.
    unsafe {
        first = T::mma(factor, [low[0], low[1]], first);
        second = T::mma(factor, [low[2], low[3]], second);
        first = T::mma(factor, [high[0], high[1]], first);
        second = T::mma(factor, [high[2], high[3]], second);
    }
    [first, second]
}

/// A power of two that numbers are multiplied by, and its inverse.
#[derive(Clone, Copy)]
pub struct Scale {
    pub up: f32,
    pub down: f32,
}

impl Scale {
    /// No scale.
    pub const ONE: Scale = Scale { up: 1.0, down: 1.0 };

    /// Returns the scale for a number with this magnitude and smaller ones.
    #[inline(always)]
    fn for_magnitude(most: f32) -> Scale {
        const FRACTION: u32 = 23;
        // The exponents of 2^-40 and 2^60, which leave room for products.
        let exponent = most.to_bits() >> FRACTION;
        let exponent = if exponent < 87 { 87 } else { exponent };
        let exponent = if exponent > 187 { 187 } else { exponent };
        let power = |exponent: u32| f32::from_bits(exponent << FRACTION);
        Scale { up: power(254 + 12 - exponent), down: power(exponent - 12) }
    }

    /// Returns the scale for the numbers of a warp.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn of<T: Element, const N: usize>(numbers: &[[f32; 4]; N]) -> Scale {
        if !T::IS_NARROW {
            return Scale::ONE;
        }
        let mut most = 0.0f32;
        for four in numbers {
            unroll!(e in [0 1 2 3] { most = most.max(four[e].abs()) });
        }
        // SAFETY: all lanes of the warp are here. The bits of positive numbers have their order.
        Scale::for_magnitude(f32::from_bits(unsafe { warp_max(most.to_bits()) }))
    }

    /// Returns the scale for four lanes whose largest number this is.
    #[inline(always)]
    pub fn of_largest<T: Element>(most: f32) -> Scale {
        if T::IS_NARROW { Scale::for_magnitude(most) } else { Scale::ONE }
    }
}
