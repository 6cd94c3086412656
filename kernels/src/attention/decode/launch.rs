//! How decode attention is launched: which kernel, with what grid, shared memory and workspace.

use cuda_std::launch::LaunchShape;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::{Const, Descriptor, Instance, KernelCall};
use cuda_std::warp::WARP_SIZE;

use super::merge::row_vectors;
#[cfg(not(target_arch = "nvptx64"))]
use super::paged_attention;
use super::stream::tile_bytes;
use crate::attention::AttentionShape;
use crate::floor::Floor;
use crate::layout::{KvFormat, VECTOR};
#[cfg(not(target_arch = "nvptx64"))]
use crate::{
    attention::{with_constant, with_head_size},
    element::ElementType,
    with_kv_element,
};

/// Warps in a block.
#[inline(always)]
pub const fn warps(head_size: u32) -> u32 {
    if head_size > 128 { 2 } else { 4 }
}

/// Tiles in a warp's ring: 8 to 32 KiB, of which all but the tile in use are in flight. As many bytes of codes are more tiles.
#[inline(always)]
pub const fn stages(head_size: u32, format: KvFormat) -> u32 {
    let plain = if head_size > 64 { 2 } else { 4 };
    if format.is_coded() { 2 * plain } else { plain }
}

/// Bytes of the rings of all warps.
#[inline(always)]
pub const fn ring_bytes(head_size: u32, format: KvFormat) -> u32 {
    warps(head_size) * stages(head_size, format) * tile_bytes(head_size, format)
}

/// A launch of decode attention. It does not depend on the batch's size and lengths, so that a CUDA graph can hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLaunch {
    shape: AttentionShape,
    slots: u32,
}

impl DecodeLaunch {
    /// A launch of `slots` blocks: as many as there are multiprocessors, times the blocks that fit on each.
    pub const fn new(shape: AttentionShape, slots: u32) -> DecodeLaunch {
        DecodeLaunch { shape, slots }
    }

    /// The shape of the launch.
    pub const fn shape(self) -> LaunchShape {
        let threads = warps(self.shape.head_size()) * WARP_SIZE;
        LaunchShape::linear(self.slots, threads).with_shared(self.shared_bytes())
    }

    /// Query heads that a block takes at once: the kernel's parameter `H`. 16 cost more registers than 8, too many
    /// of them with heads of 256, and are worth it where they save reading the cache twice. There are none for codes.
    pub const fn heads_at_once(self) -> u32 {
        let is_plain = !self.shape.pages().format.is_coded();
        if is_plain && self.shape.group() > 8 && self.shape.head_size() <= 128 { 16 } else { 8 }
    }

    /// The kernel with these arguments, for elements of this type.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn call(self, element: ElementType, args: paged_attention) -> KernelCall {
        let size = self.shape.head_size();
        with_kv_element!(element, self.shape.pages().format, T => match self.heads_at_once() {
            16 => with_constant!(size, D => args.instance::<T, D, 16>(), 32 64 80 96 128),
            _ => with_head_size!(size, D => args.instance::<T, D, 8>()),
        }, with_head_size!(size, D => args.instance::<T, D, 8>()))
    }

    /// The entry of the kernel, for elements of this type.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn descriptor(self, element: ElementType) -> &'static Descriptor {
        let size = self.shape.head_size();
        with_kv_element!(element, self.shape.pages().format, T => match self.heads_at_once() {
            16 => with_constant!(size, D => entry::<(T, Const<D>, Const<16>)>(), 32 64 80 96 128),
            _ => with_head_size!(size, D => entry::<(T, Const<D>, Const<8>)>()),
        }, with_head_size!(size, D => entry::<(T, Const<D>, Const<8>)>()))
    }

    /// Streams of a sequence: for each KV head, one for every 8 or 16 query heads.
    pub const fn streams(self) -> u32 {
        self.shape.pages().heads * self.shape.group().div_ceil(self.heads_at_once())
    }

    /// Rows in a partial result.
    const fn rows(self) -> u32 {
        let (group, most) = (self.shape.group(), self.heads_at_once());
        if group < most { group } else { most }
    }

    /// Bytes of dynamic shared memory: the rings, and the warps' partial results.
    pub const fn shared_bytes(self) -> u32 {
        let size = self.shape.head_size();
        ring_bytes(size, self.shape.pages().format) + warps(size) * self.rows() * row_vectors(size) * 2 * VECTOR
    }

    /// Vectors of the partial results in the workspace.
    pub const fn partial_vectors(self) -> u32 {
        2 * self.slots * self.rows() * row_vectors(self.shape.head_size())
    }

    /// Counters in the workspace, `u32`. They are zero before the first launch, and after each.
    pub const fn arrivals(self) -> u32 {
        self.slots
    }
}

