//! How much of a pool is in use.

/// Counts of the blocks and slots of a pool. If there are several groups of layers, blocks are counted in units of equal
/// size, such that every group's block is a whole number of units, and slots are counted in every group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Blocks with references.
    pub used_blocks: usize,
    /// Blocks with several references.
    pub shared_blocks: usize,
    /// Cached blocks: no references, but still found by prefix lookups.
    pub cached_blocks: usize,
    /// Blocks that are out of use because adapters have their pages. They count neither as used nor as cached.
    pub adapter_blocks: usize,
    /// Slots in the used blocks.
    pub used_slots: usize,
    /// Slots in the used blocks that hold a token.
    pub filled_slots: usize,
}
