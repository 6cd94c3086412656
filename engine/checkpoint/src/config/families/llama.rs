//! LLaMA 1 to 3, Mistral, Qwen2 and Qwen3. They differ in biases, windows and the norms of heads.

use super::{Defaults, Family, set_windows, sliding_layers, window_size};
use crate::config::MAX_POSITIONS;
use crate::config::decoder::{DecoderConfig, HeadNorm};
use crate::config::fields::{Fields, in_range};
use crate::error::Result;

pub const LLAMA: Family = Family {
    class: "LlamaForCausalLM",
    names: &["LLaMAForCausalLM", "LlamaModel", "llama"],
    multimodal: &[],
    defaults: Defaults::LLAMA,
    select: |_, _| Ok(()),
};

pub const MISTRAL: Family = Family {
    class: "MistralForCausalLM",
    names: &["MistralModel", "mistral"],
    multimodal: &[],
    defaults: Defaults { inner: 14336, kv_heads: Some(8), positions: 131072, ..Defaults::LLAMA },
    select: |fields, decoder| {
        set_biases(decoder, [false; 2]);
        let size = window_size(fields, Some(4096))?;
        let sliding = vec![size.is_some(); decoder.layers.len()];
        set_windows(decoder, &sliding, size)
    },
};

pub(super) const QWEN: Defaults = Defaults {
    vocab: 151936,
    inner: 22016,
    kv_heads: Some(32),
    positions: 32768,
    bos: None,
    eos: &[],
    ..Defaults::LLAMA
};

pub const QWEN2: Family = Family {
    class: "Qwen2ForCausalLM",
    names: &["Qwen2Model", "qwen2"],
    multimodal: &[],
    defaults: QWEN,
    select: |fields, decoder| {
        set_biases(decoder, [true, false]);
        windows(fields, decoder)
    },
};

pub const QWEN3: Family = Family {
    class: "Qwen3ForCausalLM",
    names: &["Qwen3Model", "qwen3"],
    multimodal: &[],
    defaults: Defaults { head_dim: Some(128), ..QWEN },
    select: |fields, decoder| {
        decoder.mlp_bias = false;
        decoder.head_norm = HeadNorm::Head;
        windows(fields, decoder)
    },
};

fn set_biases(decoder: &mut DecoderConfig, [qkv, o]: [bool; 2]) {
    (decoder.qkv_bias, decoder.o_bias, decoder.mlp_bias) = (qkv, o, false);
}

/// Reads the windows of Qwen's models, which are usually disabled.
pub(super) fn windows(fields: &Fields<'_>, decoder: &mut DecoderConfig) -> Result<()> {
    let in_force = fields.bool_or("use_sliding_window", false)?;
    let Some(size) = window_size(fields, Some(4096))?.filter(|_| in_force) else { return Ok(()) };
    in_range("sliding_window", size, MAX_POSITIONS)?;
    let first = fields.usize_or("max_window_layers", 28)?;
    let sliding = sliding_layers(fields, decoder.layers.len(), |layer| layer >= first)?;
    set_windows(decoder, &sliding, Some(size))
}
