//! The shape of a KV cache.

use crate::tensor::DType;

/// The shape of a KV cache.
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
    pub dtype: DType,
}

impl KvLayout {
    /// Bytes that one block takes: keys and values of `block_size` tokens in every layer.
    pub fn block_bytes(&self) -> usize {
        2 * self.layers * self.heads * self.head_dim * self.block_size * self.dtype.size()
    }
}

/// Blocks that hold `tokens` tokens.
pub fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}
