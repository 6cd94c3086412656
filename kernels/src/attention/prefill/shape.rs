//! The launch shape of `paged_prefill`, and the least memory traffic and arithmetic that it can cost.

#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::KernelCall;
use cuda_std::launch::LaunchShape;
use cuda_std::vector::Vector;

#[cfg(not(target_arch = "nvptx64"))]
use crate::attention::softcap::Softcap;
use crate::attention::{AttentionShape, is_latent, value_size};
use crate::floor::Floor;
use crate::layout::{KvFormat, VECTOR};
#[cfg(not(target_arch = "nvptx64"))]
use crate::{
    attention::{with_constant, with_head_size},
    element::ElementType,
    kv_element::key_factor,
    with_element, with_kv_element,
};

/// Warps per block.
pub const WARPS: u32 = 4;

/// Threads per block.
pub const THREADS: u32 = 32 * WARPS;

/// Query rows in a fragment, as one `mma` takes them.
pub const FRAGMENT: u32 = 16;

/// Tiles of keys and values in shared memory: warps compute with one while the next arrives.
pub const STAGES: u32 = 2;

/// Returns the fragments of query rows per warp.
///
/// Two fragments share every load of keys and values from shared memory. At 256 elements per row, the output of two
/// would not fit the registers.
pub const fn fragments(head_size: u32) -> u32 {
    if head_size <= 128 { 2 } else { 1 }
}

/// Returns the warps that share query rows. Each computes a part of their output, because the whole would not fit the
/// registers of one. All of them compute the scores.
pub const fn sharers(head_size: u32) -> u32 {
    if head_size <= 256 { 1 } else { 2 }
}

/// Returns the elements of a row's output that one warp computes.
pub const fn columns(head_size: u32) -> u32 {
    value_size(head_size) / sharers(head_size)
}

/// Returns the query rows of a tile, which one block computes.
pub const fn tile_rows(head_size: u32) -> u32 {
    WARPS / sharers(head_size) * FRAGMENT * fragments(head_size)
}

/// Returns the keys of a tile, which has the same number of values. With 8-bit codes, 64 scores per row and outputs of
/// more than 64 elements would not fit the registers together. At head size 512 shared memory is short.
pub const fn tile_keys(head_size: u32, format: KvFormat) -> u32 {
    let most = if format.is_coded() { 64 } else { 128 };
    if head_size <= most {
        64
    } else if head_size <= 256 || format.is_coded() {
        32
    } else {
        16
    }
}

/// Returns the bytes of a tile's query rows.
pub const fn row_bytes(head_size: u32) -> u32 {
    2 * head_size * tile_rows(head_size)
}

/// Returns the bytes of a tile's keys, or of its values, without scales.
pub const fn part_bytes(head_size: u32, format: KvFormat) -> u32 {
    head_size / format.vector_elements() * size_of::<Vector>() as u32 * tile_keys(head_size, format)
}

/// Returns the offset of values in a tile in bytes: after the keys, or within them.
pub const fn values_at(head_size: u32, format: KvFormat) -> u32 {
    if is_latent(head_size) {
        (head_size - value_size(head_size)) / VECTOR * size_of::<Vector>() as u32 * tile_keys(head_size, format)
    } else {
        part_bytes(head_size, format)
    }
}

/// Returns the bytes of a tile's keys and values, including scales.
pub const fn stage_bytes(head_size: u32, format: KvFormat) -> u32 {
    let parts = if is_latent(head_size) { 1 } else { 2 };
    parts * tile_keys(head_size, format) * format.head_bytes(head_size)
}

/// Returns whether the queries stay in registers. Otherwise output and scores leave too little room for them, and they
/// are loaded from shared memory for every tile.
pub const fn query_in_registers(head_size: u32, format: KvFormat) -> bool {
    head_size <= 64 || head_size == 256 && !format.is_coded()
}

/// Returns the launch for up to `tokens` new tokens in up to `sequences` sequences, and for at least one of each.
///
/// It does not depend on how the tokens are distributed, so a graph can replay it for other batches.
pub const fn launch_shape(shape: AttentionShape, tokens: u32, sequences: u32) -> LaunchShape {
    let size = shape.head_size();
    // Each sequence's last tile may be partial, so add one per sequence.
    let tiles = tokens * shape.group() / tile_rows(size) + sequences;
    let shared = row_bytes(size) + STAGES * stage_bytes(size, shape.pages().format);
    LaunchShape::new([shape.pages().heads, tiles, 1], THREADS).with_shared(shared)
}

/// Returns the kernel call with these arguments, for this element type and shape. For latent vectors it is a call of
/// [`paged_latent_attention()`](super::paged_latent_attention()), which has no window and no sinks.
#[cfg(not(target_arch = "nvptx64"))]
pub fn call(shape: AttentionShape, element: ElementType, args: super::paged_prefill) -> KernelCall {
    let size = shape.head_size();
    if shape.is_latent() {
        let super::paged_prefill { output, query, cache, tables, table_starts, query_starts, contexts, .. } = args;
        let super::paged_prefill { sequences, query_stride, group, block_size, scale, .. } = args;
        let args = super::paged_latent_attention {
            output,
            query,
            cache,
            tables,
            table_starts,
            query_starts,
            contexts,
            sequences,
            query_stride,
            group,
            block_size,
            scale,
        };
        return with_element!(element, T => with_constant!(size, D => args.instance::<T, D>(), 48 576));
    }
    with_kv_element!(element, shape.pages().format, T => with_head_size!(size, D => args.instance::<T, D>()))
}

