//! Quantising weights in the same way as GGUF's reference implementation.

use half::f16;

use super::QuantType;

/// Quantises `row` (a multiple of the group size) and appends the groups.
///
/// # Errors
/// A sentence, if weights cannot be quantised to this type or an element is not finite.
pub fn encode(kind: QuantType, row: &[f32], to: &mut Vec<u8>) -> Result<(), String> {
    let group = match kind {
        QuantType::Q8_0 => q8_0,
        QuantType::Q4_0 => q4_0,
        other => return Err(format!("weights cannot be rounded to {other}; q8_0 and q4_0 are supported")),
    };
    if row.iter().any(|x| !x.is_finite()) {
        return Err("a weight is not finite".into());
    }
    row.chunks_exact(kind.group()).for_each(|row| group(row, to));
    Ok(())
}

fn q8_0(x: &[f32], to: &mut Vec<u8>) {
    let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scale = most / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    to.extend(f16::from_f32(scale).to_le_bytes());
    // Ties are rounded away from zero.
    to.extend(x.iter().map(|x| (x * inverse).round() as i8 as u8));
}

fn q4_0(x: &[f32], to: &mut Vec<u8>) {
    // The element of greatest magnitude becomes -8, because the range has one more negative integer.
    let most = x.iter().fold(0f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    let scale = most / -8.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    to.extend(f16::from_f32(scale).to_le_bytes());
    let quant = |x: f32| (f64::from(x) * f64::from(inverse) + 8.5).clamp(0.0, 15.0) as u8;
    to.extend((0..16).map(|i| quant(x[i]) | quant(x[i + 16]) << 4));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_at_most_half_a_step() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 61) as f32 - 30.0) / 7.0).collect();
        for (kind, steps) in [(QuantType::Q8_0, 127.0), (QuantType::Q4_0, 8.0)] {
            let mut bytes = Vec::new();
            encode(kind, &x, &mut bytes).unwrap();
            let mut back = vec![0.0; 64];
            kind.decode(&bytes, &mut back);
            for (x, back) in x.chunks(32).zip(back.chunks(32)) {
                let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                // With 4 bits, the range ends one step early on the positive side.
                let bound = if kind == QuantType::Q4_0 { 1.0 } else { 0.5 } * most / steps * 1.01 + most / 2000.0;
                assert!(x.iter().zip(back).all(|(x, y)| (x - y).abs() <= bound), "{kind}: {x:?} {back:?}");
            }
        }
    }

    #[test]
    fn unsupported_types_and_nan_are_refused() {
        assert!(encode(QuantType::Q6_K, &[0.0; 256], &mut Vec::new()).unwrap_err().contains("q6_k"));
        assert!(encode(QuantType::Q8_0, &[f32::NAN; 32], &mut Vec::new()).is_err());
        let mut zeros = Vec::new();
        encode(QuantType::Q4_0, &[0.0; 32], &mut zeros).unwrap();
        assert_eq!(zeros[..2], [0, 0x80]);
    }
}
