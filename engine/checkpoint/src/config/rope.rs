//! Rotary position embeddings: base, scaling, and the part of a head that rotates.

use serde_json::Map;

use super::MAX_POSITIONS;
use super::fields::{Fields, in_range};
use crate::error::{Error, Result};

/// How positions are converted to angles, and which elements of a head rotate.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the geometric series of wavelengths.
    pub theta: f64,
    /// The scaling of the series' frequencies.
    pub scaling: RopeScaling,
    /// The first elements of each head, which rotate. The others stay as they are.
    pub rotated: usize,
    /// Whether the elements of a pair are adjacent. Otherwise they are half of the rotated part apart.
    pub adjacent: bool,
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
    /// Only some pairs have an angle, and the divisor of the series' exponents is still the whole head.
    Proportional {
        /// The number of pairs with an angle.
        pairs: usize,
        /// The divisor of frequencies.
        factor: f64,
    },
    /// YaRN (Peng et al., 2023). Divides low frequencies by `factor`, keeps high ones, and interpolates between.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// The pairs between which the frequencies are interpolated.
        between: [f64; 2],
        /// The factor on cosines and sines.
        attention_factor: f64,
    },
    /// LongRoPE (Ding et al., 2024). Sequences of up to `original` tokens and longer ones have different frequencies.
    Long {
        /// The divisors of frequencies in short sequences, one per pair.
        short: Vec<f32>,
        /// The divisors in long sequences.
        long: Vec<f32>,
        /// The number of tokens of the longest short sequence.
        original: usize,
        /// The factor on cosines and sines.
        attention_factor: f64,
    },
}

impl Rope {
    /// The number of tokens of the longest short sequence, if long sequences have other frequencies.
    pub fn regime_boundary(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::Long { original, .. } => Some(original),
            _ => None,
        }
    }

    /// The same rotation with adjacent pairs.
    pub(super) fn adjacent(self) -> Self {
        Rope { adjacent: true, ..self }
    }

    /// Checks that heads of `head_dim` elements can be rotated.
    pub(super) fn check(&self, head_dim: usize) -> Result<()> {
        let invalid = |sentence: String| Err(Error::Config(sentence));
        let rotated = self.rotated;
        if rotated > head_dim || rotated == 0 {
            return invalid(format!("{rotated} elements of heads of {head_dim} elements cannot be rotated"));
        }
        if !rotated.is_multiple_of(2) {
            return invalid(match rotated == head_dim {
                true => format!("the head size ({head_dim}) is odd, so its elements cannot be rotated in pairs"),
                false => format!("{rotated} is odd, so that many elements of a head cannot be rotated in pairs"),
            });
        }
        let counts = match &self.scaling {
            RopeScaling::Factors { factors } => vec![factors.len()],
            RopeScaling::Long { short, long, .. } => vec![short.len(), long.len()],
            _ => Vec::new(),
        };
        if let RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor, .. } = self.scaling
            && !(attention_factor > 0.0 && (attention_factor as f32).is_finite())
        {
            return invalid(format!("the attention factor of the rope scaling is {attention_factor}"));
        }
        match counts.into_iter().find(|count| *count != rotated / 2) {
            Some(count) => {
                invalid(format!("{count} factors for the frequencies of heads of which {rotated} elements rotate"))
            }
            None => Ok(()),
        }
    }
}

/// The values that a class has for members that are absent.
#[derive(Clone, Copy)]
pub(super) struct RopeDefaults {
    pub theta: f64,
    /// The part of a head that rotates. `None` if the class rotates whole heads only.
    pub partial: Option<f64>,
    /// The name of the scaling.
    pub scaling: &'static str,
    /// Other names of LongRoPE.
    pub long_names: &'static [&'static str],
}

impl RopeDefaults {
    pub const PLAIN: RopeDefaults = RopeDefaults { theta: 10000.0, partial: None, scaling: "default", long_names: &[] };
}

/// The sizes that a rotation depends on.
#[derive(Clone, Copy)]
pub(super) struct RopeSizes {
    pub head_dim: usize,
    pub max_positions: usize,
}

