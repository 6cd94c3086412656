//! Chooses between v1 and v2, and computes their launches. Host code.

use cuda_std::launch::LaunchShape;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::{DevicePtrMut, KernelCall};

use super::{MAX_HEAD_SIZE, PARTITION, THREADS};
use crate::attention::AttentionShape;
#[cfg(not(target_arch = "nvptx64"))]
use crate::{
    attention::{with_block_size, with_constant},
    element::ElementType,
    rope::rope_and_cache,
    with_element,
};

/// Maximum number of tokens that `paged_attention_v1` can see. Their logits are all in shared memory. 32 KiB of logits
/// plus the rest stay below the 48 KiB that a launch gets without opting in to more.
pub const V1_MAX_LENGTH: u32 = 8192;

/// The number of thread blocks above which v1 fills a GPU, so that partitioning sequences does not pay.
pub const V1_ENOUGH_BLOCKS: u32 = 512;

/// The chosen kernel, with its launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `paged_attention_v1`
    V1(LaunchShape),
    /// `paged_attention_v2`, then `paged_attention_v2_reduce`.
    V2 {
        /// The launch of v2.
        attend: LaunchShape,
        /// The launch of the reduction.
        reduce: LaunchShape,
        /// Partitions per sequence and head that the scratch arrays have room for.
        partitions: u32,
    },
}

impl Version {
    /// Chooses a version for a batch of `sequences` sequences of up to `max_length` tokens.
    ///
    /// Chooses v1 if it has room for the logits and partitions would not help: either one partition is enough, or heads
    /// and sequences already give enough thread blocks.
    ///
    /// The choice and its launches depend only on the longest length. The device reads the others.
    pub const fn choose(shape: AttentionShape, sequences: u32, max_length: u32, window: u32) -> Version {
        let slots = slots(shape, max_length, window);
        let full = slots <= PARTITION || sequences * shape.heads() > V1_ENOUGH_BLOCKS;
        if slots <= V1_MAX_LENGTH && full {
            Version::v1(shape, sequences, max_length, window)
        } else {
            Version::v2(shape, sequences, max_length, window)
        }
    }

    /// Returns the launch of v1, for at most [`V1_MAX_LENGTH`] tokens, whether or not `choose` would pick it.
    pub const fn v1(shape: AttentionShape, sequences: u32, max_length: u32, window: u32) -> Version {
        let shared = slots(shape, max_length, window) * size_of::<f32>() as u32;
        Version::V1(LaunchShape::new([shape.heads(), sequences, 1], THREADS).with_shared(shared))
    }

    /// Returns the launches of v2 and its reduction, whether or not `choose` would pick them.
    pub const fn v2(shape: AttentionShape, sequences: u32, max_length: u32, window: u32) -> Version {
        let number = size_of::<f32>() as u32;
        // A grid has at least one block, even if all sequences are padding.
        let partitions = match slots(shape, max_length, window).div_ceil(PARTITION) {
            0 => 1,
            some => some,
        };
        Version::V2 {
            attend: LaunchShape::new([shape.heads(), sequences, partitions], THREADS).with_shared(PARTITION * number),
            reduce: LaunchShape::new([shape.heads(), sequences, 1], THREADS).with_shared(partitions * number),
            partitions,
        }
    }
}

/// Returns whether these kernels support a shape: a 16-bit cache and heads of up to [`MAX_HEAD_SIZE`].
pub const fn serves(shape: AttentionShape) -> bool {
    shape.head_size() <= MAX_HEAD_SIZE && !shape.pages().format.is_coded()
}

/// Returns v1's call with these arguments, for this element type and shape.
#[cfg(not(target_arch = "nvptx64"))]
pub fn v1_call(shape: AttentionShape, element: ElementType, args: super::paged_attention_v1) -> KernelCall {
    with_element!(element, T => with_constant!(shape.head_size(), D => {
        with_block_size!(shape.pages().block_size, B => args.instance::<T, D, B>())
    }, 32 64 80 96 128 256))
}

/// Returns v2's call with these arguments, for this element type and shape.
#[cfg(not(target_arch = "nvptx64"))]
pub fn v2_call(shape: AttentionShape, element: ElementType, args: super::paged_attention_v2) -> KernelCall {
    with_element!(element, T => with_constant!(shape.head_size(), D => {
        with_block_size!(shape.pages().block_size, B => args.instance::<T, D, B>())
    }, 32 64 80 96 128 256))
}