/// Returns the call of [`paged_prefill_capped()`](super::paged_prefill_capped()) with these arguments and this softcap,
/// for this element type and a [capped](AttentionShape::with_softcap) shape.
#[cfg(not(target_arch = "nvptx64"))]
pub fn capped_call(shape: AttentionShape, element: ElementType, args: super::paged_prefill, cap: f32) -> KernelCall {
    let super::paged_prefill { output, query, cache, tables, table_starts, query_starts, contexts, .. } = args;
    let super::paged_prefill { sinks, sequences, query_stride, kv_heads, group, block_size, padding, .. } = args;
    let super::paged_prefill { window, scale, .. } = args;
    let format = shape.pages().format;
    let Softcap { inner, outer } = Softcap::new(scale * key_factor(element, format), cap);
    let args = super::paged_prefill_capped {
        output,
        query,
        cache,
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
        padding,
        window,
        inner,
        outer,
    };
    with_kv_element!(element, format, T => with_constant!(shape.head_size(), D => args.instance::<T, D>(), 32 128 256))
}

/// Returns the floor of one sequence's attention. A batch's floor is the sum.
///
/// It counts reading queries, writing outputs, and reading each visible key and value once. A query and a key that it
/// sees take 4 operations per element.
///
/// `new` of the `context` tokens are queries. With `window` w > 0, a position sees the last w positions, itself
/// included.
pub const fn floor(shape: AttentionShape, new: u32, context: u32, window: u32) -> Floor {
    let (new, context) = (new as u64, context as u64);
    let window = if window == 0 { u64::MAX } else { window as u64 };
    let cached = context - new;
    let in_sight = if cached >= window { new + window - 1 } else { context };
    // Positions below `growing` see all positions before them. Later ones see a full window.
    let growing = if window < cached {
        cached
    } else if window < context {
        window
    } else {
        context
    };
    let pairs = (growing * (growing + 1) - cached * (cached + 1)) / 2 + (context - growing) * window;
    let (heads, pages) = (shape.heads() as u64, shape.pages());
    let (both, kv_heads) = ((shape.head_size() + shape.value_size()) as u64, pages.heads as u64);
    let kv_cache = if new > 0 { 2 * in_sight * kv_heads * pages.format.head_bytes(pages.head_size) as u64 } else { 0 };
    Floor { bytes: 2 * new * heads * both + kv_cache, flops: 2 * pairs * heads * both }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{HEAD_SIZES, coded_heads};

    fn shape(heads: u32, kv_heads: u32, head_size: u32) -> AttentionShape {
        AttentionShape::new(heads, kv_heads, head_size, 16).unwrap_or_else(|refused| panic!("{refused}"))
    }

    #[test]
    fn a_launch_covers_every_distribution_of_tokens() {
        let shape = shape(6, 2, 64);
        for lengths in [&[700][..], &[1; 100], &[42, 43, 0, 85, 86], &[0, 0, 129]] {
            let tiles: u32 = lengths.iter().map(|new| (new * shape.group()).div_ceil(tile_rows(64))).sum();
            let LaunchShape { grid, .. } = launch_shape(shape, lengths.iter().sum(), lengths.len() as u32);
            assert!(grid[0] == 2 && (tiles..=tiles + lengths.len() as u32).contains(&grid[1]), "{grid:?} for {tiles}");
        }
    }

    #[test]
    fn two_blocks_share_a_multiprocessor() {
        for (format, size) in HEAD_SIZES.map(|size| (KvFormat::Plain, size)).into_iter().chain(coded_heads()) {
            let shape = shape(1, 1, size).with_format(format);
            let LaunchShape { shared, threads, .. } = launch_shape(shape, 1, 1);
            assert_eq!(shared, row_bytes(size) + STAGES * stage_bytes(size, format));
            // An H200 has 228 KiB of shared memory. Each block takes 1 KiB more than it asks for.
            assert!(2 * (shared + 1024) <= 228 * 1024 && threads == [128, 1, 1], "{shared}");
        }
    }

    #[test]
    fn floors_are_sums_over_positions() {
        let shape = shape(4, 2, 32);
        for (new, context, window) in
            [(1, 1, 0), (7, 7, 0), (3, 10, 0), (7, 7, 3), (3, 10, 4), (3, 10, 8), (3, 10, 9), (3, 10, 12), (0, 9, 2)]
        {
            let first = |position: u32| if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
            let pairs: u32 = (context - new..context).map(|position| position + 1 - first(position)).sum();
            let keys = if new > 0 { context - first(context - new) } else { 0 };
            let expected =
                Floor { bytes: u64::from(2 * 32 * (2 * 4 * new + 2 * 2 * keys)), flops: u64::from(4 * 4 * 32 * pairs) };
            assert_eq!(floor(shape, new, context, window), expected, "{new} of {context}, window {window}");
        }
    }
}