/// Reads `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (transformers 5).
pub(super) fn read(fields: &Fields<'_>, sizes: RopeSizes, defaults: RopeDefaults) -> Result<Rope> {
    let parameters = match fields.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_scaling")?,
    };
    if let Some(parameters) = parameters
        && (parameters.has("full_attention") || parameters.has("sliding_attention"))
    {
        return Err(Error::Unsupported(
            "rope_parameters that differ by the type of layer are not implemented for this class".into(),
        ));
    }
    let theta = fields.positive_or("rope_theta", defaults.theta)?;
    let defaults = RopeDefaults { theta, ..defaults };
    Reader { parameters, fields, outer: parameters, sizes }.read(defaults)
}

/// The rotation of the defaults alone, without scaling.
pub(super) fn plain(sizes: RopeSizes, defaults: RopeDefaults) -> Rope {
    Rope { theta: defaults.theta, scaling: RopeScaling::None, rotated: sizes.head_dim, adjacent: false }
}

/// Reads the base of the rotation and no scaling.
pub(super) fn unscaled(fields: &Fields<'_>, sizes: RopeSizes, defaults: RopeDefaults) -> Result<Rope> {
    Ok(Rope { scaling: RopeScaling::None, ..read(fields, sizes, defaults)? })
}

/// Reads the rotation of the layers of type `kind`, such as `full_attention`, from `rope_parameters`. If it is
/// absent, `fallback` reads the rotation.
pub(super) fn of_layers(
    fields: &Fields<'_>,
    kind: &str,
    sizes: RopeSizes,
    defaults: RopeDefaults,
    fallback: impl FnOnce() -> Result<Rope>,
) -> Result<Rope> {
    let Some(outer) = fields.object("rope_parameters")? else { return fallback() };
    if !outer.has("full_attention") && !outer.has("sliding_attention") {
        return fallback();
    }
    Reader { parameters: outer.object(kind)?, fields, outer: Some(outer), sizes }.read(defaults)
}

struct Reader<'a> {
    parameters: Option<Fields<'a>>,
    /// The whole configuration.
    fields: &'a Fields<'a>,
    /// The object that has the parameters, or that has them for each type of layer.
    outer: Option<Fields<'a>>,
    sizes: RopeSizes,
}

