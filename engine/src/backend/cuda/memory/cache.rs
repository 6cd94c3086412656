//! The pool of KV blocks on the device, and the swap space in host memory.
//!
//! With one group of layers, each layer is an array of blocks: `[layer][block]`. With several groups, the pages of all
//! groups share one array, and a block's layers are consecutive: `[page][block of the page][layer]`. A layer is then an
//! array that begins at its own part of the first block, and block ids count layers ([`KvLayout::id_step`]). The paper's
//! kernels keep keys and values apart. With one group, each layer has an array of each: `[layer][keys, values][block]`.
//! With several groups, all keys come first: `[keys, values][page][block of the page][layer]`.

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
use crate::error::{Error, Result};
use crate::kv::{BlockCopy, KvLayout, LayerPlace};

/// Bytes of each staging buffer for swaps, or one page if that is larger.
const STAGING: usize = 32 << 20;
/// Bytes of a vector.
const VECTOR_BYTES: usize = size_of::<Vector>();

/// The layout of keys and values in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrays {
    /// Together, as in [`kernels::layout`].
    One,
    /// Separate, as in [`kernels::attention::paper`].
    Two,
}

/// Keys and values of all blocks.
pub struct CudaKvCache {
    layout: KvLayout,
    arrays: Arrays,
    /// Number of the layout's pages. With one group of layers, a page is a block.
    num_pages: usize,
    /// `None` in rehearsals.
    memory: Option<DeviceBuffer<u8>>,
    swap: Option<SwapSpace>,
}

/// Blocks in host memory, each with its layers one after the other. They are copied through staging buffers on the
/// device, where a kernel gathers or scatters their layers. So the computation does not wait for transfers to the host.
struct SwapSpace {
    memory: PinnedBuffer<u8>,
    /// Bytes of a staging buffer.
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

/// The memory of a group's blocks, as the kernels that move blocks take it: a block has `runs` runs of consecutive
/// vectors.
#[derive(Clone, Copy)]
struct BlockRuns {
    /// Vectors in a run.
    vectors: u32,
    /// Number of runs.
    runs: u32,
    /// Distance in vectors between a block's runs.
    stride: u64,
}

impl Staging {
    fn new(device: &CudaDevice, bytes: usize) -> launch::Result<Self> {
        let memory = DeviceBuffer::uninit(&device.context, bytes)?.named("swap staging");
        Ok(Staging { memory, full: Event::new(&device.context)?, free: Event::new(&device.context)? })
    }
}

/// Refuses caches that the GPU's kernels cannot address.
///
/// # Errors
/// [`Error::Unsupported`] if keys and values of 16 bits have padding, or states are not whole vectors.
pub fn check_layout(layout: &KvLayout) -> Result<()> {
    for (group, shape) in layout.groups.iter().enumerate() {
        if shape.state.is_some() {
            if !layout.layer_bytes(group).is_multiple_of(VECTOR_BYTES) {
                let what =
                    "the states of recurrent layers are not whole vectors of 16 bytes, as the GPU's kernels need";
                return Err(Error::Unsupported(what.into()));
            }
        } else if !layout.dtype.format().is_coded() && pages(layout, group).padding > 0 {
            return Err(Error::Unsupported(format!(
                "the KV caches of this model's layers need padding in {}, which the GPU's 16-bit kernels cannot skip; use \
                 an 8-bit kv-dtype, or run the model on the CPU",
                layout.dtype
            )));
        }
    }
    Ok(())
}

/// The shape of the blocks in each layer of a group. The kernels call a block's part in one layer a page. The halves of
/// latent keys take the places of keys and values. Latent keys have 16 bits, since a backend refuses others when it is
/// created.
fn pages(layout: &KvLayout, group: usize) -> Pages {
    let shape = &layout.groups[group];
    let tight = Pages {
        heads: shape.heads as u32,
        head_size: if shape.latent.is_some() { shape.head_dim / 2 } else { shape.head_dim } as u32,
        block_size: layout.block_size as u32,
        format: layout.dtype.format(),
        padding: 0,
    };
    Pages { padding: (layout.layer_bytes(group) / VECTOR_BYTES) as u32 - tight.page_vectors(), ..tight }
}

impl CudaKvCache {
    /// Creates a cache without memory, for rehearsals.
    pub fn rehearsed(layout: &KvLayout, arrays: Arrays) -> Self {
        CudaKvCache { layout: layout.clone(), arrays, num_pages: 0, memory: None, swap: None }
    }