/// Converts v1's arguments to v2's. The output and the sinks are omitted because they belong to the reduction.
#[cfg(not(target_arch = "nvptx64"))]
pub fn partitioned(
    args: super::paged_attention_v1,
    partials: DevicePtrMut<f32>,
    maxima: DevicePtrMut<f32>,
    sums: DevicePtrMut<f32>,
) -> super::paged_attention_v2 {
    let super::paged_attention_v1 { output: _, query, keys, values, tables, lengths, .. } = args;
    let super::paged_attention_v1 { query_stride, table_stride, kv_heads, window, scale, softcap, .. } = args;
    super::paged_attention_v2 {
        partials,
        maxima,
        sums,
        query,
        keys,
        values,
        tables,
        lengths,
        query_stride,
        table_stride,
        kv_heads,
        window,
        scale,
        softcap,
    }
}

/// Converts the arguments of Quire's cache write to the arguments of the paper's. The original cache pointer becomes
/// the keys, and `values` is the separate array of values.
#[cfg(not(target_arch = "nvptx64"))]
pub fn apart(args: rope_and_cache, values: DevicePtrMut<u16>) -> super::paper_rope_and_cache {
    let rope_and_cache { qkv, query, cache, angles, positions, slots, query_norm, key_norm, eps, .. } = args;
    let rope_and_cache { tokens, qkv_stride, query_stride, heads, kv_heads, head_size, block_size, .. } = args;
    super::paper_rope_and_cache {
        qkv,
        query,
        keys: cache,
        values,
        angles,
        positions,
        slots,
        query_norm,
        key_norm,
        eps,
        tokens,
        qkv_stride,
        query_stride,
        heads,
        kv_heads,
        head_size,
        block_size,
    }
}

/// Returns the most slots that a sequence can need, in whole blocks. A window may begin anywhere in its first block.
const fn slots(shape: AttentionShape, max_length: u32, window: u32) -> u32 {
    let block_size = shape.pages().block_size;
    let reach = window.saturating_add(block_size - 1);
    let seen = if window == 0 || max_length < reach { max_length } else { reach };
    seen.next_multiple_of(block_size)
}

#[cfg(test)]
mod tests {
    use super::super::span::TokenRange;
    use super::*;

    fn is_v1(heads: u32, sequences: u32, max_length: u32, window: u32) -> bool {
        let shape = AttentionShape::new(heads, heads, 128, 16).unwrap();
        matches!(Version::choose(shape, sequences, max_length, window), Version::V1(_))
    }

    #[test]
    fn v1_serves_one_partition_or_many_heads_up_to_8192_tokens() {
        assert!(is_v1(32, 1, 512, 0));
        assert!(!is_v1(32, 1, 513, 0));
        assert!(!is_v1(32, 16, 2048, 0), "512 thread blocks");
        assert!(is_v1(32, 17, 2048, 0));
        assert!(is_v1(32, 17, 8192, 0));
        assert!(!is_v1(32, 17, 8193, 0));
    }

    #[test]
    fn a_window_bounds_the_length_that_counts() {
        assert!(is_v1(32, 1, 100_000, 497));
        assert!(!is_v1(32, 1, 100_000, 498), "a window of 498 may touch 33 blocks");
        assert!(is_v1(32, 17, 100_000, 4096));
    }

    #[test]
    fn shared_memory_has_room_for_every_length_and_window() {
        for block_size in [8, 16, 32] {
            let shape = AttentionShape::new(8, 8, 64, block_size).unwrap();
            for window in [0, 1, 100, 512, 520] {
                let (mut most_slots, mut most_partitions) = (0, 1);
                for length in 0..1200 {
                    let span = TokenRange::visible(length, window);
                    most_slots = most_slots.max(span.slots(block_size));
                    most_partitions = most_partitions.max(span.partitions(block_size));
                    let v1 = Version::V1(LaunchShape::new([8, 3, 1], THREADS).with_shared(4 * most_slots));
                    let Version::V2 { partitions, attend, reduce } = Version::v2(shape, 3, length, window) else {
                        unreachable!("Version::v2 returned v1")
                    };
                    assert!(partitions >= most_partitions && attend.grid == [8, 3, partitions]);
                    assert_eq!((attend.shared, reduce.shared), (2048, 4 * partitions));
                    match (v1, Version::v1(shape, 3, length, window)) {
                        (Version::V1(need), Version::V1(got)) => {
                            assert!(got.grid == need.grid && got.shared >= need.shared);
                            // Without a window no memory is wasted. With one, at most a block is.
                            assert!(got.shared <= need.shared + if window == 0 { 0 } else { 4 * block_size });
                        }
                        other => unreachable!("{other:?}"),
                    }
                }
            }
        }
    }
}
