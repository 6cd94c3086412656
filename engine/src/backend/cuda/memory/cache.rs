//! The pool of KV blocks on the device, and the swap space in host memory.

use crate::backend::cuda::gpu;
use cuda_std::launch::{DevicePtr, DevicePtrMut, LaunchShape};
use cuda_std::vector::Vector;
use kernels::cache::{copy_blocks, copy_shape, swap_blocks_in, swap_blocks_out};
use kernels::floor::Floor;
use kernels::layout::Pages;
use launch::{DeviceBuffer, Event, PinnedBuffer};

use crate::backend::cuda::device::CudaDevice;
use crate::backend::cuda::step::inputs::StepInputs;
use crate::backend::cuda::step::queue::LaunchQueue;
use crate::error::Result;
use crate::kv::{BlockCopy, KvLayout};

/// Bytes of each staging buffer for swaps, or one block if that is larger.
const STAGING: usize = 32 << 20;

/// The layout of keys and values in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrays {
    /// Together in pages, as in [`kernels::layout`].
    One,
    /// Separate, as in [`kernels::attention::paper`]: pages of keys, then pages of values.
    Two,
}

/// Keys and values of all blocks: `[layer][block][page]`, or `[layer][keys, values][block][page]` if they are separate.
pub struct CudaKvCache {
    pages: Pages,
    arrays: Arrays,
    layers: u32,
    num_blocks: usize,
    /// `None` in rehearsals.
    memory: Option<DeviceBuffer<u8>>,
    swap: Option<SwapSpace>,
}

/// Blocks in host memory, each with its layers one after the other. They are copied through staging buffers on the
/// device, where a kernel gathers or scatters their pages. So the computation does not wait for transfers to the host.
struct SwapSpace {
    memory: PinnedBuffer<u8>,
    /// Number of blocks that fit a staging buffer.
    capacity: usize,
    out: Staging,
    back: Staging,
}

struct Staging {
    memory: DeviceBuffer<u8>,
    /// Recorded when a kernel or transfer has filled the buffer.
    full: Event,
    /// Recorded when the buffer's contents are no longer needed.
    free: Event,
}

impl Staging {
    fn new(device: &CudaDevice, bytes: usize) -> launch::Result<Self> {
        let memory = DeviceBuffer::uninit(&device.context, bytes)?.named("swap staging");
        Ok(Staging { memory, full: Event::new(&device.context)?, free: Event::new(&device.context)? })
    }
}

impl CudaKvCache {
    /// Creates a cache without memory, for rehearsals.
    pub fn rehearsed(layout: &KvLayout, arrays: Arrays) -> Self {
        let [group] = &layout.groups[..] else { unreachable!("caches of several groups are refused") };
        let pages = Pages {
            heads: group.heads as u32,
            head_size: group.head_dim as u32,
            block_size: layout.block_size as u32,
            format: layout.dtype.format(),
        };
        CudaKvCache { pages, arrays, layers: group.layers.len() as u32, num_blocks: 0, memory: None, swap: None }
    }

    /// Adds a pool of `num_blocks` blocks in `memory` and space for `swap_blocks` blocks on the host.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] if there is not enough memory for the swap space.
    pub fn new(
        device: &CudaDevice,
        rehearsed: CudaKvCache,
        (memory, num_blocks): (DeviceBuffer<u8>, usize),
        swap_blocks: usize,
    ) -> Result<Self> {
        let block = rehearsed.block_bytes();
        // Cleared because blocks are moved whole, even if they are partly filled.
        device.stream.clear(&memory).map_err(gpu)?;
        let swap = if swap_blocks == 0 {
            None
        } else {
            // Limited to a small part of the pool, because it uses device memory that was left free outside the pool.
            let capacity = (STAGING / block).min(num_blocks / 64).clamp(1, swap_blocks);
            Some(SwapSpace {
                memory: PinnedBuffer::zeroed(&device.context, swap_blocks * block).map_err(gpu)?,
                capacity,
                out: Staging::new(device, capacity * block).map_err(gpu)?,
                back: Staging::new(device, capacity * block).map_err(gpu)?,
            })
        };
        Ok(CudaKvCache { num_blocks, memory: Some(memory), swap, ..rehearsed })
    }

    /// The shape of a layer's pages.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Blocks in the pool, or 0 in rehearsals.
    pub fn blocks(&self) -> u32 {
        self.num_blocks as u32
    }

    /// Pages per block: one per layer, or two if keys and values are separate.
    fn pages_per_block(&self) -> u32 {
        match self.arrays {
            Arrays::One => self.layers,
            Arrays::Two => 2 * self.layers,
        }
    }

    /// Vectors per page.
    fn page_vectors(&self) -> u32 {
        match self.arrays {
            Arrays::One => self.pages.page_vectors(),
            Arrays::Two => self.pages.page_vectors() / 2,
        }
    }

    /// Distance in vectors between consecutive pages of a block.
    fn page_stride(&self) -> u64 {
        self.num_blocks as u64 * u64::from(self.page_vectors())
    }

    /// The address of page number `page` of the first block.
    fn array(&self, page: u64) -> DevicePtrMut<Vector> {
        let base = self.memory.as_ref().map_or(0, DeviceBuffer::address);
        DevicePtrMut::from_address(base + page * self.page_stride() * 16)
    }

    /// Bytes of a block in all layers.
    fn block_bytes(&self) -> usize {
        16 * self.layers as usize * self.pages.page_vectors() as usize
    }

    /// The address of a layer's pages.
    pub fn layer(&self, layer: usize) -> DevicePtrMut<Vector> {
        debug_assert_eq!(self.arrays, Arrays::One);
        self.array(layer as u64)
    }

