//! The configurations of the families with windows and unusual blocks. Files leave out settings that all published
//! models of a family have in common, so the settings' values in llama.cpp are repeated here.

use serde_json::{Value, json};

use super::config::{Reader, Shapes};
use crate::config::MAX_LAYERS;
use crate::error::{Error, Result};

/// Frequencies divided by at least this much belong to elements that are not rotated.
const NOT_ROTATED: f32 = 1e20;
const WINDOWED: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Returns a number that a file contains in f32 as its shortest decimal, as it is in `config.json`.
pub(super) fn decimal(number: f64) -> f64 {
    (number as f32).to_string().parse().unwrap_or(number)
}

/// Returns a setting of the rotation without scaling.
fn rotation(theta: f64) -> Value {
    json!({"rope_type": "default", "rope_theta": theta})
}

impl Reader<'_> {
    pub fn gemma2(&mut self) -> Result<()> {
        let head_dim = self.gemma("Gemma2ForCausalLM", "gemma2")?;
        self.sole_head_dim(head_dim)?;
        self.layer_sizes()?;
        self.windows(2, Some(4096))?;
        self.query_scale(46)?;
        self.put("rope_theta", self.theta()?);
        // Gemma 2 always has both caps. Without these settings, llama.cpp uses the same values.
        for (field, key, default) in [
            ("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
            ("final_logit_softcapping", "final_logit_softcapping", 30.0),
        ] {
            let cap = self.metadata.float(&self.name(key))?.unwrap_or(default);
            self.put(field, decimal(cap));
        }
        Ok(())
    }

    pub fn gemma3(&mut self) -> Result<()> {
        let head_dim = self.gemma("Gemma3ForCausalLM", "gemma3_text")?;
        self.sole_head_dim(head_dim)?;
        self.layer_sizes()?;
        self.windows(6, None)?;
        self.query_scale(62)?;
        let local = self.metadata.float(&self.name("rope.freq_base_swa"))?.unwrap_or(10000.0);
        let full = self.scaled_rotation()?;
        self.put("rope_parameters", json!({WINDOWED: rotation(local), FULL: full}));
        self.final_cap()
    }

    pub fn gemma4(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        let global_head_dim = self.gemma("Gemma4ForCausalLM", "gemma4_text")?;
        let head_dim = self.integer("attention.key_length_swa")?.unwrap_or(global_head_dim);
        self.put("head_dim", head_dim);
        self.put("global_head_dim", global_head_dim);
        let windowed = self.windows(0, None)?;
        let shared = self.integer("attention.shared_kv_layers")?.unwrap_or(0);
        self.put("num_kv_shared_layers", shared);
        self.experts_beside()?;
        self.gemma4_heads(&windowed)?;
        self.gemma4_inner(windowed.len(), shared)?;
        self.put("hidden_size_per_layer_input", self.integer("embedding_length_per_layer_input")?.unwrap_or(0));
        if let Some([rows, _]) = (shapes.shape)("per_layer_token_embd.weight").as_deref() {
            self.put("vocab_size_per_layer_input", *rows);
        }
        // Without a projection for values, the projection for keys produces both.
        let full = windowed.iter().position(|is_windowed| !is_windowed);
        let k_is_v = full.is_some_and(|layer| !shapes.has(&format!("blk.{layer}.attn_v.weight")));
        self.put("attention_k_eq_v", k_is_v);
        let factors = (shapes.factors)("rope_freqs.weight")?.unwrap_or_default();
        let rotated = factors.iter().filter(|factor| **factor < NOT_ROTATED).count();
        let part = if factors.is_empty() { 1.0 } else { rotated as f64 / factors.len() as f64 };
        if factors.iter().any(|factor| *factor < NOT_ROTATED && *factor != 1.0) {
            return Err(Error::Unsupported("rope_freqs.weight has factors other than 1".into()));
        }
        let local = self.metadata.float(&self.name("rope.freq_base_swa"))?.unwrap_or(10000.0);
        let full = json!({"rope_type": "proportional", "rope_theta": self.theta()?, "partial_rotary_factor": part});
        self.put("rope_parameters", json!({WINDOWED: rotation(local), FULL: full}));
        self.final_cap()
    }

    /// Copies the numbers of key-value heads of layers with and without a window.
    fn gemma4_heads(&mut self, windowed: &[bool]) -> Result<()> {
        let key = "attention.head_count_kv";
        let heads = self.metadata.integers_of_layers(&self.name(key), windowed.len())?;
        let heads = heads.ok_or_else(|| self.missing(key))?;
        for (field, is_windowed) in [("num_key_value_heads", true), ("num_global_key_value_heads", false)] {
            let mut own = heads.iter().zip(windowed).filter(|(_, w)| **w == is_windowed).map(|(count, _)| *count);
            let Some(first) = own.next() else { continue };
            if own.any(|count| count != first) {
                return Err(Error::Unsupported(format!("{} differs between layers of one kind", self.name(key))));
            }
            self.put(field, first);
        }
        Ok(())
    }

    /// Copies the size of the feed-forward layers. It may be doubled in the layers that share a cache.
    fn gemma4_inner(&mut self, layers: usize, shared: u64) -> Result<()> {
        let key = "feed_forward_length";
        let sizes = self.metadata.integers_of_layers(&self.name(key), layers)?;
        let sizes = sizes.filter(|sizes| !sizes.is_empty()).ok_or_else(|| self.missing(key))?;
        let (size, last) = (sizes[0], sizes[layers - 1]);
        let own = layers.saturating_sub(usize::try_from(shared).unwrap_or(layers));
        let fits = sizes.iter().enumerate().all(|(i, found)| *found == if i < own { size } else { last });
        if !fits || (last != size && Some(last) != size.checked_mul(2)) {
            return Err(Error::Unsupported(format!("{} is neither equal nor doubled", self.name(key))));
        }
        self.put("intermediate_size", size);
        self.put("use_double_wide_mlp", last != size);
        Ok(())
    }

    pub fn olmo2(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        let head_dim = self.decoder("Olmo2ForCausalLM", "olmo2")?;
        self.sole_head_dim(head_dim)?;
        if self.integer("attention.sliding_window")?.is_none_or(|window| window == 0) {
            self.put("rope_theta", self.theta()?);
            return self.rope(shapes);
        }
        // OLMo 3 scales the rotation only in layers without a window.
        self.class("Olmo3ForCausalLM", "olmo3");
        self.windows(4, None)?;
        let theta = self.theta()?;
        let local = self.metadata.float(&self.name("rope.freq_base_swa"))?.unwrap_or(theta);
        let full = self.scaled_rotation()?;
        self.put("rope_parameters", json!({WINDOWED: rotation(local), FULL: full}));
        Ok(())
    }

    pub fn cohere2(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        self.class("Cohere2ForCausalLM", "cohere2");
        let head_dim = self.shape()?;
        self.layer_sizes()?;
        self.sole_head_dim(head_dim)?;
        let eps = self.float("attention.layer_norm_epsilon")?;
        self.put("layer_norm_eps", eps);
        let scale = self.float("logit_scale")?;
        self.put("logit_scale", decimal(scale));
        self.windows(4, None)?;
        self.put("rope_theta", self.theta()?);
        self.rope(shapes)
    }

    pub fn smollm3(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        let head_dim = self.decoder("SmolLM3ForCausalLM", "smollm3")?;
        self.sole_head_dim(head_dim)?;
        // Every fourth layer does not rotate.
        let rotates: Vec<u8> = (1..=self.layers()?).map(|layer| u8::from(layer % 4 != 0)).collect();
        self.put("no_rope_layers", json!(rotates));
        self.put("use_sliding_window", false);
        self.put("attention_bias", shapes.has("blk.0.attn_q.bias"));
        self.put("mlp_bias", shapes.has("blk.0.ffn_up.bias"));
        self.put("rope_theta", self.theta()?);
        self.rope(shapes)
    }

    pub fn phi3(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        let head_dim = self.decoder("Phi3ForCausalLM", "phi3")?;
        // Zero means no window.
        let window = self.integer("attention.sliding_window")?.filter(|window| *window > 0);
        self.put("sliding_window", window);
        self.partial_rotation(head_dim)?;
        self.put("rope_theta", self.theta()?);
        let original = self.integer("rope.scaling.original_context_length")?;
        self.put("original_max_position_embeddings", original);
        let factors = |length: &str| (shapes.factors)(&format!("rope_factors_{length}.weight"));
        let (Some(short), Some(long)) = (factors("short")?, factors("long")?) else { return self.rope(shapes) };
        let list = |factors: Vec<f32>| factors.into_iter().map(|factor| decimal(factor.into())).collect::<Vec<_>>();
        self.put("rope_scaling", json!({"type": "longrope", "short_factor": list(short), "long_factor": list(long)}));
        Ok(())
    }

    pub fn glm4(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        let head_dim = self.decoder("Glm4ForCausalLM", "glm4")?;
        if self.integer("nextn_predict_layers")?.is_some_and(|count| count > 0) {
            return Err(Error::Unsupported("layers that predict several tokens are not implemented".into()));
        }
        self.put("attention_bias", shapes.has("blk.0.attn_q.bias"));
        self.partial_rotation(head_dim)?;
        self.put("rope_theta", self.theta()?);
        self.rope(shapes)
    }

    pub fn granite(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        if self.metadata.bool(&self.name("rope.scaling.finetuned"))? == Some(false) {
            return Err(Error::Unsupported("a Granite model without rotation is not implemented".into()));
        }
        self.granite_factors("GraniteForCausalLM", "granite", shapes)
    }

    /// Copies the settings that all Granite models have in common.
    pub(super) fn granite_factors(&mut self, class: &str, model_type: &str, shapes: &Shapes<'_>) -> Result<()> {
        let head_dim = self.decoder(class, model_type)?;
        self.sole_head_dim(head_dim)?;
        let attention = (head_dim as f64).sqrt().recip();
        for (field, key, default) in [
            ("attention_multiplier", "attention.scale", attention),
            ("embedding_multiplier", "embedding_scale", 1.0),
            ("residual_multiplier", "residual_scale", 1.0),
            ("logits_scaling", "logit_scale", 1.0),
        ] {
            let factor = self.metadata.float(&self.name(key))?.unwrap_or(default);
            self.put(field, decimal(factor));
        }
        self.put("attention_bias", shapes.has("blk.0.attn_q.bias"));
        self.put("mlp_bias", shapes.has("blk.0.ffn_up.bias"));
        self.put("rope_theta", self.theta()?);
        self.rope(shapes)
    }

    pub(super) fn class(&mut self, class: &str, model_type: &str) {
        self.put("architectures", json!([class]));
        self.put("model_type", model_type);
    }

    /// Copies the sizes and norms of a decoder whose layers are alike, and returns the size of its heads.
    pub(super) fn decoder(&mut self, class: &str, model_type: &str) -> Result<u64> {
        self.class(class, model_type);
        let head_dim = self.shape()?;
        self.layer_sizes()?;
        self.rms_norm()?;
        Ok(head_dim)
    }

    /// Copies the settings that Gemma 2 to 4 have in common, and returns the size of the heads.
    fn gemma(&mut self, class: &str, model_type: &str) -> Result<u64> {
        self.class(class, model_type);
        self.put("hidden_activation", "gelu_pytorch_tanh");
        let head_dim = self.shape()?;
        self.rms_norm()?;
        Ok(head_dim)
    }

    /// Copies the window and the layers that have it. `period` is the period of the layers without a window if the
    /// file does not say.
    pub(super) fn windows(&mut self, period: u64, default: Option<u64>) -> Result<Vec<bool>> {
        let layers = self.layers()?;
        let window = self.integer("attention.sliding_window")?.or(default);
        let mut windowed =
            self.metadata.windowed_layers(&self.name("attention.sliding_window_pattern"), layers, period)?;
        if window.is_none() {
            windowed.fill(false);
        }
        self.put("sliding_window", window);
        let kind = |is_windowed: &bool| if *is_windowed { WINDOWED } else { FULL };
        self.put("layer_types", json!(windowed.iter().map(kind).collect::<Vec<_>>()));
        Ok(windowed)
    }

    /// The number of layers. It is checked before a list of layers is built.
    pub(super) fn layers(&self) -> Result<usize> {
        let count = self.integer("block_count")?.ok_or_else(|| self.missing("block_count"))?;
        let fitting = usize::try_from(count).ok().filter(|count| (1..=MAX_LAYERS).contains(count));
        fitting.ok_or_else(|| Error::Config(format!("the number of layers is {count}")))
    }

    /// Copies the scale of Gemma's queries. Published files do not contain it. It is derived from the size of the
    /// heads, or in the largest model, which has `largest` layers, from the width of all of them.
    fn query_scale(&mut self, largest: u64) -> Result<()> {
        let number = |key: &str| self.integer(key).map(|found| found.unwrap_or(0) as f64);
        let scalar = match self.metadata.float(&self.name("attention.scale"))? {
            Some(scale) if scale > 0.0 => (scale * scale).recip(),
            _ if self.integer("block_count")? == Some(largest) => {
                number("embedding_length")? / number("attention.head_count")?
            }
            _ => match self.integer("attention.key_length")? {
                Some(head_dim) => head_dim as f64,
                None => number("embedding_length")? / number("attention.head_count")?,
            },
        };
        // The file has the scale in f32. All published scalars are whole numbers.
        let whole = scalar.round();
        self.put("query_pre_attn_scalar", if (scalar - whole).abs() < 1e-5 * whole { whole } else { scalar });
        Ok(())
    }

    fn final_cap(&mut self) -> Result<()> {
        let cap = self.metadata.float(&self.name("final_logit_softcapping"))?.filter(|cap| *cap != 0.0);
        self.put("final_logit_softcapping", cap.map(decimal));
        Ok(())
    }

    /// The base of the rotation's wavelengths.
    pub(super) fn theta(&self) -> Result<f64> {
        Ok(self.metadata.float(&self.name("rope.freq_base"))?.unwrap_or(10000.0))
    }

    pub(super) fn partial_rotation(&mut self, head_dim: u64) -> Result<()> {
        let rotated = self.integer("rope.dimension_count")?.unwrap_or(head_dim);
        if rotated > head_dim {
            return Err(Error::Config(format!("{rotated} of {head_dim} elements of a head are rotated")));
        }
        self.put("partial_rotary_factor", rotated as f64 / head_dim.max(1) as f64);
        Ok(())
    }

    /// Returns the rotation of layers without a window, which may be scaled linearly or by YaRN.
    pub(super) fn scaled_rotation(&self) -> Result<Value> {
        let mut rotation = rotation(self.theta()?);
        let number = |key: &str| self.metadata.float(&self.name(&format!("rope.scaling.{key}")));
        match self.metadata.text(&self.name("rope.scaling.type"))? {
            None | Some("none") => {}
            Some(kind @ ("linear" | "yarn")) => {
                rotation["rope_type"] = json!(kind);
                rotation["factor"] = json!(number("factor")?.map(decimal));
                if kind == "yarn" {
                    let original = self.integer("rope.scaling.original_context_length")?;
                    rotation["original_max_position_embeddings"] = json!(original);
                    for (field, key) in [
                        ("attention_factor", "yarn_attn_factor"),
                        ("beta_fast", "yarn_beta_fast"),
                        ("beta_slow", "yarn_beta_slow"),
                    ] {
                        if let Some(number) = number(key)? {
                            rotation[field] = json!(decimal(number));
                        }
                    }
                }
            }
            Some(other) => {
                let shown: String = other.chars().take(40).collect();
                return Err(Error::Unsupported(format!("rope scaling of type {shown:?} in a GGUF file")));
            }
        }
        Ok(rotation)
    }
}

#[cfg(test)]
mod tests;