    /// Adds a pool of `num_pages` pages in `memory` and space for `swap_pages` pages on the host.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] if there is not enough memory for the swap space.
    pub fn new(
        device: &CudaDevice,
        rehearsed: CudaKvCache,
        (memory, num_pages): (DeviceBuffer<u8>, usize),
        swap_pages: usize,
    ) -> Result<Self> {
        let page = rehearsed.layout.page_bytes();
        // Cleared because blocks are moved whole, even if they are partly filled.
        device.stream.clear(&memory).map_err(gpu)?;
        let swap = if swap_pages == 0 {
            None
        } else {
            // Limited to a small part of the pool, because it uses device memory that was left free outside the pool.
            let capacity = page * (STAGING / page).min(num_pages / 64).clamp(1, swap_pages);
            Some(SwapSpace {
                memory: PinnedBuffer::zeroed(&device.context, swap_pages * page).map_err(gpu)?,
                capacity,
                out: Staging::new(device, capacity).map_err(gpu)?,
                back: Staging::new(device, capacity).map_err(gpu)?,
            })
        };
        Ok(CudaKvCache { num_pages, memory: Some(memory), swap, ..rehearsed })
    }

    /// The group whose block tables and slots belong to a layer.
    pub fn group(&self, layer: usize) -> usize {
        self.layout.place(layer).group
    }

    /// The shape of the blocks in a layer.
    pub fn pages(&self, layer: usize) -> Pages {
        pages(&self.layout, self.group(layer))
    }

    /// The number of ids of a layer's blocks, or 0 in rehearsals.
    pub fn ids(&self, layer: usize) -> u32 {
        let LayerPlace { group, index } = self.layout.place(layer);
        if self.has_one_group() {
            return self.num_pages as u32;
        }
        let parts = self.array_vectors() / u64::from(self.layer_vectors(group));
        parts.saturating_sub(index as u64) as u32
    }

    fn has_one_group(&self) -> bool {
        self.layout.groups.len() == 1
    }

    /// Number of arrays that a layer's keys and values are in.
    fn num_arrays(&self) -> u32 {
        match self.arrays {
            Arrays::One => 1,
            Arrays::Two => 2,
        }
    }

    /// Vectors of a block in one array of a layer.
    fn layer_vectors(&self, group: usize) -> u32 {
        (self.layout.layer_bytes(group) / VECTOR_BYTES) as u32 / self.num_arrays()
    }

    /// Vectors of all pages in one array of a cache with several groups.
    fn array_vectors(&self) -> u64 {
        let page = self.layout.page_bytes() / VECTOR_BYTES / self.num_arrays() as usize;
        self.num_pages as u64 * page as u64
    }

    /// The address of an array of a layer.
    fn array(&self, layer: usize, array: u32) -> DevicePtrMut<Vector> {
        let LayerPlace { group, index } = self.layout.place(layer);
        let (index, vectors) = (index as u64, u64::from(self.layer_vectors(group)));
        let (array, arrays) = (u64::from(array), u64::from(self.num_arrays()));
        let first = if self.has_one_group() {
            (index * arrays + array) * self.num_pages as u64 * vectors
        } else {
            array * self.array_vectors() + index * vectors
        };
        self.start().offset(first as usize)
    }

    /// The address of the first block.
    fn start(&self) -> DevicePtrMut<Vector> {
        DevicePtrMut::from_address(self.memory.as_ref().map_or(0, DeviceBuffer::address))
    }

    /// The address of a layer's keys and values.
    pub fn layer(&self, layer: usize) -> DevicePtrMut<Vector> {
        debug_assert_eq!(self.arrays, Arrays::One);
        self.array(layer, 0)
    }

