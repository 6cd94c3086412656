//! The launch shape of `paged_prefill_hopper`, and the cache as a tensor.

#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::KernelCall;
use cuda_std::launch::{DevicePtr, LaunchShape, TensorTile, TileDimension};
use cuda_std::ptx::pattern::TilePattern;
use cuda_std::vector::Vector;

use crate::attention::AttentionShape;
use crate::gemm::hopper::ring;
use crate::layout::{KvFormat, VECTOR};
#[cfg(not(target_arch = "nvptx64"))]
use crate::{attention::with_constant, element::ElementType, with_element};

/// Warp groups that compute.
pub const GROUPS: u32 = 2;

/// Query rows per warp group.
pub const GROUP_ROWS: u32 = 64;

/// Threads per warp group.
pub const GROUP_THREADS: u32 = 128;

/// Threads per block: the computing groups and one more, whose first warp fetches.
pub const THREADS: u32 = (GROUPS + 1) * GROUP_THREADS;

/// Keys in a tile, which has the same number of values.
pub const KEYS: u32 = 128;

/// Tiles in the ring.
pub const STAGES: u32 = 3;

/// Returns the bytes of a tile's keys, or of its values.
pub const fn part_bytes(head_size: u32) -> u32 {
    2 * head_size * KEYS
}

/// Returns the bytes of a block's queries.
pub const fn query_bytes(head_size: u32) -> u32 {
    2 * head_size * GROUPS * GROUP_ROWS
}

/// Returns the bytes of dynamic shared memory: queries, the ring and its barriers, the `patched` barrier, and a
/// `scored` barrier per tile of the ring.
const fn shared_bytes(head_size: u32) -> u32 {
    query_bytes(head_size) + STAGES * 2 * part_bytes(head_size) + ring::barrier_bytes(STAGES) + 8 + 8 * STAGES
}

/// Returns whether this kernel supports a shape. [`paged_prefill`](super::super::paged_prefill()) supports all others.
pub const fn serves(shape: AttentionShape) -> bool {
    matches!(shape.head_size(), 64 | 128) && matches!(shape.pages().format, KvFormat::Plain) && !shape.is_capped()
}

/// Returns the launch for up to `tokens` new tokens in up to `sequences` sequences, as [`paged_prefill`'s
/// `launch_shape`](super::super::shape::launch_shape) does.
pub const fn launch_shape(shape: AttentionShape, tokens: u32, sequences: u32) -> LaunchShape {
    let tiles = tokens * shape.group() / (GROUPS * GROUP_ROWS) + sequences;
    LaunchShape::new([shape.pages().heads, tiles, 1], THREADS).with_shared(shared_bytes(shape.head_size()))
}

/// Returns a tensor view of a layer's `blocks` pages, which have no padding:
/// `[block][head, K or V][group of 8 tokens][head_size / 8][8 x 8]`.
///
/// A tile of the view is one head's keys in one page, or its values.
pub fn pages(shape: AttentionShape, cache: DevicePtr<Vector>, blocks: u32) -> TensorTile {
    let (pages, vector) = (shape.pages(), size_of::<Vector>() as u64);
    let (chunks, groups) = (pages.head_size / VECTOR, pages.block_size / VECTOR);
    let chunk = vector * u64::from(pages.block_size);
    let dimension = |size: u32, stride: u64, tile: u32| TileDimension { size: size.into(), stride, tile };
    let dimensions = [
        dimension(VECTOR * VECTOR, 2, VECTOR * VECTOR),
        dimension(chunks, chunk, chunks),
        dimension(groups, vector * u64::from(VECTOR), groups),
        dimension(2 * pages.heads, chunk * u64::from(chunks), 1),
        dimension(blocks, vector * u64::from(pages.page_vectors()), 1),
    ];
    TensorTile::new(cache.address(), 2, TilePattern::Plain, dimensions)
}

/// Converts the arguments of [`paged_prefill`](super::super::paged_prefill()), with the cache as a tensor.
#[cfg(not(target_arch = "nvptx64"))]
pub fn arguments(args: super::super::paged_prefill, cache: TensorTile) -> super::paged_prefill_hopper {
    let super::super::paged_prefill { output, query, tables, table_starts, query_starts, contexts, sequences, .. } =
        args;
    let super::super::paged_prefill { sinks, query_stride, kv_heads, group, block_size, window, scale, .. } = args;
    super::paged_prefill_hopper {
        cache,
        output,
        query,
        tables,
        table_starts,
        query_starts,
        contexts,
        sinks,
        sequences,
        query_stride,
        kv_heads,
        group,
        block_size,
        window,
        scale,
    }
}

/// Returns the kernel call with these arguments, for this element type and a shape that the kernel [serves].
#[cfg(not(target_arch = "nvptx64"))]
pub fn call(shape: AttentionShape, element: ElementType, args: super::paged_prefill_hopper) -> KernelCall {
    with_element!(element, T => with_constant!(shape.head_size(), D => args.instance::<T, D>(), 64 128))
}
