//! How decode attention is launched: which kernel, with what grid, shared memory and workspace.

#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::{Entry, Family};
use cuda_std::warp::WARP_SIZE;

use super::merge::row_vectors;
use super::stream::tile_bytes;
use crate::attention::Shape;
use crate::floor::Floor;
use crate::layout::VECTOR;

/// Warps in a block.
#[inline(always)]
pub const fn warps(head_size: u32) -> u32 {
    if head_size > 128 { 2 } else { 4 }
}

/// Tiles in a warp's ring: 8 to 32 KiB, of which all but the tile in use are on their way.
#[inline(always)]
pub const fn stages(head_size: u32) -> u32 {
    if head_size > 64 { 2 } else { 4 }
}

/// Bytes of the rings of all warps.
#[inline(always)]
pub const fn ring_bytes(head_size: u32) -> u32 {
    warps(head_size) * stages(head_size) * tile_bytes(head_size)
}

/// The arguments of every instance of the attention kernel.
#[cfg(not(target_arch = "nvptx64"))]
pub type Args = <super::paged_attention_8 as Family>::Args;

/// A launch of decode attention. The batch's size and lengths have no part in it, so that a graph can hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    shape: Shape,
    slots: u32,
}

impl Launch {
    /// A launch of `slots` blocks: as many as there are multiprocessors, times the blocks that fit on each.
    pub const fn new(shape: Shape, slots: u32) -> Launch {
        Launch { shape, slots }
    }

    /// The grid.
    pub const fn grid(self) -> (u32, u32, u32) {
        (self.slots, 1, 1)
    }

    /// Threads in a block.
    pub const fn threads(self) -> u32 {
        warps(self.shape.head_size()) * WARP_SIZE
    }

    /// Query heads that a block takes at once: which of the two kernels serves. 16 cost more registers than 8, too many
    /// of them with heads of 256, and are worth it where they save reading the cache twice.
    pub const fn heads_at_once(self) -> u32 {
        if self.shape.group() > 8 && self.shape.head_size() <= 128 { 16 } else { 8 }
    }

    /// The kernel, for elements of this type: `f16` or `bf16`.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn entry(self, element: &str) -> Option<Entry<Args>> {
        // The labels are the instances'.
        let head_size = match self.shape.head_size() {
            32 => "32",
            64 => "64",
            80 => "80",
            96 => "96",
            128 => "128",
            _ => "256",
        };
        match self.heads_at_once() {
            16 => super::paged_attention_16::instance(&[element, head_size]),
            _ => super::paged_attention_8::instance(&[element, head_size]),
        }
    }

    /// Streams of a sequence: for each KV head one for every 8 or 16 query heads.
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
        ring_bytes(size) + warps(size) * self.rows() * row_vectors(size) * 2 * VECTOR
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

/// The floor of a launch over `sequences` whose queries see `tokens` in all: keys and values are read once for all heads
/// of their group, queries once, and results are written.
pub const fn floor(shape: Shape, tokens: u64, sequences: u64) -> Floor {
    let size = shape.head_size() as u64;
    let (kv_heads, heads) = (shape.pages().heads as u64, shape.heads() as u64);
    Floor { bytes: 2 * size * (2 * kv_heads * tokens + 2 * heads * sequences), flops: 4 * size * heads * tokens }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::attention::{HEAD_SIZES, Unsupported};

    fn launch(heads: u32, kv_heads: u32, head_size: u32) -> Result<Launch, Unsupported> {
        Shape::new(heads, kv_heads, head_size, 16).map(|shape| Launch::new(shape, 396))
    }

    #[test]
    fn every_shape_has_a_kernel_and_fits_a_block() -> Result<(), Unsupported> {
        for head_size in HEAD_SIZES {
            for group in 1..40 {
                let launch = launch(group, 1, head_size)?;
                assert!(["f16", "bf16"].iter().all(|element| launch.entry(element).is_some()));
                assert!(launch.shared_bytes() <= 99 << 10, "the least that a block may have from 8.0 on");
                assert!(launch.streams() * launch.heads_at_once() >= group);
                assert!((launch.streams() - 1) * launch.heads_at_once() < group);
            }
        }
        Ok(())
    }

    #[test]
    fn which_kernel_serves() -> Result<(), Unsupported> {
        let name = |launch: Launch| launch.entry("f16").map(|entry| entry.descriptor().name);
        assert_eq!(name(launch(32, 32, 128)?), Some("paged_attention_8_f16_128"));
        assert_eq!(name(launch(32, 4, 64)?), Some("paged_attention_8_f16_64"));
        assert_eq!(name(launch(36, 4, 64)?), Some("paged_attention_16_f16_64"));
        assert_eq!(name(launch(16, 1, 256)?), Some("paged_attention_8_f16_256"));
        assert_eq!(launch(32, 8, 128)?.entry("f32").map(|entry| entry.descriptor().name), None);
        Ok(())
    }

    #[test]
    fn three_blocks_of_the_usual_shapes_share_a_multiprocessor() -> Result<(), Unsupported> {
        // 228 KiB, of which each block takes one for itself.
        for launch in [launch(32, 32, 128)?, launch(32, 8, 128)?] {
            assert!(3 * (launch.shared_bytes() + 1024) <= 228 << 10);
        }
        Ok(())
    }

    #[test]
    fn the_floor_is_keys_values_queries_and_results() -> Result<(), Unsupported> {
        let shape = Shape::new(32, 8, 128, 16)?;
        assert_eq!(floor(shape, 1000, 2), Floor { bytes: 1000 * 8 * 512 + 2 * 2 * 32 * 256, flops: 1000 * 32 * 512 });
        Ok(())
    }
}