/// The entry of an instance.
#[cfg(not(target_arch = "nvptx64"))]
fn entry<P>() -> &'static Descriptor
where
    paged_attention: Instance<P>,
{
    &<paged_attention as Instance<P>>::DESCRIPTOR
}

/// The floor of a launch over `sequences` whose queries see `tokens` in all: keys and values are read once for all
/// heads of their group, queries once, and results are written.
pub const fn floor(shape: AttentionShape, tokens: u64, sequences: u64) -> Floor {
    let (size, pages) = (shape.head_size() as u64, shape.pages());
    let (kv_heads, heads) = (pages.heads as u64, shape.heads() as u64);
    let kv_cache = 2 * kv_heads * tokens * pages.format.head_bytes(pages.head_size) as u64;
    Floor { bytes: kv_cache + 2 * size * 2 * heads * sequences, flops: 4 * size * heads * tokens }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use cuda_std::launch::{DevicePtr, DevicePtrMut};
    use std::format;

    use super::*;
    use crate::attention::{HEAD_SIZES, UnsupportedShape, coded_heads};
    use crate::kv_element::label;

    /// Arguments with null addresses.
    const ARGS: paged_attention = paged_attention {
        output: DevicePtrMut::NULL,
        query: DevicePtr::NULL,
        cache: DevicePtr::NULL,
        tables: DevicePtr::NULL,
        table_starts: DevicePtr::NULL,
        plan: DevicePtr::NULL,
        partials: DevicePtrMut::NULL,
        arrivals: DevicePtrMut::NULL,
        query_stride: 0,
        kv_heads: 0,
        group: 0,
        block_size: 0,
        scale: 0.0,
    };

    fn launch(heads: u32, kv_heads: u32, head_size: u32) -> Result<DecodeLaunch, UnsupportedShape> {
        AttentionShape::new(heads, kv_heads, head_size, 16).map(|shape| DecodeLaunch::new(shape, 396))
    }

    #[test]
    fn every_shape_has_a_kernel_and_fits_a_block() -> Result<(), UnsupportedShape> {
        for (format, head_size) in HEAD_SIZES.map(|size| (KvFormat::Plain, size)).into_iter().chain(coded_heads()) {
            for group in 1..40 {
                let shape = AttentionShape::new(group, 1, head_size, 16)?.with_format(format);
                let launch = DecodeLaunch::new(shape, 396);
                for element in ElementType::ALL {
                    let labels = [label(element, format), &format!("{head_size}")];
                    assert_eq!(launch.call(element, ARGS).descriptor().labels[..2], labels);
                }
                assert!(launch.shared_bytes() <= 99 << 10, "the least that a block may have from 8.0 on");
                assert!(launch.streams() * launch.heads_at_once() >= group);
                assert!((launch.streams() - 1) * launch.heads_at_once() < group);
            }
        }
        Ok(())
    }

    #[test]
    fn which_kernel_serves() -> Result<(), UnsupportedShape> {
        let name = |launch: DecodeLaunch| launch.call(ElementType::F16, ARGS).descriptor().name;
        assert_eq!(name(launch(32, 32, 128)?), "paged_attention_f16_128_8");
        assert_eq!(name(launch(32, 4, 64)?), "paged_attention_f16_64_8");
        assert_eq!(name(launch(36, 4, 64)?), "paged_attention_f16_64_16");
        assert_eq!(name(launch(16, 1, 256)?), "paged_attention_f16_256_8");
        Ok(())
    }

    #[test]
    fn three_blocks_of_the_usual_shapes_share_a_multiprocessor() -> Result<(), UnsupportedShape> {
        // 228 KiB, of which each block takes one for itself.
        for launch in [launch(32, 32, 128)?, launch(32, 8, 128)?] {
            assert!(3 * (launch.shared_bytes() + 1024) <= 228 << 10);
        }
        Ok(())
    }

    #[test]
    fn the_floor_is_keys_values_queries_and_results() -> Result<(), UnsupportedShape> {
        let shape = AttentionShape::new(32, 8, 128, 16)?;
        assert_eq!(floor(shape, 1000, 2), Floor { bytes: 1000 * 8 * 512 + 2 * 2 * 32 * 256, flops: 1000 * 32 * 512 });
        Ok(())
    }
}
