//! Blocks that a step moves.

/// The blocks that a step moves, in this order: out, in, copies. Within each list no block is written twice, and none
/// that is written is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockMoves {
    /// From blocks of the cache to blocks of the swap space.
    pub swap_out: Vec<BlockCopy>,
    /// From blocks of the swap space to blocks of the cache.
    pub swap_in: Vec<BlockCopy>,
    /// Within the cache: copy-on-write.
    pub copies: Vec<BlockCopy>,
}

/// "Copy all of block `src` to block `dst`, in every layer."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Physical block read.
    pub src: u32,
    /// Physical block written.
    pub dst: u32,
}
