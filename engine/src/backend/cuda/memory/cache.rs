//! The pool of KV blocks on the device, and the swap space in the host's memory.

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

/// Bytes of each staging buffer for swaps, or one block if that is more.
const STAGING: usize = 32 << 20;

/// How keys and values lie in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrays {
    /// Together in pages, as in [`kernels::layout`].
    One,
    /// Apart, as in [`kernels::attention::paper`]: pages of keys, then pages of values.
    Two,
}

/// Keys and values of all blocks: `[layer][block][page]`, or `[layer][keys, values][block][page]` where they lie apart.
pub struct CudaKvCache {
    pages: Pages,
    arrays: Arrays,
    layers: u32,
    num_blocks: usize,
    /// None in rehearsals.
    memory: Option<DeviceBuffer<u8>>,
    swap: Option<SwapSpace>,
}

/// Blocks in the host's memory, each with its layers one after the other. They go by way of staging buffers on the device,
/// where a kernel gathers and scatters their pages, so that the computation does not wait for transfers out.
struct SwapSpace {
    memory: PinnedBuffer<u8>,
    /// Blocks that fit a staging buffer.
    room: usize,
    out: Staging,
    back: Staging,
}

struct Staging {
    memory: DeviceBuffer<u8>,
    /// Happens when the kernel or the transfer has filled the buffer.
    full: Event,
    /// Happens when its contents are no longer needed.
    free: Event,
}

impl Staging {
    fn new(device: &CudaDevice, bytes: usize) -> launch::Result<Self> {
        let memory = DeviceBuffer::uninit(&device.context, bytes)?.named("swap staging");
        Ok(Staging { memory, full: Event::new(&device.context)?, free: Event::new(&device.context)? })
    }
}

impl CudaKvCache {
    /// A cache without memory, for rehearsals.
    pub fn rehearsed(layout: KvLayout, arrays: Arrays) -> Self {
        let pages = Pages {
            heads: layout.heads as u32,
            head_size: layout.head_dim as u32,
            block_size: layout.block_size as u32,
            format: layout.dtype.format(),
        };
        CudaKvCache { pages, arrays, layers: layout.layers as u32, num_blocks: 0, memory: None, swap: None }
    }

    /// The same with a pool of `num_blocks` blocks in `memory`, and room for `swap_blocks` blocks on the host.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] if there is no memory for these.
    pub fn new(
        device: &CudaDevice,
        rehearsed: CudaKvCache,
        (memory, num_blocks): (DeviceBuffer<u8>, usize),
        swap_blocks: usize,
    ) -> Result<Self> {
        let block = rehearsed.block_bytes();
        // Cleared, since blocks are moved as a whole, also those that are partly filled.
        device.stream.clear(&memory).map_err(gpu)?;
        let swap = if swap_blocks == 0 {
            None
        } else {
            // A small part of the pool: it comes out of the memory that is left free beside it.
            let room = (STAGING / block).min(num_blocks / 64).clamp(1, swap_blocks);
            Some(SwapSpace {
                memory: PinnedBuffer::zeroed(&device.context, swap_blocks * block).map_err(gpu)?,
                room,
                out: Staging::new(device, room * block).map_err(gpu)?,
                back: Staging::new(device, room * block).map_err(gpu)?,
            })
        };
        Ok(CudaKvCache { num_blocks, memory: Some(memory), swap, ..rehearsed })
    }

    /// The shape of a layer's pages.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Blocks in the pool; none in rehearsals.
    pub fn blocks(&self) -> u32 {
        self.num_blocks as u32
    }

    /// Pages of a block: one a layer, or one of keys and one of values.
    fn pages_of_a_block(&self) -> u32 {
        match self.arrays {
            Arrays::One => self.layers,
            Arrays::Two => 2 * self.layers,
        }
    }

