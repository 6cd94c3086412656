//! The shape of one layer of a paged KV cache.

use checkpoint::tensor::KvDtype;

/// The shape of one layer of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key/value heads.
    pub heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Element type of keys and values.
    pub dtype: KvDtype,
    /// Unused bytes after each block.
    pub padding: usize,
}

impl KvShape {
    /// Bytes of one block: keys and values of `block_size` tokens, their scales, and padding.
    pub fn block_bytes(&self) -> usize {
        2 * self.heads * self.block_size * self.dtype.head_bytes(self.head_dim) + self.padding
    }
}
