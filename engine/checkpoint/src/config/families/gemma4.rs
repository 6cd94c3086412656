//! Gemma 4: Gemma 3 with norms of values, larger heads in layers without a window, and a factor on the output of each
//! layer. In the E models, later layers read the caches of earlier ones, and every layer has embeddings of its own. The 26B
//! model also has experts.

use super::gemma::{DEFAULTS, set_common};
use super::{Defaults, Family, set_experts, set_windows, sliding_layers, window_size};
use crate::config::decoder::{DecoderConfig, HeadNorm, LayerEmbedding, NormKind};
use crate::config::experts::{BesideNorms, Experts, Routing};
use crate::config::fields::Fields;
use crate::config::rope::{self, RopeDefaults, RopeSizes};
use crate::error::{Error, Result};

pub const GEMMA4: Family = Family {
    class: "Gemma4ForCausalLM",
    names: &["gemma4_text"],
    multimodal: &["Gemma4ForConditionalGeneration", "gemma4"],
    defaults: Defaults { vocab: VOCAB, layers: 30, positions: POSITIONS, ..DEFAULTS },
    select: |fields, decoder| {
        set_common(fields, decoder)?;
        (decoder.norm, decoder.head_norm) = (NormKind::Rms, HeadNorm::Head);
        (decoder.value_norm, decoder.layer_scalar) = (true, true);
        decoder.set_scale(1.0);
        decoder.logits_softcap = fields.softcap("final_logit_softcapping", None)?;
        let count = decoder.layers.len();
        let mut sliding = sliding_layers(fields, count, |layer| (layer + 1) % 6 != 0)?;
        // The last layer never has a window.
        sliding[count - 1] = false;
        set_windows(decoder, &sliding, window_size(fields, Some(512))?)?;
        set_heads(fields, decoder)?;
        share_caches(fields, decoder)?;
        set_ropes(fields, decoder)?;
        let width = fields.usize_or("hidden_size_per_layer_input", 256)?;
        let vocab_size = fields.usize_or("vocab_size_per_layer_input", VOCAB)?;
        decoder.layer_embedding = (width > 0).then_some(LayerEmbedding { width, vocab_size });
        if fields.bool_or("enable_moe_block", false)? {
            set_experts(decoder, experts(fields)?, |_| true);
        }
        Ok(())
    },
};

const VOCAB: usize = 262144;
const POSITIONS: usize = 131072;

/// Reads the experts, which each layer has next to its dense feed-forward layer.
fn experts(fields: &Fields<'_>) -> Result<Experts> {
    let number = |name| fields.usize(name)?.ok_or_else(|| Error::Config(format!("enable_moe_block needs {name}")));
    let routing = Routing { norm: true, expert_scale: true, ..Routing::softmax(number("top_k_experts")?) };
    let beside = BesideNorms {
        after_dense: "post_feedforward_layernorm_1",
        before_experts: "pre_feedforward_layernorm_2",
        after_experts: "post_feedforward_layernorm_2",
    };
    let inner = match fields.usize("expert_intermediate_size")? {
        Some(inner) => inner,
        None => number("moe_intermediate_size")?,
    };
    let experts = Experts::plain(number("num_experts")?, inner, routing);
    Ok(Experts { beside: Some(beside), ..experts })
}

/// Sets the heads of layers without a window. `per_layer_config` (transformers 5) lists them by layer.
fn set_heads(fields: &Fields<'_>, decoder: &mut DecoderConfig) -> Result<()> {
    let value_is_key = fields.bool_or("attention_k_eq_v", false)?;
    let head_dim = fields.usize_or("global_head_dim", 512)?;
    let kv_heads = fields.usize("num_global_key_value_heads")?.filter(|_| value_is_key);
    let by_layer = fields.object("per_layer_config")?;
    for (i, layer) in decoder.layers.iter_mut().enumerate() {
        if layer.window.is_none() {
            layer.value_is_key = value_is_key;
            if by_layer.is_none() {
                layer.head_dim = head_dim;
                layer.kv_heads = kv_heads.unwrap_or(layer.kv_heads);
            }
        }
        if let Some(own) = by_layer.as_ref().map(|all| all.object(&i.to_string())).transpose()?.flatten() {
            layer.head_dim = own.usize_or("head_dim", layer.head_dim)?;
            layer.kv_heads = own.usize_or("num_key_value_heads", layer.kv_heads)?;
        }
    }
    Ok(())
}

/// Makes the last layers read the cache of the last earlier layer that has a window if they do.
fn share_caches(fields: &Fields<'_>, decoder: &mut DecoderConfig) -> Result<()> {
    let (layers, shared) = (&mut decoder.layers, fields.usize_or("num_kv_shared_layers", 0)?);
    let Some(first) = layers.len().checked_sub(shared) else {
        return Err(Error::Config(format!(
            "num_kv_shared_layers is {shared}, but there are only {} layers",
            layers.len()
        )));
    };
    let is_wide = fields.bool_or("use_double_wide_mlp", false)?;
    for i in first..layers.len() {
        let window = layers[i].window;
        let source = layers[..first].iter().rposition(|layer| layer.window == window);
        layers[i].source = source.ok_or_else(|| {
            let kind = if window.is_some() { "with" } else { "without" };
            Error::Config(format!("layer {i} shares a cache, but no earlier layer {kind} a window has one"))
        })?;
        layers[i].inner = layers[i].inner.saturating_mul(if is_wide { 2 } else { 1 });
    }
    Ok(())
}

fn set_ropes(fields: &Fields<'_>, decoder: &mut DecoderConfig) -> Result<()> {
    let max_positions = fields.usize_or("max_position_embeddings", POSITIONS)?;
    let plain = RopeDefaults::PLAIN;
    let wide = RopeDefaults { theta: 1e6, partial: Some(0.25), scaling: "proportional", ..plain };
    let mut ropes = Vec::new();
    for (kind, defaults, has_window) in [("full_attention", wide, false), ("sliding_attention", plain, true)] {
        let mut sizes = decoder.layers.iter().filter(|layer| layer.window.is_some() == has_window).map(|l| l.head_dim);
        let head_dim = sizes.next().unwrap_or(2);
        if sizes.any(|size| size != head_dim) {
            return Err(Error::Unsupported(format!(
                "layers of {kind} with heads of several sizes are not implemented"
            )));
        }
        let sizes = RopeSizes { head_dim, max_positions };
        ropes.push(rope::of_layers(fields, kind, sizes, defaults, || rope::read(fields, sizes, defaults))?);
    }
    decoder.ropes = ropes;
    decoder.select_ropes(|layer| Some(usize::from(layer.window.is_some())));
    Ok(())
}