    /// Vectors of a page.
    fn page_vectors(&self) -> u32 {
        match self.arrays {
            Arrays::One => self.pages.page_vectors(),
            Arrays::Two => self.pages.page_vectors() / 2,
        }
    }

    /// Vectors from one of a block's pages to the next.
    fn page_stride(&self) -> u64 {
        self.num_blocks as u64 * u64::from(self.page_vectors())
    }

    /// The address of all blocks' pages with this number.
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

    /// The address of a layer's keys, where they lie apart.
    pub fn keys(&self, layer: usize) -> DevicePtrMut<Vector> {
        debug_assert_eq!(self.arrays, Arrays::Two);
        self.array(2 * layer as u64)
    }

    /// The address of a layer's values, where they lie apart.
    pub fn values(&self, layer: usize) -> DevicePtrMut<Vector> {
        debug_assert_eq!(self.arrays, Arrays::Two);
        self.array(2 * layer as u64 + 1)
    }

    /// The pages of all layers.
    #[cfg(test)]
    pub(in crate::backend::cuda) fn memory(&self) -> Option<&DeviceBuffer<u8>> {
        self.memory.as_ref()
    }

    /// Queues a step's moves: blocks that are swapped out, then those that are swapped in, then copies.
    pub fn move_blocks(&mut self, queue: &LaunchQueue, inputs: &StepInputs) {
        let moves = &inputs.moves;
        if let Some(swap) = &self.swap {
            for (i, chunk) in moves.swap_out.chunks(swap.room).enumerate() {
                let blocks = inputs.swapped_out().offset(i * swap.room).cast_const();
                self.swap_out(queue, swap, chunk, blocks);
            }
            for (i, chunk) in moves.swap_in.chunks(swap.room).enumerate() {
                let blocks = inputs.swapped_in().offset(i * swap.room).cast_const();
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
            // SAFETY: the block pool has no block beyond the end of the cache, and none that is written is in another
            // pair.
            unsafe { queue.launch(self.shape(&moves.copies), call, || self.floor(&moves.copies)) };
        }
    }

    fn shape(&self, moved: &[BlockCopy]) -> LaunchShape {
        copy_shape(self.page_vectors(), moved.len() as u32, self.pages_of_a_block())
    }

    fn floor(&self, moved: &[BlockCopy]) -> Floor {
        Floor { bytes: 2 * (moved.len() * self.block_bytes()) as u64, flops: 0 }
    }

    /// Moves blocks to the swap space. The transfer goes on while the stream computes; only the next use of the staging
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
        // SAFETY: the block pool has no block beyond the end of the cache, and a chunk is no longer than the buffer's
        // `room`.
        unsafe { queue.launch(self.shape(moves), call, || self.floor(moves)) };
        let bytes = self.block_bytes();
        queue.run(|device| {
            staging.full.record(&device.stream)?;
            device.transfers.wait(&staging.full)?;
            for (from, block, count) in runs(moves.iter().map(|m| m.dst)) {
                let from = staging.memory.slice(from * bytes..(from + count) * bytes);
                // SAFETY: the buffer and the swap space live as long as the cache, and the swap space is used by
                // nothing but the transfers of this stream, one after the other.
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
                // SAFETY: the buffer and the swap space live as long as the cache, and a later transfer that writes to
                // this part of the swap space is in the same stream, so that it begins after this one.
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
        // SAFETY: the block pool has no block beyond the end of the cache, and the upload that this stream has waited
        // for filled the buffer with these blocks.
        unsafe { queue.launch(self.shape(moves), call, || self.floor(moves)) };
        queue.run(|device| staging.free.record(&device.stream));
    }
}

/// Runs of consecutive blocks: where each begins in the list, its first block, and its length.
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
    fn neighbours_are_moved_together() {
        assert_eq!(runs([3, 4, 5, 9, 8, 0].into_iter()), [(0, 3, 3), (3, 9, 1), (4, 8, 1), (5, 0, 1)]);
        assert_eq!(runs([].into_iter()), []);
    }
}
