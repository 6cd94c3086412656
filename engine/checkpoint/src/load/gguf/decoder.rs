//! The metadata that is written for a decoder, derived from its mechanisms.

use super::names::Architecture;
use super::writer::{Entries, refused};
use crate::config::{Activation, DecoderConfig, DecoderLayer, Experts, ModelConfig, RecurrentKind, Rope, RopeScaling};
use crate::error::Result;

/// The shape and settings of a decoder, to be written.
pub(super) struct Decoder<'a> {
    pub entries: &'a mut Entries,
    pub architecture: Architecture,
    pub config: &'a ModelConfig,
    pub decoder: &'a DecoderConfig,
}

impl Decoder<'_> {
    /// Writes the settings.
    ///
    /// # Errors
    /// If files of the architecture cannot represent a setting.
    pub fn write(mut self) -> Result<()> {
        use Architecture::{Gemma2, Gemma3, Gemma4};
        let activation = match self.architecture {
            Gemma2 | Gemma3 | Gemma4 => (Activation::GeluTanh, "GELU by tanh"),
            _ => (Activation::Silu, "SiLU"),
        };
        if self.decoder.activation != activation.0 {
            return Err(refused(format!("the activation function is not {}", activation.1)));
        }
        self.feed_forward()?;
        match self.decoder.latent {
            Some(latent) => self.latent(latent)?,
            None => self.heads(),
        }
        self.states()?;
        match self.architecture {
            Architecture::Cohere2 => self.f32("attention.layer_norm_epsilon", self.decoder.eps),
            _ => self.f32("attention.layer_norm_rms_epsilon", self.decoder.eps),
        }
        self.windows()?;
        self.factors()?;
        self.rotations()
    }

    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name())
    }

    pub fn u32(&mut self, key: &str, value: usize) {
        let name = self.name(key);
        self.entries.u32(&name, value);
    }

    pub fn f32(&mut self, key: &str, value: f32) {
        let name = self.name(key);
        self.entries.f32(&name, value);
    }

    /// Writes a number per layer, or one number if all layers have the same.
    fn of_layers(&mut self, key: &str, value: impl Fn(&DecoderLayer) -> usize) {
        let values: Vec<usize> = self.decoder.layers.iter().map(value).collect();
        match values.windows(2).all(|pair| pair[0] == pair[1]) {
            true => self.u32(key, values.first().copied().unwrap_or(0)),
            false => {
                let name = self.name(key);
                let values: Vec<i32> = values.iter().map(|&value| i32::try_from(value).unwrap_or(i32::MAX)).collect();
                self.entries.i32s(&name, &values);
            }
        }
    }

    /// Writes the sizes of feed-forward layers, and the numbers of experts.
    fn feed_forward(&mut self) -> Result<()> {
        use Architecture::{GptOss, Qwen2Moe, Qwen3Moe, Qwen3Next, Qwen35Moe};
        let Some(experts) = self.decoder.experts() else {
            self.of_layers("feed_forward_length", |layer| layer.inner);
            return Ok(());
        };
        let Experts { count, inner, routing, clamp, shared, .. } = *experts;
        match self.decoder.layers.iter().map(|layer| layer.inner).max() {
            // All dense layers of these architectures have the same size.
            Some(dense) if experts.beside.is_none() => {
                self.u32("feed_forward_length", if dense > 0 { dense } else { inner });
            }
            _ => self.of_layers("feed_forward_length", |layer| layer.inner),
        }
        self.u32("expert_count", count);
        self.u32("expert_used_count", routing.top_k);
        self.u32("expert_feed_forward_length", inner);
        if let Some(shared) = shared {
            self.u32("expert_shared_feed_forward_length", shared.inner);
        }
        if clamp.is_some_and(|clamp| clamp.limit != 7.0) {
            return Err(refused("gates are clamped at another limit than 7"));
        }
        let biased = match self.architecture {
            Qwen2Moe => [true, false],
            Qwen3Moe | Qwen3Next | Qwen35Moe => [false; 2],
            GptOss => [true; 2],
            _ => return Ok(()),
        };
        if biased != [self.decoder.qkv_bias, self.decoder.o_bias] {
            return Err(refused("other projections than usual have biases"));
        }
        if self.architecture != GptOss {
            let name = self.name("expert_weights_norm");
            self.entries.bool(&name, routing.renormalised);
        }
        Ok(())
    }

    /// Writes the sizes of heads.
    fn heads(&mut self) {
        let marks_states = matches!(self.architecture, Architecture::GraniteHybrid | Architecture::Lfm2);
        self.of_layers("attention.head_count_kv", |layer| match layer.recurrent {
            Some(_) if marks_states => 0,
            _ => layer.kv_heads,
        });
        let layers = &self.decoder.layers;
        if self.architecture == Architecture::Gemma4 {
            let own = layers.iter().enumerate().filter(|(i, layer)| layer.source == *i).count();
            self.u32("attention.shared_kv_layers", layers.len() - own);
            self.u32("embedding_length_per_layer_input", self.decoder.layer_embedding.map_or(0, |e| e.width));
            for (suffix, is_windowed) in [("", false), ("_swa", true)] {
                let layer = layers.iter().find(|layer| layer.window.is_some() == is_windowed).or(layers.first());
                let head_dim = layer.map_or(0, |layer| layer.head_dim);
                for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
                    self.u32(&format!("{key}{suffix}"), head_dim);
                }
            }
            return;
        }
        let head_dim = self.config.head_dim;
        self.u32("attention.key_length", head_dim);
        self.u32("attention.value_length", head_dim);
        self.u32("rope.dimension_count", self.decoder.ropes.first().map_or(head_dim, |rope| rope.rotated));
    }

    /// Writes the sizes of layers that keep a state.
    fn states(&mut self) -> Result<()> {
        let layers = &self.decoder.layers;
        let Some(layer) = self.decoder.recurrent() else { return Ok(()) };
        if layer.kind == RecurrentKind::Convolution {
            self.u32("shortconv.l_cache", layer.kernel);
            return Ok(());
        }
        for (key, value) in [
            ("ssm.conv_kernel", layer.kernel),
            ("ssm.state_size", layer.key_dim),
            ("ssm.group_count", layer.key_heads),
            ("ssm.time_step_rank", layer.heads),
            ("ssm.inner_size", layer.inner()),
        ] {
            self.u32(key, value);
        }
        match self.architecture {
            Architecture::GraniteHybrid => {
                let rotates = layers.iter().any(|layer| layer.rope.is_some());
                let name = self.name("rope.scaling.finetuned");
                self.entries.bool(&name, rotates);
            }
            _ => {
                // llama.cpp derives the layers from this number.
                let interval = 1 + layers.iter().position(|layer| layer.recurrent.is_none()).unwrap_or(layers.len());
                let fits =
                    |(i, layer): (usize, &DecoderLayer)| layer.recurrent.is_none() == (i + 1).is_multiple_of(interval);
                if !layers.iter().enumerate().all(fits) {
                    return Err(refused("other layers than usual keep a state"));
                }
                self.u32("full_attention_interval", interval);
                // The three positions of a token of an image. They are equal in text.
                let name = self.name("rope.dimension_sections");
                self.entries.i32s(&name, &[11, 11, 10, 0]);
            }
        }
        Ok(())
    }

    /// Writes the window, and which layers have it.
    fn windows(&mut self) -> Result<()> {
        use Architecture::{Cohere2, Gemma2, Gemma3, Gemma4, GptOss, Llama, Olmo2, Phi3};
        let windows: Vec<Option<usize>> = self.decoder.layers.iter().map(|layer| layer.window).collect();
        let size = windows.iter().flatten().next().copied();
        if windows.iter().flatten().any(|window| Some(*window) != size) {
            return Err(refused("windows have several sizes"));
        }
        let in_all = windows.iter().all(Option::is_some);
        match (self.architecture, size) {
            (Phi3, None) => self.u32("attention.sliding_window", 0),
            (_, None) => {}
            (Llama | Phi3, Some(size)) if in_all => self.u32("attention.sliding_window", size),
            (Gemma2 | Gemma3 | Gemma4 | Olmo2 | Cohere2 | GptOss, Some(size)) => {
                self.u32("attention.sliding_window", size);
            }
            _ => return Err(refused("only some layers have a sliding window")),
        }
        if size.is_some() && !matches!(self.architecture, Llama | Phi3) {
            let name = self.name("attention.sliding_window_pattern");
            self.entries.bools(&name, &windows.iter().map(Option::is_some).collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Writes the factors and caps of attention and logits.
    fn factors(&mut self) -> Result<()> {
        use Architecture::{Cohere2, Gemma2, Gemma3, Gemma4, Granite, GraniteHybrid, GraniteMoe};
        let decoder = self.decoder;
        let scale = decoder.layers.first().map_or(1.0, |layer| layer.scale);
        match self.architecture {
            Gemma2 | Gemma3 => self.f32("attention.scale", scale),
            Cohere2 => self.f32("logit_scale", decoder.logits_multiplier),
            Granite | GraniteMoe | GraniteHybrid => {
                self.f32("attention.scale", scale);
                self.f32("embedding_scale", decoder.embedding_multiplier);
                self.f32("residual_scale", decoder.residual_multiplier);
                self.f32("logit_scale", decoder.logits_multiplier.recip());
            }
            _ => {}
        }
        if let Some(cap) = decoder.softcap {
            self.f32("attn_logit_softcapping", cap);
        } else if self.architecture == Gemma2 {
            return Err(refused("the scores of Gemma 2 have no cap"));
        }
        match (self.architecture, decoder.logits_softcap) {
            (Gemma2 | Gemma3 | Gemma4, Some(cap)) => self.f32("final_logit_softcapping", cap),
            (Gemma2, None) => return Err(refused("the logits of Gemma 2 have no cap")),
            (_, Some(_)) => return Err(refused("logits have a cap")),
            (_, None) => {}
        }
        Ok(())
    }

    /// Writes the rotation of layers without a window, and the base of the others' rotation.
    fn rotations(&mut self) -> Result<()> {
        let attention = || self.decoder.layers.iter().filter(|layer| layer.recurrent.is_none());
        let rope = |is_windowed: bool| {
            let layer = attention().find(|layer| layer.window.is_some() == is_windowed);
            layer.and_then(|layer| layer.rope).and_then(|rope| self.decoder.ropes.get(rope))
        };
        let (windowed, full) = (rope(true), rope(false));
        let Some(main) = full.or(windowed).or(self.decoder.ropes.first()) else { return Ok(()) };
        self.unrotated()?;
        match (self.architecture, windowed) {
            (Architecture::Gemma3 | Architecture::Gemma4 | Architecture::Olmo2, Some(windowed)) => {
                if windowed.scaling != RopeScaling::None {
                    return Err(refused("the rotation of layers with a window is scaled"));
                }
                self.f32("rope.freq_base_swa", windowed.theta as f32);
            }
            (_, Some(windowed)) if windowed != main => return Err(refused("layers have several rotations")),
            _ => {}
        }
        self.f32("rope.freq_base", main.theta as f32);
        self.scaling(main)
    }

    /// Checks that the layers without a rotation are as in the architecture.
    fn unrotated(&self) -> Result<()> {
        let layers = self.decoder.layers.iter().enumerate();
        let fits = |(i, layer): (usize, &DecoderLayer)| match self.architecture {
            Architecture::SmolLm3 => layer.rope.is_some() == ((i + 1) % 4 != 0),
            Architecture::Cohere2 => layer.rope.is_some() == layer.window.is_some(),
            // A flag says whether attention rotates.
            Architecture::GraniteHybrid => true,
            _ => layer.rope.is_some() || layer.recurrent.is_some(),
        };
        match layers.into_iter().all(fits) {
            true => Ok(()),
            false => Err(refused("other layers than usual do not rotate")),
        }
    }

    fn scaling(&mut self, rope: &Rope) -> Result<()> {
        let kind = self.name("rope.scaling.type");
        match &rope.scaling {
            // The file has a list of divisors.
            RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors { .. } => {}
            RopeScaling::Proportional { factor, .. } if *factor == 1.0 => {}
            RopeScaling::Proportional { .. } => return Err(refused("a proportional rotation has a factor")),
            RopeScaling::Linear { factor } => {
                self.entries.text(&kind, "linear");
                self.f32("rope.scaling.factor", *factor as f32);
            }
            RopeScaling::Yarn { factor, between, attention_factor } => {
                self.entries.text(&kind, "yarn");
                self.f32("rope.scaling.factor", *factor as f32);
                self.yarn(rope, *factor, *between, *attention_factor)?;
            }
            RopeScaling::Long { original, attention_factor, .. } => {
                self.u32("rope.scaling.original_context_length", *original);
                self.f32("rope.scaling.attn_factor", *attention_factor as f32);
            }
        }
        Ok(())
    }

    /// Writes numbers of turns that give the pairs `between` which frequencies are interpolated.
    fn yarn(&mut self, rope: &Rope, factor: f64, between: [f64; 2], attention_factor: f64) -> Result<()> {
        let is_exact = self.architecture == Architecture::GptOss;
        if !is_exact && between.iter().any(|pair| pair.fract() != 0.0) {
            return Err(refused("YaRN interpolates between fractions of pairs"));
        }
        let original = (self.config.max_positions as f64 / factor).round().max(1.0);
        self.u32("rope.scaling.original_context_length", original as usize);
        // Readers limit the first pair to 0 and the second one to the last, and round them down and up except in files
        // of gpt-oss. Half a pair is a safe distance from where that changes them.
        let [first, second] = between;
        let last = rope.rotated as f64 - 1.0;
        let [first, second] = match is_exact {
            true => [if first > 0.0 { first } else { -0.5 }, if second < last { second } else { last + 0.5 }],
            false => [first + 0.5, second - 0.5],
        };
        let turns = |pair: f64| {
            let wavelength = 2.0 * std::f64::consts::PI * rope.theta.powf(2.0 * pair / rope.rotated as f64);
            (original / wavelength) as f32
        };
        self.f32("rope.scaling.yarn_beta_fast", turns(first));
        self.f32("rope.scaling.yarn_beta_slow", turns(second));
        // llama.cpp multiplies by the usual factor itself, but not if scores have a factor.
        let is_usual = factor > 1.0 && self.score_factor(factor) == 0.0;
        let usual = if is_usual { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        if (attention_factor - usual).abs() > 1e-6 {
            self.f32("rope.scaling.yarn_attn_factor", attention_factor as f32);
        }
        Ok(())
    }
}

/// Returns the lists of divisors of the rotation's frequencies that a file has, with their names.
pub(super) fn factors(config: &DecoderConfig) -> Vec<(&'static str, Vec<f32>)> {
    let lists = config.ropes.iter().flat_map(|rope| match &rope.scaling {
        RopeScaling::Factors { factors } => vec![("rope_freqs.weight", factors.clone())],
        RopeScaling::Long { short, long, .. } => {
            vec![("rope_factors_short.weight", short.clone()), ("rope_factors_long.weight", long.clone())]
        }
        RopeScaling::Proportional { pairs, .. } => {
            let one = |i: usize| if i < *pairs { 1.0 } else { 1e30 };
            vec![("rope_freqs.weight", (0..rope.rotated / 2).map(one).collect())]
        }
        &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
            let one = |i: usize| {
                let frequency = rope.theta.powf(-((2 * i) as f64 / rope.rotated as f64));
                let turns = original_max_position_embeddings as f64 * frequency / (2.0 * std::f64::consts::PI);
                let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - keep) / factor + keep)) as f32
            };
            vec![("rope_freqs.weight", (0..rope.rotated / 2).map(one).collect())]
        }
        RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Yarn { .. } => Vec::new(),
    });
    lists.collect()
}
