//! The shape of one layer of a paged KV cache.

use checkpoint::tensor::KvDtype;

/// The shape of one layer of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key/value heads.
    pub heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// With `Some(n)`, only keys are cached. The last `n` elements of a key are its value.
    pub latent: Option<usize>,
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
        self.parts() * self.heads * self.part_bytes() + self.padding
    }

    /// Elements of a value.
    pub fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    /// Parts of a head's block: keys and values, or only keys.
    pub(super) fn parts(&self) -> usize {
        if self.latent.is_some() { 1 } else { 2 }
    }

    /// Bytes of the keys of a head in a block, or of the values.
    pub(super) fn part_bytes(&self) -> usize {
        self.block_size * self.dtype.head_bytes(self.head_dim)
    }
}
