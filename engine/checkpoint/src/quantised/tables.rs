//! The integers that 4-bit codes represent, and scales that are powers of two.

/// The integers of IQ4_NL and IQ4_XS. They are denser near zero, like weights.
pub const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The numbers of FP4 (e2m1), doubled. The highest bit is the sign, and both zeros are 0.
pub const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Returns half of the power of two with an exponent of e8m0. It is the factor of doubled numbers. As in GGUF's
/// reference implementation, 255 is 2^128 instead of NaN.
#[inline]
pub const fn half_power(exponent: u8) -> f32 {
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent as u32 - 1) << 23 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_have_a_bias() {
        assert_eq!([1, 2, 127, 128, 254].map(half_power), [-127, -126, -1, 0, 126].map(|n| 2f64.powi(n) as f32));
        assert_eq!((half_power(0), half_power(255)), (2f32.powi(-64) * 2f32.powi(-64), 2f32.powi(127)));
    }
}
