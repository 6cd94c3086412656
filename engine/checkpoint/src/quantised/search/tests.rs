#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use super::super::{QuantType, encode};

/// Random numbers with about a normal distribution, like weights.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn rounded(kind: QuantType, x: &[f32]) -> Vec<f32> {
    let (mut bytes, mut back) = (Vec::new(), vec![f32::NAN; x.len()]);
    encode(kind, x, &mut bytes).unwrap();
    kind.decode(&bytes, &mut back);
    back
}

/// The root mean square error, relative to the root mean square of `x`.
fn error(kind: QuantType, x: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let errors: f64 = x.iter().zip(rounded(kind, x)).map(|(x, y)| square(x - y)).sum();
    (errors / x.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

/// The bounds are the errors of llama.cpp's quantiser (ggml 0.25.3, without an importance matrix) for the same numbers.
/// The errors of this search are 0.06954, 0.01693 and 0.11116.
#[test]
fn errors_on_normal_weights_are_below_the_references() {
    let x = normal(256 * 64);
    for (kind, most) in [(QuantType::Q4_K, 0.06963), (QuantType::Q6_K, 0.01739), (QuantType::MXFP4, 0.11583)] {
        let error = error(kind, &x);
        println!("{kind}: {error}");
        assert!(error < most, "{kind}: {error}");
    }
}

/// Weights that were decoded from a type keep their values, or nearly so.
#[test]
fn decoded_weights_barely_change() {
    let x = normal(256 * 16);
    let once = rounded(QuantType::MXFP4, &x);
    assert_eq!(rounded(QuantType::MXFP4, &once), once);
    for (kind, most) in [(QuantType::Q4_K, 1e-3), (QuantType::Q6_K, 1e-3)] {
        let once = rounded(kind, &x);
        let error = error(kind, &once);
        println!("{kind}: {error}");
        assert!(error < most, "{kind}: {error}");
    }
}

/// Parts with one sign, one value, outliers, and elements of very different sizes.
#[test]
fn unusual_parts_are_rounded_with_small_errors() {
    let mut x = normal(256);
    x[..32].iter_mut().for_each(|x| *x = x.abs() + 3.0);
    x[32..64].iter_mut().for_each(|x| *x = -x.abs() - 3.0);
    x[64..96].fill(-0.25);
    x[96..128].fill(0.5);
    x[128..160].fill(0.0);
    x[160] = 40.0;
    x[192..224].iter_mut().for_each(|x| *x *= 1e-3);
    for (kind, most) in [(QuantType::Q4_K, 0.1), (QuantType::Q6_K, 0.2), (QuantType::MXFP4, 0.2)] {
        let error = error(kind, &x);
        println!("{kind}: {error}");
        assert!(error < most, "{kind}: {error}");
        let tiny: Vec<f32> = x.iter().map(|x| x * 1e-30).collect();
        assert!(rounded(kind, &tiny).iter().all(|x| x.is_finite()), "{kind}");
    }
}