impl Reader<'_> {
    fn read(&self, defaults: RopeDefaults) -> Result<Rope> {
        let head_dim = self.sizes.head_dim;
        let empty = Map::new();
        let parameters = self.parameters.unwrap_or(Fields::new(&empty));
        let theta = parameters.positive_or("rope_theta", defaults.theta)?;
        let partial = self.fields.positive_or("partial_rotary_factor", defaults.partial.unwrap_or(1.0))?;
        let partial = parameters.positive_or("partial_rotary_factor", partial)?;
        if partial != 1.0 && defaults.partial.is_none() {
            return Err(Error::Unsupported(format!(
                "partial_rotary_factor {partial} is not implemented for this class"
            )));
        }
        let part = partial * head_dim as f64;
        let kind = parameters.string("rope_type")?.or(parameters.string("type")?).unwrap_or(defaults.scaling);
        let kind = if defaults.long_names.contains(&kind) { "longrope" } else { kind };
        let (rotated, scaling) = match kind {
            "proportional" => {
                let factor = parameters.positive_or("factor", 1.0)?;
                (head_dim, RopeScaling::Proportional { pairs: (part / 2.0) as usize, factor })
            }
            kind => (part as usize, self.scaling(&parameters, kind, theta, part as usize)?),
        };
        Ok(Rope { theta, scaling, rotated, adjacent: false })
    }

    fn scaling(&self, parameters: &Fields<'_>, kind: &str, theta: f64, rotated: usize) -> Result<RopeScaling> {
        match kind {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: factor(parameters)? }),
            // A form that only this program writes, for GGUF files.
            "factors" => Ok(RopeScaling::Factors { factors: factors(parameters, "factors")? }),
            "llama3" => self.llama3(parameters),
            "yarn" => self.yarn(parameters, theta, rotated),
            "longrope" => self.long(parameters),
            other => Err(Error::Unsupported(format!(
                "rope scaling of type {other:?} is not implemented; default, linear, llama3, yarn, longrope and \
                 proportional are"
            ))),
        }
    }

    /// The context length that the model was first trained with.
    fn original(&self, parameters: &Fields<'_>) -> Result<usize> {
        let name = "original_max_position_embeddings";
        let original = parameters.usize(name)?.or(self.fields.usize(name)?).unwrap_or(self.sizes.max_positions);
        in_range(name, original, MAX_POSITIONS)?;
        Ok(original)
    }

    fn llama3(&self, parameters: &Fields<'_>) -> Result<RopeScaling> {
        let low_freq_factor = parameters.positive_or("low_freq_factor", 1.0)?;
        let high_freq_factor = parameters.positive_or("high_freq_factor", 4.0)?;
        if low_freq_factor >= high_freq_factor {
            return Err(Error::Config(format!(
                "low_freq_factor ({low_freq_factor}) must be below high_freq_factor ({high_freq_factor})"
            )));
        }
        let original_max_position_embeddings = self.original(parameters)?;
        let factor = factor(parameters)?;
        Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings })
    }

    fn yarn(&self, parameters: &Fields<'_>, theta: f64, rotated: usize) -> Result<RopeScaling> {
        let original = self.original(parameters)?;
        let factor = match parameters.has_value("factor") {
            true => factor(parameters)?,
            false => self.sizes.max_positions as f64 / original as f64,
        };
        let magnitude = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        let some = |name| parameters.float(name).map(|number| number.filter(|number| *number != 0.0));
        let attention_factor = match (parameters.float("attention_factor")?, some("mscale")?, some("mscale_all_dim")?) {
            (Some(factor), ..) => factor,
            (None, Some(own), Some(all)) => magnitude(own) / magnitude(all),
            (None, ..) => magnitude(1.0),
        };
        // Cosines and sines are multiplied in f32. GGUF files have the factor in f32 too.
        let attention_factor = f64::from(attention_factor as f32);
        let (fast, slow) = (parameters.positive_or("beta_fast", 32.0)?, parameters.positive_or("beta_slow", 1.0)?);
        // The pair that turns this often over the original length.
        let pair = |turns: f64| {
            let ratio = original as f64 / (turns * 2.0 * std::f64::consts::PI);
            rotated as f64 * ratio.ln() / (2.0 * theta.ln())
        };
        // Where parameters differ by the type of layer, transformers looks for this member outside of them.
        let truncates = self.outer.as_ref().map_or(Ok(true), |outer| outer.bool_or("truncate", true))?;
        let between = match truncates {
            true => [pair(fast).floor(), pair(slow).ceil()],
            false => [pair(fast), pair(slow)],
        };
        let between = [between[0].max(0.0), between[1].min(rotated as f64 - 1.0)];
        Ok(RopeScaling::Yarn { factor, between, attention_factor })
    }

    fn long(&self, parameters: &Fields<'_>) -> Result<RopeScaling> {
        let original = self.original(parameters)?;
        let factor = match parameters.float("factor")? {
            Some(factor) => factor,
            None => self.sizes.max_positions as f64 / original as f64,
        };
        let attention_factor = match parameters.float("attention_factor")? {
            Some(factor) => factor,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        let [short, long] = ["short_factor", "long_factor"].map(|name| factors(parameters, name));
        Ok(RopeScaling::Long { short: short?, long: long?, original, attention_factor })
    }
}

fn factors(parameters: &Fields<'_>, name: &str) -> Result<Vec<f32>> {
    parameters.positives(name)?.ok_or_else(|| Error::Config(format!("the rope scaling has no {name}")))
}

fn factor(parameters: &Fields<'_>) -> Result<f64> {
    match parameters.float("factor")? {
        Some(factor) if factor >= 1.0 => Ok(factor),
        Some(factor) => Err(Error::Config(format!("the rope scaling factor must be at least 1, but is {factor}"))),
        None => Err(Error::Config("the rope scaling has no factor".into())),
    }
}
