//! The order of value heads in files of Qwen3.5: every key head's first value head, then every key head's second, and so
//! on. In models, all value heads of a key head are next to each other.

use super::names::Architecture;
use crate::config::{ModelConfig, ModelFamily};
use crate::tensor::HostTensor;

/// How a tensor's rows or columns are reordered.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    key_heads: usize,
    heads: usize,
    /// Rows or columns of a head.
    size: usize,
    /// Rows before the first head.
    first: usize,
    has_columns: bool,
}

impl Tiling {
    /// Returns the order of the tensor that files call `name`, unless it is the model's.
    pub fn of(architecture: Architecture, config: &ModelConfig, name: &str) -> Option<Self> {
        let ModelFamily::Decoder(decoder) = &config.family else { return None };
        let layer = decoder.layers.iter().find_map(|layer| layer.recurrent)?;
        let is_tiled = matches!(architecture, Architecture::Qwen35 | Architecture::Qwen35Moe);
        if !is_tiled || layer.tiled || layer.key_heads == layer.heads {
            return None;
        }
        let (first, size) = match name.strip_prefix("blk.")?.split_once('.')?.1 {
            "attn_qkv.weight" | "ssm_conv1d.weight" => (2 * layer.key_width(), layer.value_dim),
            "attn_gate.weight" | "ssm_out.weight" => (0, layer.value_dim),
            "ssm_alpha.weight" | "ssm_beta.weight" | "ssm_a" | "ssm_dt.bias" => (0, 1),
            _ => return None,
        };
        let has_columns = name.ends_with("ssm_out.weight");
        Some(Tiling { key_heads: layer.key_heads, heads: layer.heads, size, first, has_columns })
    }

    /// Returns the tensor in the order of files.
    pub fn apply(self, tensor: HostTensor) -> HostTensor {
        let own = |at: usize| match at.checked_sub(self.first) {
            None => at,
            Some(element) => {
                let head = element / self.size;
                let own = head % self.key_heads * (self.heads / self.key_heads) + head / self.key_heads;
                self.first + own * self.size + element % self.size
            }
        };
        match self.has_columns {
            false => tensor.reordered(own),
            true => tensor.into_elements().transposed().reordered(own).transposed(),
        }
    }
}
