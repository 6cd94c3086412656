//! The part of a block table that belongs to one group of layers.

use std::ops::{Deref, DerefMut};

use crate::kv::layout::CacheGroup;

/// The entry of a block that was given back because the window has left it behind, or that is still in the swap space.
/// Block numbers are smaller, so it is never used as one.
pub const NO_BLOCK: u32 = u32::MAX;

/// The blocks of one group of layers, in logical order. The first may have been given back. The others keep their
/// indices.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    pub(in crate::kv) blocks: Vec<u32>,
    /// The number of leading blocks that were given back.
    pub(in crate::kv) num_freed: usize,
}

impl Lane {
    /// The physical blocks, in logical order. The first entries may be placeholders for blocks that were given back,
    /// see [`BlockTable::slide`](super::BlockTable::slide).
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The physical blocks that the table references, in logical order.
    pub fn live_blocks(&self) -> &[u32] {
        &self.blocks[self.num_freed..]
    }

    /// The blocks that the table references, except those that are still in the swap space.
    pub(in crate::kv) fn present(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.live_blocks().iter().copied().filter(|&block| block != NO_BLOCK)
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
