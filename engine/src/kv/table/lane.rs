//! The part of a block table that belongs to one group of layers.

use std::ops::{Deref, DerefMut};

use crate::kv::groups::CacheGroup;

/// The entry of a block that does not exist: the window has left it behind, it is still in the swap space, or no state is
/// kept there. Block numbers are smaller, so it is never used as one.
pub const NO_BLOCK: u32 = u32::MAX;

/// The blocks of one group of layers, in logical order. The first may have been given back. The others keep their
/// indices.
#[derive(Clone, Debug)]
pub struct Lane {
    pub(in crate::kv) blocks: Vec<u32>,
    /// The number of leading blocks that were given back.
    pub(in crate::kv) num_freed: usize,
    /// In a group of states, the block that the next step reads if its place in `blocks` is empty.
    pub(in crate::kv) source: u32,
}

impl Default for Lane {
    fn default() -> Self {
        Lane::new(Vec::new(), 0)
    }
}

impl Lane {
    pub(in crate::kv) fn new(blocks: Vec<u32>, num_freed: usize) -> Self {
        Lane { blocks, num_freed, source: NO_BLOCK }
    }

    /// The physical blocks, in logical order. The first entries may be placeholders for blocks that were given back,
    /// see [`BlockTable::slide`](super::BlockTable::slide).
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The physical blocks that were not given back, in logical order. In a group of states, most are [`NO_BLOCK`].
    pub fn live_blocks(&self) -> &[u32] {
        &self.blocks[self.num_freed..]
    }

    /// The blocks that the table references.
    pub fn present(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.live_blocks().iter().copied().filter(|&block| block != NO_BLOCK)
    }

    /// In a group of states, the block that a step reads which begins with the token at position `start`.
    pub fn state_before(&self, start: usize, block_size: usize) -> Option<u32> {
        let block = self.blocks[start.checked_sub(1)? / block_size];
        Some(if block == NO_BLOCK { self.source } else { block })
    }
}

/// The lanes of a table, at least one. A single lane needs no memory of its own, because most models have only one.
#[derive(Clone, Debug)]
pub enum Lanes {
    /// The lane of a cache with one group of layers.
    One([Lane; 1]),
    /// The lanes of several groups.
    Several(Vec<Lane>),
}

impl FromIterator<Lane> for Lanes {
    fn from_iter<I: IntoIterator<Item = Lane>>(lanes: I) -> Self {
        let mut lanes = lanes.into_iter();
        let first = lanes.next().unwrap_or_default();
        match lanes.next() {
            None => Lanes::One([first]),
            Some(second) => Lanes::Several([first, second].into_iter().chain(lanes).collect()),
        }
    }
}

impl Deref for Lanes {
    type Target = [Lane];

    #[inline]
    fn deref(&self) -> &[Lane] {
        match self {
            Lanes::One(lane) => lane,
            Lanes::Several(lanes) => lanes,
        }
    }
}

impl DerefMut for Lanes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Lane] {
        match self {
            Lanes::One(lane) => lane,
            Lanes::Several(lanes) => lanes,
        }
    }
}

/// The number of leading blocks that are outside the window of the token at position `tokens`.
pub fn num_out_of_window(group: &CacheGroup, tokens: usize, block_size: usize) -> usize {
    group.window.map_or(0, |window| (tokens + 1).saturating_sub(window)) / block_size
}
