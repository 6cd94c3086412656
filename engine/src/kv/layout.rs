//! The shape of a KV cache.

use super::KvDtype;

/// The dimensions and the element type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Transformer layers.
    pub layers: usize,
    /// Key/value heads per layer.
    pub heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Element type of keys and values.
    pub dtype: KvDtype,
}

impl KvLayout {
    /// The shape of one layer, as the CPU kernels take it.
    pub(crate) fn layer_shape(&self) -> cpu::KvShape {
        let KvLayout { heads, head_dim, block_size, dtype, .. } = *self;
        cpu::KvShape { heads, head_dim, block_size, dtype }
    }

    /// Bytes per block: keys and values of `block_size` tokens in every layer, with their scales.
    pub fn block_bytes(&self) -> usize {
        2 * self.layers * self.heads * self.block_size * self.dtype.head_bytes(self.head_dim)
    }
}

/// The number of blocks that `tokens` tokens take.
pub fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}
