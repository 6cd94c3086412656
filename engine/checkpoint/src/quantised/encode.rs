//! Quantising weights. Types of 32 elements with one scale are rounded in the same way as by GGUF's reference
//! implementation.

use half::f16;

use super::search::{inverse, largest, mxfp4, q4_k, q6_k};
use super::{Group, QuantType};

/// Quantises `row` (a multiple of the group size) and appends the groups.
///
/// # Errors
/// A sentence, if weights cannot be quantised to this type, or an element is not finite or too large for an f16 scale.
pub fn encode(kind: QuantType, row: &[f32], to: &mut Vec<u8>) -> Result<(), String> {
    let group = match kind {
        QuantType::Q8_0 => q8_0,
        QuantType::Q4_0 => q4_0,
        QuantType::Q5_0 => q5_0,
        QuantType::Q4_K => q4_k,
        QuantType::Q6_K => q6_k,
        QuantType::MXFP4 => mxfp4,
        other => {
            let supported = "q8_0, q4_0, q5_0, q4_k, q6_k and mxfp4 are supported";
            return Err(format!("weights cannot be rounded to {other}; {supported}"));
        }
    };
    if row.iter().any(|x| !x.is_finite()) {
        return Err("a weight is not finite".into());
    }
    for row in row.chunks_exact(kind.group()) {
        let start = to.len();
        group(row, to);
        let Group { scale, min_scale, .. } = Group::read(kind, &to[start..]);
        if !scale.is_finite() || !min_scale.is_finite() {
            return Err("a weight is too large".into());
        }
    }
    Ok(())
}

fn q8_0(x: &[f32], to: &mut Vec<u8>) {
    let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scale = most / 127.0;
    let inverse = inverse(scale);
    to.extend(f16::from_f32(scale).to_le_bytes());
    // Ties are rounded away from zero.
    to.extend(x.iter().map(|x| (x * inverse).round() as i8 as u8));
}

fn q4_0(x: &[f32], to: &mut Vec<u8>) {
    let quants = symmetric(x, 8.0, to);
    to.extend((0..16).map(|i| quants[i] | quants[i + 16] << 4));
}

fn q5_0(x: &[f32], to: &mut Vec<u8>) {
    let quants = symmetric(x, 16.0, to);
    let high = quants.iter().enumerate().fold(0, |high, (i, quant)| high | u32::from(quant >> 4) << i);
    to.extend(high.to_le_bytes());
    to.extend((0..16).map(|i| quants[i] & 15 | quants[i + 16] << 4));
}

/// Appends the scale of a group with integers from 0 to `2 * zero - 1`, and returns the integers.
fn symmetric(x: &[f32], zero: f32, to: &mut Vec<u8>) -> [u8; 32] {
    // The element of greatest magnitude becomes the negated zero, because the range has one more negative integer.
    let scale = largest(x) / -zero;
    let inverse = inverse(scale);
    to.extend(f16::from_f32(scale).to_le_bytes());
    let quant = |x: f32| f64::from(x) * f64::from(inverse) + f64::from(zero) + 0.5;
    std::array::from_fn(|i| quant(x[i]).clamp(0.0, f64::from(2.0 * zero - 1.0)) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_at_most_half_a_step() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 61) as f32 - 30.0) / 7.0).collect();
        for (kind, steps) in [(QuantType::Q8_0, 127.0), (QuantType::Q4_0, 8.0), (QuantType::Q5_0, 16.0)] {
            let mut bytes = Vec::new();
            encode(kind, &x, &mut bytes).unwrap();
            let mut back = vec![0.0; 64];
            kind.decode(&bytes, &mut back);
            for (x, back) in x.chunks(32).zip(back.chunks(32)) {
                let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                // With 4 or 5 bits, the range ends one step early on the positive side.
                let bound = if kind == QuantType::Q8_0 { 0.5 } else { 1.0 } * most / steps * 1.01 + most / 2000.0;
                assert!(x.iter().zip(back).all(|(x, y)| (x - y).abs() <= bound), "{kind}: {x:?} {back:?}");
            }
        }
    }

    #[test]
    fn unsupported_types_and_odd_weights_are_refused() {
        assert!(encode(QuantType::Q5_K, &[0.0; 256], &mut Vec::new()).unwrap_err().contains("q5_k"));
        let supported =
            QuantType::all().filter(|&kind| encode(kind, &vec![0.5; kind.group()], &mut Vec::new()).is_ok());
        let supported: Vec<QuantType> = supported.collect();
        assert_eq!(supported.len(), 6);
        for kind in supported {
            for odd in [f32::NAN, f32::INFINITY] {
                let mut x = vec![1.0; kind.group()];
                x[9] = odd;
                assert!(encode(kind, &x, &mut Vec::new()).unwrap_err().contains("finite"), "{kind}");
            }
            // Only scales of MXFP4 have no less range than f32.
            let huge = encode(kind, &vec![-3e38; kind.group()], &mut Vec::new());
            assert_eq!(huge.is_ok(), kind == QuantType::MXFP4, "{kind}");
            let mut zeros = Vec::new();
            encode(kind, &vec![0.0; kind.group()], &mut zeros).unwrap();
            let mut back = vec![1.0; kind.group()];
            kind.decode(&zeros, &mut back);
            assert!(back.iter().all(|x| *x == 0.0), "{kind}");
        }
        let mut zeros = Vec::new();
        encode(QuantType::Q4_0, &[0.0; 32], &mut zeros).unwrap();
        assert_eq!(zeros[..2], [0, 0x80]);
    }
}
