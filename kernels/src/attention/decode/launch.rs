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

/// Most query tokens of a sequence with a draft.
const MOST_DRAFTED: u32 = 16;

/// Whether a sequence with so many query tokens may be one with a draft.
pub const fn is_draft(tokens: u32) -> bool {
    1 < tokens && tokens <= MOST_DRAFTED
}

/// A launch of decode attention. It does not depend on the batch's size and lengths, so that a CUDA graph can hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLaunch {
    shape: AttentionShape,
    slots: u32,
    has_drafts: bool,
}

impl DecodeLaunch {
    /// A launch of `slots` blocks, as many as there are multiprocessors, times the blocks that fit on each, for sequences with one
    /// query token.
    pub const fn new(shape: AttentionShape, slots: u32) -> DecodeLaunch {
        DecodeLaunch { shape, slots, has_drafts: false }
    }

    /// The same for sequences with up to [`Self::tokens_at_once`].
    pub const fn with_drafts(shape: AttentionShape, slots: u32) -> DecodeLaunch {
        DecodeLaunch { shape, slots, has_drafts: true }
    }

    /// The shape of the launch.
    pub const fn shape(self) -> LaunchShape {
        let threads = warps(self.shape.head_size()) * WARP_SIZE;
        LaunchShape::linear(self.slots, threads).with_shared(self.shared_bytes())
    }

    /// Rows that a block takes at once: the kernel's parameter `H`. 16 cost more registers than 8, too many of them with
    /// heads of 256, and are worth it where they save reading the cache twice. There are none for codes.
    pub const fn rows_at_once(self) -> u32 {
        let has_16 = !self.shape.pages().format.is_coded() && self.shape.head_size() <= 128;
        // Eight rows are enough for a head's own drafts, which are seldom longer.
        let most_of_8 = if self.has_drafts { 1 } else { 8 };
        if has_16 && self.shape.group() > most_of_8 { 16 } else { 8 }
    }

    /// Query tokens of a sequence that the rows have room for. What has more is several sequences to the kernel, each with so many
    /// tokens at most, and as long as its last one sees.
    pub const fn tokens_at_once(self) -> u32 {
        let tokens = self.rows_at_once() / self.shape.group();
        if self.has_drafts && tokens > 1 { tokens } else { 1 }
    }

