//! The pool of KV blocks.
//!
//! Layout: `[layer][block][kv head][keys | values]`. A head's part of a block holds its keys as `[head_dim][block_size]`
//! and its values as `[block_size][head_dim]`, each followed by its scales, `[block_size]`, if elements have 8 bits. With
//! keys transposed, a vector of scores for consecutive tokens grows by one multiply-add per element of the query and needs
//! no sum across lanes. All of a block in one layer is contiguous.

use half::f16;
use memmap2::MmapMut;

use super::pages;
use super::stored::{StoredElement, with_stored};
use crate::error::{Error, Result};
use crate::kv::{BlockCopy, BlockMoves, KvLayout};

/// Keys and values of all blocks. Memory is committed by the system as blocks are first written, in large pages where it has
/// them: a head's keys in a block are as many bytes as a small page, whose address would be looked up each time.
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
        with_stored!(self.layout.dtype, E => self.write_as::<E>(layer, key, value, slots));
    }

    fn write_as<E: StoredElement>(&mut self, layer: usize, key: &[f32], value: &[f32], slots: &[u32]) {
        let KvLayout { heads, head_dim, block_size, dtype, .. } = self.layout;
        let block_len = self.block_len();
        let size = self.num_blocks * block_len;
        let data = &mut self.data[layer * size..][..size];
        let part_len = block_size * dtype.head_bytes(head_dim);
        let mut stored = vec![E::zeroed(); head_dim];
        for (t, &slot) in slots.iter().enumerate() {
            let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
            let block = &mut data[block * block_len..][..block_len];
            for (head, parts) in block.chunks_exact_mut(2 * part_len).enumerate() {
                let row = (t * heads + head) * head_dim..(t * heads + head + 1) * head_dim;
                let (keys, values) = parts.split_at_mut(part_len);

                let scale = E::store(&key[row.clone()], &mut stored);
                let (keys, key_scales) = keys.split_at_mut(head_dim * block_size * size_of::<E>());
                let keys: &mut [E] = bytemuck::cast_slice_mut(keys);
                for (to, from) in keys[offset..].iter_mut().step_by(block_size).zip(&stored) {
                    *to = *from;
                }
                write_scale(key_scales, offset, scale);

                let (values, value_scales) = values.split_at_mut(head_dim * block_size * size_of::<E>());
                let values: &mut [E] = bytemuck::cast_slice_mut(values);
                let scale = E::store(&value[row], &mut values[offset * head_dim..][..head_dim]);
                write_scale(value_scales, offset, scale);
            }
        }
    }
}

/// Writes the scale of the token at `offset` in a block, if there is one.
fn write_scale(scales: &mut [u8], offset: usize, scale: Option<f16>) {
    if let Some(scale) = scale {
        scales.as_chunks_mut().0[offset] = scale.to_le_bytes();
    }
}

/// Memory for `blocks` blocks.
fn reserve(layout: KvLayout, blocks: usize) -> Result<MmapMut> {
    let KvLayout { layers, heads, head_dim, block_size, dtype } = layout;
    let bytes = [2, layers, heads, block_size, dtype.head_bytes(head_dim), blocks]
        .into_iter()
        .try_fold(1usize, |n, extent| n.checked_mul(extent))
        .ok_or_else(|| Error::Memory(format!("{blocks} KV blocks exceed the address space")))?;
    pages::anonymous(bytes.max(1))
        .map_err(|e| Error::Memory(format!("cannot reserve {bytes} bytes for {blocks} KV blocks: {e}")))
}
