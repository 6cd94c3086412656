//! The launch of decode attention: the kernel, its grid, its shared memory and its workspace.

use cuda_std::launch::LaunchShape;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::{Const, Descriptor, Instance, KernelCall};
use cuda_std::warp::WARP_SIZE;

use super::heads::query_bytes;
use super::merge::row_vectors;
use super::stream::tile_bytes;
#[cfg(not(target_arch = "nvptx64"))]
use super::{paged_attention, paged_attention_capped};
use crate::attention::AttentionShape;
#[cfg(not(target_arch = "nvptx64"))]
use crate::attention::softcap::Softcap;
use crate::floor::Floor;
use crate::layout::{KvFormat, VECTOR};
#[cfg(not(target_arch = "nvptx64"))]
use crate::{
    attention::{with_constant, with_head_size},
    element::ElementType,
    kv_element::key_factor,
    with_kv_element,
};

/// Returns the warps per block.
#[inline(always)]
pub const fn warps(head_size: u32) -> u32 {
    match head_size {
        0..=128 => 4,
        129..=256 => 2,
        _ => 1,
    }
}

/// Returns the number of tiles in a warp's ring. The ring has 8 to 32 KiB, and all tiles except the one in use are in
/// flight. Coded formats get twice the tiles, because theirs are smaller.
#[inline(always)]
pub const fn stages(head_size: u32, format: KvFormat) -> u32 {
    let plain = if head_size > 64 { 2 } else { 4 };
    if format.is_coded() { 2 * plain } else { plain }
}

/// Returns the bytes of all warps' rings.
#[inline(always)]
pub const fn ring_bytes(head_size: u32, format: KvFormat) -> u32 {
    warps(head_size) * stages(head_size, format) * tile_bytes(head_size, format)
}

/// Maximum number of query tokens in a sequence with a draft.
const MOST_DRAFTED: u32 = 16;

/// Returns whether a sequence with this number of query tokens may have a draft.
pub const fn is_draft(tokens: u32) -> bool {
    1 < tokens && tokens <= MOST_DRAFTED
}

/// A launch of decode attention. It does not depend on the batch's size or lengths, so a CUDA graph can hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLaunch {
    shape: AttentionShape,
    slots: u32,
    has_drafts: bool,
}

impl DecodeLaunch {
    /// Creates a launch of `slots` blocks for sequences with one query token.
    ///
    /// `slots` should be the number of multiprocessors times the blocks that fit on each.
    pub const fn new(shape: AttentionShape, slots: u32) -> DecodeLaunch {
        DecodeLaunch { shape, slots, has_drafts: false }
    }

    /// Creates a launch for sequences with up to [`Self::tokens_at_once`] query tokens.
    pub const fn with_drafts(shape: AttentionShape, slots: u32) -> DecodeLaunch {
        DecodeLaunch { shape, slots, has_drafts: true }
    }

    /// Returns the grid, block and shared memory of the launch.
    pub const fn shape(self) -> LaunchShape {
        let threads = warps(self.shape.head_size()) * WARP_SIZE;
        LaunchShape::linear(self.slots, threads).with_shared(self.shared_bytes())
    }

    /// Returns the rows that a block takes at once, the kernel's parameter `H`.
    ///
    /// 16 rows cost more registers than 8, and too many at head size 256. They are worth it if they save a second read
    /// of the cache. Coded formats and softcaps have no instances for 16 rows.
    pub const fn rows_at_once(self) -> u32 {
        let is_plain = !self.shape.pages().format.is_coded() && !self.shape.is_capped();
        let has_16 = is_plain && self.shape.head_size() <= 128;
        // With drafts and one head per group, eight rows are enough, because drafts are seldom longer.
        let most_of_8 = if self.has_drafts { 1 } else { 8 };
        if has_16 && self.shape.group() > most_of_8 { 16 } else { 8 }
    }

    /// Returns the query tokens of a sequence that the rows have room for.
    ///
    /// A sequence with more tokens becomes several [`parts`](Self::parts).
    pub const fn tokens_at_once(self) -> u32 {
        let tokens = self.rows_at_once() / self.shape.group();
        if self.has_drafts && tokens > 1 { tokens } else { 1 }
    }