    /// What a sequence that brings `new` of its `context` tokens is to the kernel: parts, of so many query tokens each, with as many
    /// tokens in the cache as the last of them sees.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn parts(self, new: u32, context: u32) -> impl Iterator<Item = (u32, u32)> {
        let most = self.tokens_at_once();
        (0..new.div_ceil(most)).map(move |part| {
            let end = new.min((part + 1) * most);
            (end - part * most, context - new + end)
        })
    }

    /// Whether decode attends to the drafts among sequences of so many query tokens in so many; if not, prefill does. That reads
    /// what a sequence has in the cache once, in one block for each KV head. Here all blocks share the work, but each part reads
    /// the cache again: one part is always better, and several are if no block has more to read than the longest sequence.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn suits(self, sequences: impl Iterator<Item = (u32, u32)>) -> bool {
        let (mut once, mut all, mut longest) = (0, 0, 0);
        for (new, context) in sequences.filter(|&(new, _)| is_draft(new)) {
            let streams = self.parts(new, context).count() as u64 * u64::from(self.streams());
            once += u64::from(context) * u64::from(self.shape.pages().heads);
            all += u64::from(context) * streams;
            longest = longest.max(u64::from(context));
        }
        once > 0 && (all == once || all <= u64::from(self.slots) * longest)
    }

    /// The kernel with these arguments, for elements of this type.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn call(self, element: ElementType, args: paged_attention) -> KernelCall {
        let size = self.shape.head_size();
        with_kv_element!(element, self.shape.pages().format, T => match self.rows_at_once() {
            16 => with_constant!(size, D => args.instance::<T, D, 16>(), 32 64 80 96 128),
            _ => with_head_size!(size, D => args.instance::<T, D, 8>()),
        }, with_head_size!(size, D => args.instance::<T, D, 8>()))
    }

    /// The entry of the kernel, for elements of this type.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn descriptor(self, element: ElementType) -> &'static Descriptor {
        let size = self.shape.head_size();
        with_kv_element!(element, self.shape.pages().format, T => match self.rows_at_once() {
            16 => with_constant!(size, D => entry::<(T, Const<D>, Const<16>)>(), 32 64 80 96 128),
            _ => with_head_size!(size, D => entry::<(T, Const<D>, Const<8>)>()),
        }, with_head_size!(size, D => entry::<(T, Const<D>, Const<8>)>()))
    }

    /// The heads, and the layer's pages.
    pub const fn attention(self) -> AttentionShape {
        self.shape
    }

    /// Streams of a sequence: for each KV head, one for every 8 or 16 query heads of a token.
    pub const fn streams(self) -> u32 {
        self.shape.pages().heads * self.shape.group().div_ceil(self.rows_at_once())
    }

    /// Rows that a stream has at most, and so a partial result.
    pub const fn rows(self) -> u32 {
        let (all, most) = (self.shape.group() * self.tokens_at_once(), self.rows_at_once());
        if all < most { all } else { most }
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
    use std::vec::Vec;

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
        query_starts: DevicePtr::NULL,
        plan: DevicePtr::NULL,
        partials: DevicePtrMut::NULL,
        arrivals: DevicePtrMut::NULL,
        query_stride: 0,
        kv_heads: 0,
        group: 0,
        block_size: 0,
        rows: 0,
        window: 0,
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
                for launch in [DecodeLaunch::new(shape, 396), DecodeLaunch::with_drafts(shape, 396)] {
                    for element in ElementType::ALL {
                        let labels = [label(element, format), &format!("{head_size}")];
                        assert_eq!(launch.call(element, ARGS).descriptor().labels[..2], labels);
                    }
                    assert!(launch.shared_bytes() <= 99 << 10, "the least that a block may have from 8.0 on");
                    assert!(launch.streams() * launch.rows_at_once() >= group);
                    assert!((launch.streams() - 1) * launch.rows_at_once() < group);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_draft_is_cut_into_parts_that_fit_the_rows() -> Result<(), UnsupportedShape> {
        let drafts = |heads, kv_heads, head_size| {
            AttentionShape::new(heads, kv_heads, head_size, 16).map(|shape| DecodeLaunch::with_drafts(shape, 396))
        };
        let sizes =
            |launch: DecodeLaunch| [launch.rows_at_once(), launch.tokens_at_once(), launch.rows(), launch.streams()];
        assert_eq!(sizes(drafts(8, 8, 128)?), [8, 8, 8, 8]);
        assert_eq!(sizes(drafts(32, 8, 128)?), [16, 4, 16, 8]);
        assert_eq!(sizes(drafts(5, 1, 64)?), [16, 3, 15, 1]);
        assert_eq!(sizes(drafts(20, 1, 64)?), [16, 1, 16, 2]);
        assert_eq!(sizes(drafts(4, 1, 256)?), [8, 2, 8, 1]);
        assert_eq!(drafts(32, 8, 128)?.parts(6, 100).collect::<Vec<_>>(), [(4, 98), (2, 100)]);
        assert_eq!(drafts(8, 8, 128)?.parts(1, 1).collect::<Vec<_>>(), [(1, 1)]);
        assert_eq!(launch(32, 8, 128)?.parts(2, 9).collect::<Vec<_>>(), [(1, 8), (1, 9)]);
        Ok(())
    }

    #[test]
    fn drafts_are_rows_where_no_block_reads_more_for_it() -> Result<(), UnsupportedShape> {
        let shape = AttentionShape::new(32, 8, 128, 16)?;
        let suits = |slots, spans: &[(u32, u32)]| DecodeLaunch::with_drafts(shape, slots).suits(spans.iter().copied());
        assert!(suits(1, &[(1, 50), (4, 900), (2, 7)]), "one part each");
        assert!(!suits(396, &[(1, 50), (1, 9)]) && !suits(396, &[(500, 500), (1, 9)]), "no draft");
        // Two parts of eight streams are sixteen times what a block of prefill reads.
        assert!(suits(16, &[(5, 900)]) && !suits(15, &[(5, 900)]));
        assert!(suits(32, &[(5, 900); 2]) && !suits(31, &[(5, 900); 2]));
        assert!(suits(24, &[(5, 900), (5, 450), (1, 7000)]));
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
