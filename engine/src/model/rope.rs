//! Rotary position embeddings (Su et al., 2021): the table of angles.

use crate::config::{Rope, RopeScaling};
use crate::tensor::HostTensor;

/// Returns the table `[positions, head_dim]`. Row `p` contains the cosines of position `p`'s angles, then the sines.
/// Frequencies and angles are rounded to f32 in the same places as in Hugging Face's code, because at large positions a
/// rounding error becomes a noticeable angle.
pub(super) fn table(rope: &Rope, head_dim: usize, positions: usize) -> HostTensor {
    let frequencies: Vec<f32> = (0..head_dim / 2).map(|i| frequency(rope, i, head_dim)).collect();
    let mut table = Vec::with_capacity(positions * head_dim);
    for p in 0..positions {
        let angles = frequencies.iter().map(|f| f64::from(p as f32 * f));
        table.extend(angles.clone().map(|a| a.cos() as f32));
        table.extend(angles.map(|a| a.sin() as f32));
    }
    HostTensor::from_f32(vec![positions, head_dim], table)
}

fn frequency(rope: &Rope, i: usize, head_dim: usize) -> f32 {
    let exponent = (2 * i) as f32 / head_dim as f32;
    let f = (1.0 / rope.theta.powf(f64::from(exponent))) as f32;
    match &rope.scaling {
        RopeScaling::None => f,
        RopeScaling::Linear { factor } => f / *factor as f32,
        RopeScaling::Factors { factors } => f / factors[i],
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
        let scaled = Rope { theta: 10000.0, scaling };
        let plain = Rope { theta: 10000.0, scaling: RopeScaling::None };
        assert_eq!(frequency(&scaled, 0, 64), frequency(&plain, 0, 64));
        assert_eq!(frequency(&scaled, 31, 64), frequency(&plain, 31, 64) / 8.0);
        let middle = (0..32).filter(|&i| {
            let (s, p) = (frequency(&scaled, i, 64), frequency(&plain, i, 64));
            s < p && s > p / 8.0
        });
        assert!(middle.count() > 0);
    }

    #[test]
    fn a_row_contains_cosines_then_sines() {
        let table = table(&Rope { theta: 100.0, scaling: RopeScaling::None }, 4, 3);
        let Elements::F32(t) = table.elements() else { panic!("the table is f32") };
        let want = [2f32.cos(), 0.2f32.cos(), 2f32.sin(), 0.2f32.sin()];
        assert!(t[8..].iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{t:?}");
    }
}