    /// The address of the states of a recurrent layer, and the number of vectors between two states.
    pub fn states(&self, layer: usize) -> (DevicePtrMut<Vector>, u32) {
        (self.layer(layer), self.layer_vectors(self.group(layer)))
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> u32 {
        self.layout.block_size as u32
    }

    /// The address of a layer's keys, if they are separate.
    pub fn keys(&self, layer: usize) -> DevicePtrMut<Vector> {
        debug_assert_eq!(self.arrays, Arrays::Two);
        self.array(layer, 0)
    }

    /// The address of a layer's values, if they are separate.
    pub fn values(&self, layer: usize) -> DevicePtrMut<Vector> {
        debug_assert_eq!(self.arrays, Arrays::Two);
        self.array(layer, 1)
    }

    /// The blocks of all layers.
    #[cfg(test)]
    pub(in crate::backend::cuda) fn memory(&self) -> Option<&DeviceBuffer<u8>> {
        self.memory.as_ref()
    }

    /// Queues a step's moves: first swaps out, then swaps in, then copies. The moves of each list are in the order of
    /// their groups.
    pub fn move_blocks(&mut self, queue: &LaunchQueue, inputs: &StepInputs) {
        let moves = &inputs.moves;
        if let Some(swap) = &self.swap {
            for (first, chunk) in self.chunks(&moves.swap_out, swap.capacity) {
                self.swap_out(queue, swap, chunk, inputs.swapped_out().offset(first).cast_const());
            }
            for (first, chunk) in self.chunks(&moves.swap_in, swap.capacity) {
                self.swap_in(queue, swap, chunk, inputs.swapped_in().offset(first).cast_const());
            }
        }
        for (first, chunk) in self.chunks(&moves.copies, usize::MAX) {
            let BlockRuns { vectors, stride, .. } = self.runs(chunk);
            let call = copy_blocks {
                cache: self.start(),
                pairs: inputs.copied().offset(2 * first).cast_const(),
                page_vectors: vectors,
                layer_stride: stride,
            };
            // SAFETY: the block pool has no block beyond the end of the cache, and no destination block is part of
            // another pair.
            unsafe { queue.launch(self.shape(chunk), call, || self.floor(chunk)) };
        }
    }

    /// Divides moves into chunks of blocks of one group that take at most `capacity` bytes. Returns the index of each
    /// chunk's first move.
    fn chunks<'a>(&self, moves: &'a [BlockCopy], capacity: usize) -> impl Iterator<Item = (usize, &'a [BlockCopy])> {
        let groups = moves.chunk_by(|a, b| a.group == b.group);
        let chunks = groups.flat_map(move |moves| moves.chunks((capacity / self.block_bytes(moves)).max(1)));
        let mut next = 0;
        chunks.map(move |chunk| {
            let first = next;
            next += chunk.len();
            (first, chunk)
        })
    }

    /// Bytes of each block of moves in one group.
    fn block_bytes(&self, moves: &[BlockCopy]) -> usize {
        moves.first().map_or(0, |first| self.layout.group_block_bytes(first.group as usize))
    }

    /// The memory of each block of moves in one group.
    fn runs(&self, moves: &[BlockCopy]) -> BlockRuns {
        let group = moves.first().map_or(0, |first| first.group as usize);
        let (layers, vectors) = (self.layout.groups[group].layers.len() as u32, self.layer_vectors(group));
        if self.has_one_group() {
            let stride = self.num_pages as u64 * u64::from(vectors);
            return BlockRuns { vectors, runs: layers * self.num_arrays(), stride };
        }
        BlockRuns { vectors: layers * vectors, runs: self.num_arrays(), stride: self.array_vectors() }
    }

    fn shape(&self, moves: &[BlockCopy]) -> LaunchShape {
        let BlockRuns { vectors, runs, .. } = self.runs(moves);
        copy_shape(vectors, moves.len() as u32, runs)
    }

    fn floor(&self, moves: &[BlockCopy]) -> Floor {
        Floor { bytes: 2 * (moves.len() * self.block_bytes(moves)) as u64, flops: 0 }
    }

    /// Moves blocks to the swap space. The transfer overlaps with later computation. Only the next use of the staging
    /// buffer waits for it.
    fn swap_out(&self, queue: &LaunchQueue, swap: &SwapSpace, moves: &[BlockCopy], blocks: DevicePtr<u32>) {
        let (staging, bytes) = (&swap.out, self.block_bytes(moves));
        let BlockRuns { vectors, stride, .. } = self.runs(moves);
        queue.run(|device| device.stream.wait(&staging.free));
        let call = swap_blocks_out {
            cache: self.start().cast_const(),
            staging: staging.memory.as_mut_ptr().cast(),
            blocks,
            page_vectors: vectors,
            layer_stride: stride,
        };
        // SAFETY: the block pool has no block beyond the end of the cache, and a chunk takes at most the buffer's
        // `capacity`.
        unsafe { queue.launch(self.shape(moves), call, || self.floor(moves)) };
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
        let (staging, bytes) = (&swap.back, self.block_bytes(moves));
        let BlockRuns { vectors, stride, .. } = self.runs(moves);
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
            cache: self.start(),
            staging: staging.memory.as_ptr().cast(),
            blocks,
            page_vectors: vectors,
            layer_stride: stride,
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
