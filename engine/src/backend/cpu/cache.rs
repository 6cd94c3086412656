//! The pool of KV blocks on a CPU. With one group of layers, the layers are consecutive, and each is an array of blocks
//! in the layout of [`cpu::KvShape`]. With several groups, a block's layers are consecutive, and the pages of all groups
//! share one array.

use std::ops::Range;

use cpu::pages;
use memmap2::MmapMut;

use crate::error::{Error, Result};
use crate::kv::{BlockCopy, BlockMoves, KvLayout, LayerPlace};

/// Keys and values of all blocks. The system commits memory when blocks are first written, in large pages where it has
/// them. A head's keys in a block are as large as a small page, so with small pages each would need an address
/// translation of its own.
pub struct CpuKvCache {
    pub(super) layout: KvLayout,
    pub(super) num_blocks: usize,
    /// Anonymous memory. It is zeroed and page-aligned, and the system refuses the mapping if there is too little
    /// memory.
    pub(super) data: MmapMut,
    /// The swap space: an array of blocks, each with its layers one after the other.
    swap: MmapMut,
}

impl CpuKvCache {
    pub(super) fn new(layout: KvLayout, num_blocks: usize, swap_blocks: usize) -> Result<Self> {
        if layout.block_size == 0 || layout.groups.iter().any(|group| group.head_dim == 0 && group.state.is_none()) {
            return Err(Error::Option("a KV block needs at least one token and one element per head".into()));
        }
        let (data, swap) = (reserve(&layout, num_blocks)?, reserve(&layout, swap_blocks)?);
        Ok(CpuKvCache { layout, num_blocks, data, swap })
    }

    /// The first byte of a layer's array of blocks.
    fn layer_start(&self, LayerPlace { group, index }: LayerPlace) -> usize {
        let distance = if self.layout.groups.len() == 1 { self.num_blocks } else { 1 };
        index * distance * self.layout.layer_bytes(group)
    }

    /// The blocks of one layer, in the layout of [`cpu::KvShape`]. With several groups, the distance between the layer's
    /// blocks is [`KvLayout::id_step`].
    pub(super) fn layer(&self, place: LayerPlace) -> &[u8] {
        &self.data[self.layer_range(place)]
    }

    fn layer_range(&self, place: LayerPlace) -> Range<usize> {
        let start = self.layer_start(place);
        match self.layout.groups.len() {
            1 => start..start + self.num_blocks * self.layout.layer_bytes(place.group),
            _ => start..self.data.len(),
        }
    }

    /// The states of a recurrent layer. The state in block `id` of a batch's tables begins at
    /// `id * stride`, with the returned stride.
    pub(super) fn states(&mut self, place: LayerPlace) -> (&mut [f32], usize) {
        let (range, stride) = (self.layer_range(place), self.layout.layer_bytes(place.group) / size_of::<f32>());
        let whole = range.len() / size_of::<f32>() * size_of::<f32>();
        (bytemuck::cast_slice_mut(&mut self.data[range][..whole]), stride)
    }

    /// Makes the moves list by list, because a page may pass from one group of layers to another between the lists.
    pub(super) fn move_blocks(&mut self, moves: &BlockMoves) {
        let BlockMoves { swap_out, swap_in, copies } = moves;
        for (place, BlockCopy { src, dst, .. }) in self.in_layers(swap_out) {
            let (from, to) = (self.cached(place, src), self.swapped(place, dst));
            self.swap[to].copy_from_slice(&self.data[from]);
        }
        for (place, BlockCopy { src, dst, .. }) in self.in_layers(swap_in) {
            let (from, to) = (self.swapped(place, src), self.cached(place, dst));
            self.data[to].copy_from_slice(&self.swap[from]);
        }
        for (place, BlockCopy { src, dst, .. }) in self.in_layers(copies) {
            let (from, to) = (self.cached(place, src), self.cached(place, dst));
            self.data.copy_within(from, to.start);
        }
    }

    /// The copies in each layer of their groups.
    fn in_layers(&self, copies: &[BlockCopy]) -> Vec<(LayerPlace, BlockCopy)> {
        let layers = |copy: &BlockCopy| {
            let (group, copy) = (copy.group as usize, *copy);
            (0..self.layout.groups[group].layers.len()).map(move |index| (LayerPlace { group, index }, copy))
        };
        copies.iter().flat_map(layers).collect()
    }

    /// The bytes of a block of the cache in one layer.
    fn cached(&self, place: LayerPlace, block: u32) -> Range<usize> {
        let size = self.layout.layer_bytes(place.group);
        let start = self.layer_start(place) + block as usize * self.layout.id_step(place.group) * size;
        start..start + size
    }

    /// The bytes of a block of the swap space in one layer.
    fn swapped(&self, LayerPlace { group, index }: LayerPlace, block: u32) -> Range<usize> {
        let size = self.layout.layer_bytes(group);
        let start = (block as usize * self.layout.groups[group].layers.len() + index) * size;
        start..start + size
    }

    /// Writes `key` and `value` (`[T, heads * head_dim]`) to their slots in one layer.
    pub(super) fn write(&mut self, place: LayerPlace, key: &[f32], value: &[f32], slots: &[u32]) {
        let (shape, range) = (self.layout.layer_shape(place.group), self.layer_range(place));
        cpu::write_kv(&shape, &mut self.data[range], key, value, slots);
    }
}

/// Maps memory for `blocks` pages.
fn reserve(layout: &KvLayout, blocks: usize) -> Result<MmapMut> {
    let bytes = layout
        .page_bytes()
        .checked_mul(blocks)
        .ok_or_else(|| Error::Memory(format!("{blocks} KV blocks exceed the address space")))?;
    pages::anonymous(bytes.max(1))
        .map_err(|e| Error::Memory(format!("cannot reserve {bytes} bytes for {blocks} KV blocks: {e}")))
}
