//! Rotary position embeddings: base and scaling.

use super::MAX_POSITIONS;
use super::fields::{Fields, in_range};
use crate::error::{Error, Result};

/// How positions are converted to angles.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the geometric series of wavelengths.
    pub theta: f64,
    /// The scaling of the series' frequencies.
    pub scaling: RopeScaling,
}

/// The supported frequency scalings.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Divides every frequency by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Divides each frequency by its own factor. GGUF files represent LLaMA 3.1's scaling in this way.
    Factors {
        /// The divisors, one per pair of a head's elements.
        factors: Vec<f32>,
    },
    /// LLaMA 3.1's scaling. Divides low frequencies by `factor`, keeps high ones, and interpolates between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// The context length that the model was first trained with.
        original_max_position_embeddings: usize,
    },
}

/// Reads `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (transformers 5).
pub(super) fn read(fields: &Fields<'_>, max_positions: usize) -> Result<Rope> {
    let parameters = match fields.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_scaling")?,
    };
    let mut theta = fields.positive_or("rope_theta", 10000.0)?;
    let mut partial = fields.positive_or("partial_rotary_factor", 1.0)?;
    let mut scaling = RopeScaling::None;
    if let Some(parameters) = parameters {
        theta = parameters.positive_or("rope_theta", theta)?;
        partial = parameters.positive_or("partial_rotary_factor", partial)?;
        scaling = read_scaling(&parameters, fields, max_positions)?;
    }
    if partial != 1.0 {
        return Err(Error::Unsupported(format!("partial_rotary_factor {partial} is not implemented")));
    }
    Ok(Rope { theta, scaling })
}

fn read_scaling(parameters: &Fields<'_>, fields: &Fields<'_>, max_positions: usize) -> Result<RopeScaling> {
    let kind = parameters.string("rope_type")?.or(parameters.string("type")?);
    match kind {
        None if parameters.has("full_attention") || parameters.has("sliding_attention") => {
            Err(Error::Unsupported("rope_parameters that differ by the type of layer are not implemented".into()))
        }
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: factor(parameters)? }),
        // A form that only this program writes, for GGUF files.
        Some("factors") => {
            let factors = parameters.positives("factors")?;
            factors
                .map(|factors| RopeScaling::Factors { factors })
                .ok_or_else(|| Error::Config("the rope scaling has no factors".into()))
        }
        Some("llama3") => {
            let low_freq_factor = parameters.positive_or("low_freq_factor", 1.0)?;
            let high_freq_factor = parameters.positive_or("high_freq_factor", 4.0)?;
            if low_freq_factor >= high_freq_factor {
                return Err(Error::Config(format!(
                    "low_freq_factor ({low_freq_factor}) must be below high_freq_factor ({high_freq_factor})"
                )));
            }
            let name = "original_max_position_embeddings";
            let original = parameters.usize(name)?.or(fields.usize(name)?).unwrap_or(max_positions);
            in_range(name, original, MAX_POSITIONS)?;
            Ok(RopeScaling::Llama3 {
                factor: factor(parameters)?,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original,
            })
        }
        Some(other) => Err(Error::Unsupported(format!(
            "rope scaling of type {other:?} is not implemented; default, linear and llama3 are"
        ))),
    }
}

fn factor(parameters: &Fields<'_>) -> Result<f64> {
    match parameters.float("factor")? {
        Some(factor) if factor >= 1.0 => Ok(factor),
        Some(factor) => Err(Error::Config(format!("the rope scaling factor must be at least 1, but is {factor}"))),
        None => Err(Error::Config("the rope scaling has no factor".into())),
    }
}
