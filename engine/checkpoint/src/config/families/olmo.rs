//! OLMo 2 and 3: norms after attention and after the feed-forward layer, and norms of whole rows of heads. OLMo 3 has
//! windows in three layers of four.

use super::{Defaults, Family, rope_sizes, set_windows, sliding_layers, window_size};
use crate::config::decoder::{DecoderConfig, HeadNorm, LayerNorms};
use crate::config::rope::{self, RopeDefaults};

const DEFAULTS: Defaults =
    Defaults { vocab: 50304, eps: ("rms_norm_eps", 1e-5), bos: None, eos: &[50279], ..Defaults::LLAMA };

const NORMS: LayerNorms = LayerNorms {
    before_attention: None,
    after_attention: Some("post_attention_layernorm"),
    before_mlp: None,
    after_mlp: Some("post_feedforward_layernorm"),
    parallel: false,
};

pub const OLMO2: Family = Family {
    class: "Olmo2ForCausalLM",
    names: &["Olmo2Model", "olmo2"],
    multimodal: &[],
    defaults: DEFAULTS,
    select: |_, decoder| {
        set_norms(decoder);
        Ok(())
    },
};

pub const OLMO3: Family = Family {
    class: "Olmo3ForCausalLM",
    names: &["Olmo3Model", "olmo3"],
    multimodal: &[],
    defaults: DEFAULTS,
    select: |fields, decoder| {
        set_norms(decoder);
        let sliding = sliding_layers(fields, decoder.layers.len(), |layer| (layer + 1) % 4 != 0)?;
        set_windows(decoder, &sliding, window_size(fields, Some(4096))?)?;
        let (sizes, defaults) =
            (rope_sizes(fields, decoder, 2048)?, RopeDefaults { theta: 5e5, ..RopeDefaults::PLAIN });
        // A scaling that is not given for each type of layer applies to layers without a window.
        decoder.ropes = vec![
            rope::of_layers(fields, "full_attention", sizes, defaults, || rope::read(fields, sizes, defaults))?,
            rope::of_layers(fields, "sliding_attention", sizes, defaults, || rope::unscaled(fields, sizes, defaults))?,
        ];
        decoder.select_ropes(|layer| Some(usize::from(layer.window.is_some())));
        Ok(())
    },
};

fn set_norms(decoder: &mut DecoderConfig) {
    decoder.layer_norms = NORMS;
    decoder.head_norm = HeadNorm::Row;
}
