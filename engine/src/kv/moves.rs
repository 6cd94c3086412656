//! The block copies of a step.

/// The block copies of a step, to be made in this order: swap out, swap in, copy-on-write. Within each list no block is
/// written twice, and no written block is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockMoves {
    /// From blocks of the cache to blocks of the swap space.
    pub swap_out: Vec<BlockCopy>,
    /// From blocks of the swap space to blocks of the cache.
    pub swap_in: Vec<BlockCopy>,
    /// Copies within the cache: copy-on-write or compaction, never both in one step.
    pub copies: Vec<BlockCopy>,
}

impl BlockMoves {
    /// Sorts each list by group. The order within a list does not matter to the result.
    pub fn sort_by_group(&mut self) {
        for list in [&mut self.swap_out, &mut self.swap_in, &mut self.copies] {
            list.sort_by_key(|copy| copy.group);
        }
    }
}

/// A copy of one whole block to another, in every layer of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The group of layers.
    pub group: u32,
    /// Physical block read.
    pub src: u32,
    /// Physical block written.
    pub dst: u32,
}