    /// Splits a sequence with `new` query tokens among its `context` tokens into parts, which the kernel treats as
    /// sequences.
    ///
    /// Yields each part's query tokens, and the tokens in the cache up to its last query.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn parts(self, new: u32, context: u32) -> impl Iterator<Item = (u32, u32)> {
        let most = self.tokens_at_once();
        (0..new.div_ceil(most)).map(move |part| {
            let end = new.min((part + 1) * most);
            (end - part * most, context - new + end)
        })
    }

    /// Returns whether decode attention handles the drafts in a batch. If not, prefill does. Sequences are pairs of
    /// query tokens and context.
    ///
    /// Prefill reads a sequence's cache once, in one block per KV head. Here all blocks share the work, but each part
    /// reads the cache again. If every draft is one part, decode is always better. With several parts, it is better if
    /// no block reads more than the longest sequence.
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

    /// Returns the kernel call with these arguments, for this element type.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn call(self, element: ElementType, args: paged_attention) -> KernelCall {
        let size = self.shape.head_size();
        with_kv_element!(element, self.shape.pages().format, T => match self.rows_at_once() {
            16 => with_constant!(size, D => args.instance::<T, D, 16>(), 32 64 80 96 128),
            _ => with_head_size!(size, D => args.instance::<T, D, 8>()),
        }, with_head_size!(size, D => args.instance::<T, D, 8>()))
    }

    /// Returns the call of [`paged_attention_capped()`](super::paged_attention_capped()) with these arguments and this
    /// softcap, for this element type. The shape is [capped](AttentionShape::with_softcap).
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn capped_call(self, element: ElementType, args: paged_attention, cap: f32) -> KernelCall {
        let paged_attention { output, query, cache, tables, table_starts, query_starts, plan, partials, .. } = args;
        let paged_attention { arrivals, sinks, query_stride, kv_heads, group, block_size, padding, rows, .. } = args;
        let paged_attention { window, scale, .. } = args;
        let format = self.shape.pages().format;
        let Softcap { inner, outer } = Softcap::new(scale * key_factor(element, format), cap);
        let args = paged_attention_capped {
            output,
            query,
            cache,
            tables,
            table_starts,
            query_starts,
            plan,
            partials,
            arrivals,
            sinks,
            query_stride,
            kv_heads,
            group,
            block_size,
            padding,
            rows,
            window,
            inner,
            outer,
        };
        with_kv_element!(element, format, T => {
            with_constant!(self.shape.head_size(), D => args.instance::<T, D, 8>(), 32 128 256)
        })
    }

    /// Returns the kernel's entry for this element type.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn descriptor(self, element: ElementType) -> &'static Descriptor {
        let size = self.shape.head_size();
        with_kv_element!(element, self.shape.pages().format, T => match self.rows_at_once() {
            16 => with_constant!(size, D => entry::<(T, Const<D>, Const<16>)>(), 32 64 80 96 128),
            _ => with_head_size!(size, D => entry::<(T, Const<D>, Const<8>)>()),
        }, with_head_size!(size, D => entry::<(T, Const<D>, Const<8>)>()))
    }

    /// Returns the heads and the layer's pages.
    pub const fn attention(self) -> AttentionShape {
        self.shape
    }

    /// Returns the streams per sequence. Each KV head has one for every 8 or 16 query heads of a token.
    pub const fn streams(self) -> u32 {
        self.shape.pages().heads * self.shape.group().div_ceil(self.rows_at_once())
    }

    /// Returns the maximum number of rows of a stream, which is also the row count of a partial result.
    pub const fn rows(self) -> u32 {
        let (all, most) = (self.shape.group() * self.tokens_at_once(), self.rows_at_once());
        if all < most { all } else { most }
    }

    /// Returns the bytes of dynamic shared memory: the rings, and the warps' partial results or queries.
    pub const fn shared_bytes(self) -> u32 {
        let size = self.shape.head_size();
        let partials = warps(size) * self.rows() * row_vectors(size) * 2 * VECTOR;
        let queries = warps(size) * query_bytes(size);
        ring_bytes(size, self.shape.pages().format) + if partials > queries { partials } else { queries }
    }

    /// Returns the vectors of partial results in the workspace.
    pub const fn partial_vectors(self) -> u32 {
        2 * self.slots * self.rows() * row_vectors(self.shape.head_size())
    }

    /// Returns the number of `u32` counters in the workspace. They must be zero before the first launch, and each
    /// launch leaves them at zero.
    pub const fn arrivals(self) -> u32 {
        self.slots
    }
}

