//! The operations that computing a prompt takes.

use engine::tools::config::{ModelConfig, ModelFamily};

/// Counts the operations of a model's prompts: two per weight and token, and four per element of a query head for each
/// position that the query sees.
#[derive(Clone, Debug)]
pub struct Work {
    /// Operations per token outside attention.
    pub(super) linear: f64,
    /// For each layer, operations per pair of a query and a key, and the window.
    pub(super) attention: Vec<(f64, Option<usize>)>,
}

impl Work {
    /// Returns the work of a decoder. `None` for other models.
    pub fn new(config: &ModelConfig) -> Option<Self> {
        let ModelFamily::Decoder(decoder) = &config.family else { return None };
        let weights = decoder.layers.iter().map(|layer| {
            let heads = 2 * layer.heads + 2 * layer.kv_heads;
            config.hidden * (heads * layer.head_dim + 3 * layer.inner)
        });
        let linear = 2.0 * weights.sum::<usize>() as f64;
        let pair = |heads: usize, head_dim: usize| 4.0 * (heads * head_dim) as f64;
        let attention = decoder.layers.iter().map(|layer| (pair(layer.heads, layer.head_dim), layer.window));
        Some(Work { linear, attention: attention.collect() })
    }

    /// Returns the operations of the first `tokens` tokens of a prompt.
    pub fn flops(&self, tokens: usize) -> f64 {
        let pairs = |window: Option<usize>| {
            let seen = window.unwrap_or(tokens).min(tokens);
            (seen * (seen + 1) / 2 + (tokens - seen) * seen) as f64
        };
        self.linear * tokens as f64 + self.attention.iter().map(|&(pair, window)| pair * pairs(window)).sum::<f64>()
    }
}
