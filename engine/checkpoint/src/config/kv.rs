//! The keys and values that each layer keeps.

use super::{ModelConfig, ModelFamily};

/// The keys and values that a layer caches for each token, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerKv {
    /// Key/value heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// The number of positions that the layer sees, including its own. `None` for all.
    pub window: Option<usize>,
    /// The layer whose cache this layer reads. It is the layer itself, or an earlier one whose cache it shares.
    pub source: usize,
}

impl ModelConfig {
    /// Describes the cache of every layer, in the order of the layers.
    pub fn kv_layers(&self) -> Vec<LayerKv> {
        let window = |layer| match &self.family {
            ModelFamily::Opt(_) | ModelFamily::Gpt2(_) => None,
            ModelFamily::Llama(llama) => llama.window(layer),
        };
        let layer = |source| LayerKv { heads: self.kv_heads, head_dim: self.head_dim, window: window(source), source };
        (0..self.layers).map(layer).collect()
    }
}
