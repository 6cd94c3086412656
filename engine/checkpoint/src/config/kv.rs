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
    /// With `Some(n)`, the layer caches keys only. The last `n` elements of a key are its value.
    pub latent: Option<usize>,
}

impl ModelConfig {
    /// Describes the cache of every layer, in the order of the layers.
    pub fn kv_layers(&self) -> Vec<LayerKv> {
        match &self.family {
            ModelFamily::Opt(_) | ModelFamily::Gpt2(_) => {
                let (heads, head_dim) = (self.kv_heads, self.head_dim);
                let layer = |source| LayerKv { heads, head_dim, window: None, source, latent: None };
                (0..self.layers).map(layer).collect()
            }
            ModelFamily::Decoder(decoder) => {
                let layers = decoder.layers.iter();
                let layer = layers.map(|layer| LayerKv {
                    heads: layer.kv_heads,
                    head_dim: layer.head_dim,
                    window: layer.window,
                    source: layer.source,
                    latent: decoder.latent.map(|latent| latent.rank),
                });
                layer.collect()
            }
        }
    }
}