/// Returns the entry of an instance.
#[cfg(not(target_arch = "nvptx64"))]
fn entry<P>() -> &'static Descriptor
where
    paged_attention: Instance<P>,
{
    &<paged_attention as Instance<P>>::DESCRIPTOR
}

/// Returns the floor of a launch over `sequences` whose queries see `tokens` in total. Keys and values are read once
/// per group of heads, queries are read once, and results are written once.
pub const fn floor(shape: AttentionShape, tokens: u64, sequences: u64) -> Floor {
    let (size, pages) = (shape.head_size() as u64, shape.pages());
    let (kv_heads, heads) = (pages.heads as u64, shape.heads() as u64);
    let both = size + shape.value_size() as u64;
    let kv_cache = 2 * kv_heads * tokens * pages.format.head_bytes(pages.head_size) as u64;
    Floor { bytes: kv_cache + 2 * both * heads * sequences, flops: 2 * both * heads * tokens }
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
        sinks: DevicePtr::NULL,
        query_stride: 0,
        kv_heads: 0,
        group: 0,
        block_size: 0,
        padding: 0,
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
                    assert!(
                        launch.shared_bytes() <= 99 << 10,
                        "shared memory per block is at most 99 KiB on some GPUs"
                    );
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
    fn decode_serves_drafts_if_no_block_reads_more() -> Result<(), UnsupportedShape> {
        let shape = AttentionShape::new(32, 8, 128, 16)?;
        let suits = |slots, spans: &[(u32, u32)]| DecodeLaunch::with_drafts(shape, slots).suits(spans.iter().copied());
        assert!(suits(1, &[(1, 50), (4, 900), (2, 7)]), "each draft is one part");
        assert!(!suits(396, &[(1, 50), (1, 9)]) && !suits(396, &[(500, 500), (1, 9)]), "no draft");
        // Two parts of eight streams read sixteen times as much as a block of prefill.
        assert!(suits(16, &[(5, 900)]) && !suits(15, &[(5, 900)]));
        assert!(suits(32, &[(5, 900); 2]) && !suits(31, &[(5, 900); 2]));
        assert!(suits(24, &[(5, 900), (5, 450), (1, 7000)]));
        Ok(())
    }

    #[test]
    fn groups_of_more_than_eight_use_sixteen_rows() -> Result<(), UnsupportedShape> {
        let name = |launch: DecodeLaunch| launch.call(ElementType::F16, ARGS).descriptor().name;
        assert_eq!(name(launch(32, 32, 128)?), "paged_attention_f16_128_8");
        assert_eq!(name(launch(32, 4, 64)?), "paged_attention_f16_64_8");
        assert_eq!(name(launch(36, 4, 64)?), "paged_attention_f16_64_16");
        assert_eq!(name(launch(16, 1, 256)?), "paged_attention_f16_256_8");
        Ok(())
    }

    #[test]
    fn three_blocks_of_common_shapes_fit_a_multiprocessor() -> Result<(), UnsupportedShape> {
        // 228 KiB, minus one that each block takes for itself.
        for launch in [launch(32, 32, 128)?, launch(32, 8, 128)?] {
            assert!(3 * (launch.shared_bytes() + 1024) <= 228 << 10);
        }
        Ok(())
    }

    #[test]
    fn the_floor_counts_keys_values_queries_and_results() -> Result<(), UnsupportedShape> {
        let shape = AttentionShape::new(32, 8, 128, 16)?;
        assert_eq!(floor(shape, 1000, 2), Floor { bytes: 1000 * 8 * 512 + 2 * 2 * 32 * 256, flops: 1000 * 32 * 512 });
        Ok(())
    }
}
