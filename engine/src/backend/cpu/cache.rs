//! The pool of KV blocks on a CPU. Layers are consecutive, and each is an array of blocks in the layout of
//! [`cpu::KvShape`].

use cpu::pages;
use memmap2::MmapMut;

use crate::error::{Error, Result};
use crate::kv::{BlockCopy, BlockMoves, KvLayout};

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
        if layout.block_size == 0 || layout.head_dim == 0 {
            return Err(Error::Option("a KV block needs at least one token and one element per head".into()));
        }
        let (data, swap) = (reserve(layout, num_blocks)?, reserve(layout, swap_blocks)?);
        Ok(CpuKvCache { layout, num_blocks, data, swap })
    }

    /// Bytes of one block in one layer.
    fn block_len(&self) -> usize {
        self.layout.block_bytes() / self.layout.layers.max(1)
    }

    /// All blocks of one layer.
    pub(super) fn layer(&self, layer: usize) -> &[u8] {
        let size = self.num_blocks * self.block_len();
        &self.data[layer * size..][..size]
    }

    pub(super) fn move_blocks(&mut self, moves: &BlockMoves) {
        let BlockMoves { swap_out, swap_in, copies } = moves;
        let (layers, block) = (self.layout.layers, self.block_len());
        let cached = |layer: usize, id: u32| (layer * self.num_blocks + id as usize) * block;
        let swapped = |layer: usize, id: u32| (id as usize * layers + layer) * block;
        for layer in 0..layers {
            for &BlockCopy { src, dst } in swap_out {
                let (from, to) = (cached(layer, src), swapped(layer, dst));
                self.swap[to..to + block].copy_from_slice(&self.data[from..from + block]);
            }
            for &BlockCopy { src, dst } in swap_in {
                let (from, to) = (swapped(layer, src), cached(layer, dst));
                self.data[to..to + block].copy_from_slice(&self.swap[from..from + block]);
            }
            for &BlockCopy { src, dst } in copies {
                let from = cached(layer, src);
                self.data.copy_within(from..from + block, cached(layer, dst));
            }
        }
    }

    /// Writes `key` and `value` (`[T, heads * head_dim]`) to their slots.
    pub(super) fn write(&mut self, layer: usize, key: &[f32], value: &[f32], slots: &[u32]) {
        let shape = self.layout.layer_shape();
        let size = self.num_blocks * self.block_len();
        cpu::write_kv(&shape, &mut self.data[layer * size..][..size], key, value, slots);
    }
}

/// Maps memory for `blocks` blocks.
fn reserve(layout: KvLayout, blocks: usize) -> Result<MmapMut> {
    let KvLayout { layers, heads, head_dim, block_size, dtype } = layout;
    let bytes = [2, layers, heads, block_size, dtype.head_bytes(head_dim), blocks]
        .into_iter()
        .try_fold(1usize, |n, extent| n.checked_mul(extent))
        .ok_or_else(|| Error::Memory(format!("{blocks} KV blocks exceed the address space")))?;
    pages::anonymous(bytes.max(1))
        .map_err(|e| Error::Memory(format!("cannot reserve {bytes} bytes for {blocks} KV blocks: {e}")))
}
