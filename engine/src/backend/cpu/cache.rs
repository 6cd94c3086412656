//! The pool of KV blocks.
//!
//! Layout: `[layer][block][kv head][keys | values]`. A head's part of a block holds its keys as `[head_dim][block_size]`
//! and its values as `[block_size][head_dim]`. With keys transposed, a vector of scores for consecutive tokens grows by
//! one multiply-add per element of the query and needs no sum across lanes. All of a block in one layer is contiguous.

use half::{bf16, f16};
use memmap2::MmapMut;

use super::element::Element;
use crate::error::{Error, Result};
use crate::kv::{BlockCopy, BlockMoves, KvLayout};
use crate::tensor::{DType, Elements};

/// Keys and values of all blocks. Memory is committed by the system as blocks are first written.
pub struct CpuKvCache {
    pub(super) layout: KvLayout,
    pub(super) num_blocks: usize,
    /// Anonymous memory: zeroed, page-aligned, and refused rather than fatal when there is too little.
    pub(super) data: MmapMut,
    /// The swap space: blocks by themselves, each with its layers one after the other.
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

    /// Elements of one block in one layer.
    fn block_len(&self) -> usize {
        2 * self.layout.heads * self.layout.head_dim * self.layout.block_size
    }

    fn bytes(&self) -> usize {
        self.layout.layers * self.num_blocks * self.block_len() * self.layout.dtype.size()
    }

    /// All elements of one layer.
    pub(super) fn layer(&self, layer: usize) -> Elements<'_> {
        let size = self.bytes() / self.layout.layers;
        let bytes = &self.data[layer * size..][..size];
        match self.layout.dtype {
            DType::F32 => Elements::F32(bytemuck::cast_slice(bytes)),
            DType::F16 => Elements::F16(bytemuck::cast_slice(bytes)),
            DType::Bf16 => Elements::Bf16(bytemuck::cast_slice(bytes)),
        }
    }

    pub(super) fn move_blocks(&mut self, moves: &BlockMoves) {
        let BlockMoves { swap_out, swap_in, copies } = moves;
        let (layers, block) = (self.layout.layers, self.block_len() * self.layout.dtype.size());
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
        match self.layout.dtype {
            DType::F32 => self.write_as::<f32>(layer, key, value, slots),
            DType::F16 => self.write_as::<f16>(layer, key, value, slots),
            DType::Bf16 => self.write_as::<bf16>(layer, key, value, slots),
        }
    }

    fn write_as<E: Element>(&mut self, layer: usize, key: &[f32], value: &[f32], slots: &[u32]) {
        let KvLayout { heads, head_dim, block_size, .. } = self.layout;
        let block_len = self.block_len();
        let size = self.num_blocks * block_len * size_of::<E>();
        let data: &mut [E] = bytemuck::cast_slice_mut(&mut self.data[layer * size..][..size]);
        let mut narrow = vec![E::zeroed(); head_dim];
        for (t, &slot) in slots.iter().enumerate() {
            let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
            let block = &mut data[block * block_len..][..block_len];
            for (head, part) in block.chunks_exact_mut(2 * head_dim * block_size).enumerate() {
                let (keys, values) = part.split_at_mut(head_dim * block_size);
                let row = (t * heads + head) * head_dim..(t * heads + head + 1) * head_dim;
                E::narrow(&key[row.clone()], &mut narrow);
                for (to, from) in keys[offset..].iter_mut().step_by(block_size).zip(&narrow) {
                    *to = *from;
                }
                E::narrow(&value[row], &mut values[offset * head_dim..][..head_dim]);
            }
        }
    }
}

/// Memory for `blocks` blocks.
fn reserve(layout: KvLayout, blocks: usize) -> Result<MmapMut> {
    let KvLayout { layers, heads, head_dim, block_size, dtype } = layout;
    let bytes = [2, layers, heads, head_dim, block_size, dtype.size(), blocks]
        .into_iter()
        .try_fold(1usize, |n, extent| n.checked_mul(extent))
        .ok_or_else(|| Error::Memory(format!("{blocks} KV blocks exceed the address space")))?;
    MmapMut::map_anon(bytes.max(1))
        .map_err(|e| Error::Memory(format!("cannot reserve {bytes} bytes for {blocks} KV blocks: {e}")))
}
