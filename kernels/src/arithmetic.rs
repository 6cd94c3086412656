//! Arithmetic that gives the same bits on every processor. Sums, products and quotients are rounded as IEEE 754
//! requires, in a fixed order, without library functions or fused multiply-adds. Sums over a vocabulary are in
//! integers, where the order does not matter.

/// Fraction bits of a [`weight`].
pub const FRACTION: u32 = 40;

/// Returns `e^x` with a relative error below 2e-7. Results outside the range of normal numbers are clamped to it, and
/// NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts. The first has so few bits that its product with an exponent is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Not `clamp`, whose assertion costs time, nor `max`, which loses NaN.
    let x = if x < -87.33 { -87.33 } else { x };
    let x = if x > 88.37 { 88.37 } else { x };
    let n = x * core::f32::consts::LOG2_E + ROUND;
    let whole = n - ROUND;
    let r = x - whole * LN2_HIGH - whole * LN2_LOW;
    // Cephes' polynomial for (e^r - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2].
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let e = p * (r * r) + r + 1.0;
    e * f32::from_bits((n.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// Returns the natural logarithm of a positive normal number, with a relative error below 2e-7.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Cephes' polynomial for (ln(1 + f) - f + f^2 / 2) / f^3, for 1 + f between the square roots of 1/2 and 2.
    const FIT: [f32; 9] = [
        7.037_684e-2,
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ];
    const ROOT_HALF: u32 = 0x3f35_04f3;
    let bits = x.to_bits().wrapping_sub(ROOT_HALF);
    let exponent = (bits as i32 >> 23) as f32;
    let f = f32::from_bits((bits & 0x007f_ffff) + ROOT_HALF) - 1.0;
    let mut p = FIT[0];
    for c in &FIT[1..] {
        p = p * f + c;
    }
    let square = f * f;
    let tail = p * f * square + exponent * LN2_LOW - 0.5 * square;
    f + tail + exponent * LN2_HIGH
}

/// Returns the natural logarithm of a positive normal number, with a relative error below 1e-14.
#[inline(always)]
fn ln_f64(x: f64) -> f64 {
    const ROOT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    let bits = x.to_bits().wrapping_sub(ROOT_HALF);
    let exponent = (bits as i64 >> 52) as f64;
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) + ROOT_HALF);
    // ln m = 2 artanh t = 2 (t + t^3/3 + t^5/5 + ...), where t is below 0.172.
    let t = (m - 1.0) / (m + 1.0);
    let square = t * t;
    let mut p = 0.0;
    let mut n = 21;
    while n > 0 {
        p = p * square + 1.0 / f64::from(n);
        n -= 2;
    }
    2.0 * t * p + exponent * core::f64::consts::LN_2
}

/// Returns `e^x` for `x` of at most zero, in fixed point with [`FRACTION`] fraction bits, rounded down. Sums of weights
/// are exact in any order. The weight of NaN is 0.
#[inline(always)]
pub fn weight(x: f32) -> u64 {
    (exp(x) * (1u64 << FRACTION) as f32) as i64 as u64
}

/// Returns the logarithm of a sum of [`weight`]s, which includes the weight of 0.
#[inline(always)]
pub fn ln_weights(sum: u64) -> f64 {
    ln_f64(sum as f64 / (1u64 << FRACTION) as f64)
}

/// Returns the logprob of `logit`. `greatest` is the greatest logit, and `sum` the sum of the weights of all logits
/// minus `greatest`.
#[inline(always)]
pub fn logprob(logit: f32, greatest: f32, sum: u64) -> f32 {
    (f64::from(logit) - f64::from(greatest) - ln_weights(sum)) as f32
}

/// Converts a share in [0, 1) to fixed point, in units of 2^-64.
pub fn share(share: f32) -> u64 {
    (f64::from(share) * 18_446_744_073_709_551_616.0) as u64
}

/// Returns `share` (in units of 2^-64) of a sum of weights, rounded down, but at least 1.
#[inline(always)]
pub fn part(sum: u64, share: u64) -> u64 {
    ((u128::from(sum) * u128::from(share)) >> 64).max(1) as u64
}

/// Maps a float to an integer with the order of `f32::total_cmp`, which has NaN at the ends.
#[inline(always)]
pub fn order(x: f32) -> u32 {
    let bits = x.to_bits();
    bits ^ ((bits as i32 >> 31) as u32 | 1 << 31)
}

/// Returns a token's rank among all tokens. The greater score ranks higher, and among equals the lower id. Ranks are
/// unique.
#[inline(always)]
pub fn rank(score: f32, token: u32) -> u64 {
    u64::from(order(score)) << 32 | u64::from(!token)
}

/// Returns the token of a [`rank`].
#[inline(always)]
pub fn token(rank: u64) -> u32 {
    !(rank as u32)
}

/// Returns the score of a [`rank`].
#[inline(always)]
pub fn score(rank: u64) -> f32 {
    let order = (rank >> 32) as u32;
    f32::from_bits(order ^ (!(order as i32 >> 31) as u32 | 1 << 31))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn relative(got: f64, want: f64) -> f64 {
        ((got - want) / want).abs()
    }

    #[test]
    fn exponentials_are_accurate() {
        for i in -87_000..88_000 {
            let x = i as f32 * 1e-3;
            let error = relative(exp(x).into(), f64::from(x).exp());
            assert!(error < 2e-7, "exp({x}) is off by {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(1000.0) > 1e38);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn logarithms_are_accurate() {
        let near_one = (-200..200).filter(|&i| i != 0).map(|i| 1.0 + i as f32 * f32::EPSILON);
        let far = (-126 * 16..127 * 16).filter(|&i| i != 0).map(|i| (i as f32 / 16.0).exp2());
        for x in near_one.chain(far) {
            let want = f64::from(x).ln();
            assert!(relative(ln(x).into(), want) < 2e-7, "ln({x})");
            assert!((ln_f64(x.into()) - want).abs() < 1e-14 * (1.0 + want.abs()), "ln({x})");
        }
        assert_eq!((ln(1.0), ln_f64(1.0)), (0.0, 0.0));
    }

    #[test]
    fn weights_are_exponentials_in_fixed_point() {
        assert_eq!(weight(0.0), 1 << FRACTION);
        assert_eq!((weight(-1e30), weight(f32::NEG_INFINITY), weight(f32::NAN)), (0, 0, 0));
        for i in 1..200 {
            let x = -0.1 * i as f32;
            let got = weight(x) as f64 / (1u64 << FRACTION) as f64;
            assert!((got - f64::from(x).exp()).abs() < 2e-7 * f64::from(x).exp() + 1e-12, "{x}");
        }
        assert!((ln_weights(10 << FRACTION) - 10f64.ln()).abs() < 1e-14);
        assert_eq!(part(1000, share(0.5)), 500);
        assert_eq!(part(1000, share(f32::MIN_POSITIVE)), 1);
    }

    #[test]
    fn ranks_order_as_scores_and_ids_do() {
        let scores = [f32::NEG_INFINITY, -1e30, -2.0, -0.0, 0.0, 1e-40, 3.5, f32::INFINITY];
        let ranks: Vec<u64> = scores.iter().flat_map(|&s| [rank(s, 7), rank(s, 3)]).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b));
        for &s in &scores {
            assert_eq!((score(rank(s, 9)).to_bits(), token(rank(s, 9))), (s.to_bits(), 9));
        }
    }
}
