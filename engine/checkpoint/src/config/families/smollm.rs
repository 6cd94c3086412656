//! SmolLM3: LLaMA with layers that do not encode positions.

use super::{Defaults, Family, set_windows, sliding_layers, window_size};
use crate::config::rope::RopeDefaults;
use crate::error::Error;

pub const SMOLLM3: Family = Family {
    class: "SmolLM3ForCausalLM",
    names: &["SmolLM3Model", "smollm3"],
    multimodal: &[],
    defaults: Defaults {
        vocab: 128256,
        hidden: 2048,
        layers: 36,
        heads: 16,
        kv_heads: Some(4),
        positions: 32768,
        rope: RopeDefaults { theta: 2e6, ..RopeDefaults::PLAIN },
        tied: true,
        bos: Some(128000),
        eos: &[128001],
        ..Defaults::LLAMA
    },
    select: |fields, decoder| {
        let layers = decoder.layers.len();
        let interval = fields.usize_or("no_rope_layer_interval", 4)?.max(1);
        let rotates = match fields.usizes("no_rope_layers")? {
            // The name means the opposite: 1 stands for a layer with a rotation.
            Some(flags) if flags.len() >= layers => flags.into_iter().map(|flag| flag != 0).collect(),
            Some(flags) => {
                let count = flags.len();
                return Err(Error::Config(format!("no_rope_layers names {count} layers, but there are {layers}")));
            }
            None => (1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect::<Vec<bool>>(),
        };
        for (layer, _) in decoder.layers.iter_mut().zip(&rotates).filter(|(_, rotates)| !**rotates) {
            layer.rope = None;
        }
        let in_force = fields.bool_or("use_sliding_window", false)?;
        let Some(size) = window_size(fields, None)?.filter(|_| in_force) else { return Ok(()) };
        let sliding = sliding_layers(fields, layers, |layer| !rotates[layer])?;
        set_windows(decoder, &sliding, Some(size))
    },
};
