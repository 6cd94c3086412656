//! The memory of each layer.

use super::{DecoderLayer, ModelConfig, ModelFamily};

/// The memory that a layer needs for a sequence between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerMemory {
    /// Keys and values of its tokens.
    Kv(LayerKv),
    /// A state of fixed size, in f32.
    State {
        /// Elements of the state.
        elements: usize,
    },
}

impl LayerMemory {
    /// The layer's keys and values. `None` for a recurrent layer.
    pub fn kv(self) -> Option<LayerKv> {
        match self {
            LayerMemory::Kv(kv) => Some(kv),
            LayerMemory::State { .. } => None,
        }
    }
}

impl From<LayerKv> for LayerMemory {
    fn from(kv: LayerKv) -> Self {
        LayerMemory::Kv(kv)
    }
}

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
    /// Describes the memory of every layer, in the order of the layers.
    pub fn memory_layers(&self) -> Vec<LayerMemory> {
        match &self.family {
            ModelFamily::Opt(_) | ModelFamily::Gpt2(_) => {
                let (heads, head_dim) = (self.kv_heads, self.head_dim);
                let layer = |source| LayerKv { heads, head_dim, window: None, source, latent: None };
                (0..self.layers).map(|source| LayerMemory::Kv(layer(source))).collect()
            }
            ModelFamily::Decoder(decoder) => {
                let kv = |layer: &DecoderLayer| LayerKv {
                    heads: layer.kv_heads,
                    head_dim: layer.head_dim,
                    window: layer.window,
                    source: layer.source,
                    latent: decoder.latent.map(|latent| latent.rank),
                };
                let layer = |layer: &DecoderLayer| match layer.recurrent {
                    Some(recurrent) => LayerMemory::State { elements: recurrent.state() },
                    None => LayerMemory::Kv(kv(layer)),
                };
                decoder.layers.iter().map(layer).collect()
            }
        }
    }

    /// Describes the keys and values of every attention layer, in the order of the layers.
    pub fn kv_layers(&self) -> Vec<LayerKv> {
        self.memory_layers().into_iter().filter_map(LayerMemory::kv).collect()
    }
}
