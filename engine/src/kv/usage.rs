//! Gauges of a pool.

/// How much of a pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Blocks that somebody holds.
    pub used_blocks: usize,
    /// Blocks that are held more than once.
    pub shared_blocks: usize,
    /// Blocks that nobody holds, whose contents can still be found.
    pub cached_blocks: usize,
    /// Slots in the used blocks.
    pub used_slots: usize,
    /// Slots in the used blocks that hold a token.
    pub filled_slots: usize,
}
