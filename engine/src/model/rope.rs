//! Rotary position embeddings (Su et al., 2021): the table of angles.

use crate::config::{Rope, RopeScaling};
use crate::error::{Error, Result};
use crate::tensor::HostTensor;

/// Returns the table `[rows, rotated]`. Row `p` contains the cosines of position `p`'s angles, then the sines. If long
/// sequences have other frequencies, their `positions` rows follow the rows of the longest short sequence.
/// Frequencies and angles are rounded to f32 in the same places as in Hugging Face's code, because at large positions a
/// rounding error becomes a noticeable angle.
///
/// # Errors
/// [`Error::Memory`] if the system refuses the memory.
pub(super) fn table(rope: &Rope, positions: usize) -> Result<HostTensor> {
    // Short sequences come first.
    let short = rope.regime_boundary().unwrap_or(positions).min(positions);
    let regimes = if short < positions { vec![(false, short), (true, positions)] } else { vec![(false, positions)] };
    let rows: usize = regimes.iter().map(|(_, rows)| rows).sum();
    let factor = attention_factor(rope);
    let mut table = Vec::new();
    let refuse = |_| Error::Memory(format!("a table of the rotations of {rows} positions does not fit in memory"));
    table.try_reserve_exact(rows * rope.rotated).map_err(refuse)?;
    for (is_long, rows) in regimes {
        let frequencies: Vec<f32> = (0..rope.rotated / 2).map(|i| frequency(rope, i, is_long)).collect();
        for p in 0..rows {
            let angles = frequencies.iter().map(|f| f64::from(p as f32 * f));
            table.extend(angles.clone().map(|a| a.cos() as f32 * factor));
            table.extend(angles.map(|a| a.sin() as f32 * factor));
        }
    }
    Ok(HostTensor::from_f32(vec![rows, rope.rotated], table))
}

/// The factor on cosines and sines.
fn attention_factor(rope: &Rope) -> f32 {
    match rope.scaling {
        RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor, .. } => {
            attention_factor as f32
        }
        _ => 1.0,
    }
}

fn frequency(rope: &Rope, i: usize, is_long: bool) -> f32 {
    let exponent = (2 * i) as f32 / rope.rotated as f32;
    let power = rope.theta.powf(f64::from(exponent));
    let f = (1.0 / power) as f32;
    match &rope.scaling {
        RopeScaling::None => f,
        RopeScaling::Linear { factor } => f / *factor as f32,
        RopeScaling::Factors { factors } => f / factors[i],
        &RopeScaling::Proportional { pairs, factor } => {
            if i < pairs {
                f / factor as f32
            } else {
                0.0
            }
        }
        RopeScaling::Long { short, long, .. } => 1.0 / ((if is_long { long } else { short })[i] * power as f32),
        &RopeScaling::Yarn { factor, between: [low, high], .. } => {
            let width = if low == high { 0.001 } else { high - low };
            let divided = ((i as f32 - low as f32) / width as f32).clamp(0.0, 1.0);
            let (kept, power) = (1.0 - divided, power as f32);
            1.0 / (factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
        }
        &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
            let wavelength = 2.0 * std::f64::consts::PI / f64::from(f);
            let turns = original_max_position_embeddings as f64 / wavelength;
            // 0 means dividing the frequency by the factor, 1 means keeping it. Values between interpolate.
            let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            ((1.0 - keep) * f64::from(f) / factor + keep * f64::from(f)) as f32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Elements;

    #[test]
    fn scaling_divides_low_frequencies_only() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 128,
        };
        let scaled = Rope { theta: 10000.0, scaling, rotated: 64, adjacent: false };
        let plain = Rope { scaling: RopeScaling::None, ..scaled.clone() };
        let frequency = |rope: &Rope, i| frequency(rope, i, false);
        assert_eq!(frequency(&scaled, 0), frequency(&plain, 0));
        assert_eq!(frequency(&scaled, 31), frequency(&plain, 31) / 8.0);
        let middle = (0..32).filter(|&i| {
            let (s, p) = (frequency(&scaled, i), frequency(&plain, i));
            s < p && s > p / 8.0
        });
        assert!(middle.count() > 0);
    }

    #[test]
    fn a_row_contains_cosines_then_sines() {
        let table = table(&Rope { theta: 100.0, scaling: RopeScaling::None, rotated: 4, adjacent: false }, 3).unwrap();
        let Elements::F32(t) = table.elements() else { panic!("the table is f32") };
        let want = [2f32.cos(), 0.2f32.cos(), 2f32.sin(), 0.2f32.sin()];
        assert!(t[8..].iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{t:?}");
    }
}