    /// The address of a layer's keys, if they are separate.
    pub fn keys(&self, layer: usize) -> DevicePtrMut<Vector> {
        debug_assert_eq!(self.arrays, Arrays::Two);
        self.array(2 * layer as u64)
    }

    /// The address of a layer's values, if they are separate.
    pub fn values(&self, layer: usize) -> DevicePtrMut<Vector> {
        debug_assert_eq!(self.arrays, Arrays::Two);
        self.array(2 * layer as u64 + 1)
    }

    /// The pages of all layers.
    #[cfg(test)]
    pub(in crate::backend::cuda) fn memory(&self) -> Option<&DeviceBuffer<u8>> {
        self.memory.as_ref()
    }

    /// Queues a step's moves: first swaps out, then swaps in, then copies.
    pub fn move_blocks(&mut self, queue: &LaunchQueue, inputs: &StepInputs) {
        let moves = &inputs.moves;
        if let Some(swap) = &self.swap {
            for (i, chunk) in moves.swap_out.chunks(swap.capacity).enumerate() {
                let blocks = inputs.swapped_out().offset(i * swap.capacity).cast_const();
                self.swap_out(queue, swap, chunk, blocks);
            }
            for (i, chunk) in moves.swap_in.chunks(swap.capacity).enumerate() {
                let blocks = inputs.swapped_in().offset(i * swap.capacity).cast_const();
                self.swap_in(queue, swap, chunk, blocks);
            }
        }
        if !moves.copies.is_empty() {
            let call = copy_blocks {
                cache: self.array(0),
                pairs: inputs.copied().cast_const(),
                page_vectors: self.page_vectors(),
                layer_stride: self.page_stride(),
            };
            // SAFETY: the block pool has no block beyond the end of the cache, and no destination block is part of
            // another pair.
            unsafe { queue.launch(self.shape(&moves.copies), call, || self.floor(&moves.copies)) };
        }
    }

    fn shape(&self, moved: &[BlockCopy]) -> LaunchShape {
        copy_shape(self.page_vectors(), moved.len() as u32, self.pages_per_block())
    }

    fn floor(&self, moved: &[BlockCopy]) -> Floor {
        Floor { bytes: 2 * (moved.len() * self.block_bytes()) as u64, flops: 0 }
    }

    /// Moves blocks to the swap space. The transfer overlaps with later computation. Only the next use of the staging
    /// buffer waits for it.
    fn swap_out(&self, queue: &LaunchQueue, swap: &SwapSpace, moves: &[BlockCopy], blocks: DevicePtr<u32>) {
        let staging = &swap.out;
        queue.run(|device| device.stream.wait(&staging.free));
        let call = swap_blocks_out {
            cache: self.array(0).cast_const(),
            staging: staging.memory.as_mut_ptr().cast(),
            blocks,
            page_vectors: self.page_vectors(),
            layer_stride: self.page_stride(),
        };
        // SAFETY: the block pool has no block beyond the end of the cache, and a chunk has at most the buffer's `capacity`.
        unsafe { queue.launch(self.shape(moves), call, || self.floor(moves)) };
        let bytes = self.block_bytes();
        queue.run(|device| {
            staging.full.record(&device.stream)?;
            device.transfers.wait(&staging.full)?;
            for (from, block, count) in runs(moves.iter().map(|m| m.dst)) {
                let from = staging.memory.slice(from * bytes..(from + count) * bytes);
                // SAFETY: the buffer and the swap space live as long as the cache. Only transfers of this stream use
                // the swap space, one after the other.
                unsafe {
                    device.transfers.download_async(from, swap.memory.part(block * bytes..(block + count) * bytes))
                }?;
            }
            staging.free.record(&device.transfers)
        });
    }

    fn swap_in(&self, queue: &LaunchQueue, swap: &SwapSpace, moves: &[BlockCopy], blocks: DevicePtr<u32>) {
        let staging = &swap.back;
        let bytes = self.block_bytes();
        queue.run(|device| {
            device.transfers.wait(&staging.free)?;
            for (to, block, count) in runs(moves.iter().map(|m| m.src)) {
                let to = staging.memory.slice(to * bytes..(to + count) * bytes);
                // SAFETY: the buffer and the swap space live as long as the cache. Later transfers that write to this
                // part of the swap space are in the same stream, so they begin after this one.
                unsafe { device.transfers.upload_async(&swap.memory[block * bytes..(block + count) * bytes], to) }?;
            }
            staging.full.record(&device.transfers)?;
            device.stream.wait(&staging.full)
        });
        let call = swap_blocks_in {
            cache: self.array(0),
            staging: staging.memory.as_ptr().cast(),
            blocks,
            page_vectors: self.page_vectors(),
            layer_stride: self.page_stride(),
        };
        // SAFETY: the block pool has no block beyond the end of the cache. This stream has waited for the upload that
        // filled the buffer with these blocks.
        unsafe { queue.launch(self.shape(moves), call, || self.floor(moves)) };
        queue.run(|device| staging.free.record(&device.stream));
    }
}

/// Returns the runs of consecutive blocks: the index in the list where each begins, its first block, and its length.
fn runs(blocks: impl Iterator<Item = u32>) -> Vec<(usize, usize, usize)> {
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    for (at, block) in blocks.enumerate() {
        match runs.last_mut() {
            Some((_, first, count)) if *first + *count == block as usize => *count += 1,
            _ => runs.push((at, block as usize, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_blocks_form_runs() {
        assert_eq!(runs([3, 4, 5, 9, 8, 0].into_iter()), [(0, 3, 3), (3, 9, 1), (4, 8, 1), (5, 0, 1)]);
        assert_eq!(runs([].into_iter()), []);
    }
}
