//! Decode attention: one query token a sequence, over all that the sequence has in the cache.
//!
//! | kernel | computes | grid | block |
//! | --- | --- | --- | --- |
//! | [`plan_paged_attention()`] | the ranges of a step, for all layers | 1 | [`PLAN_THREADS`] |
//! | [`paged_attention()`] | `softmax(scale q K^T) V` for every sequence and head | [`Launch::slots`] | [`threads`] |

mod heads;
mod launch;
mod merge;
mod plan;
mod stream;

use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::warp::FULL_MASK;

use super::LOG2_E;
use crate::element::{Bf16, Element, F16};
use crate::layout::{Pages, Vector};
use crate::ptx::cp_async;
use heads::Heads;
use launch::{ring_bytes, stages, warps};
use merge::{Exchange, finish, row_vectors};
use plan::divide;
use stream::{Cache, Reader, Stream, tile_bytes};

#[cfg(not(target_arch = "nvptx64"))]
pub use launch::Args;
pub use launch::{Launch, floor};
pub use plan::{MIN_RANGE, PLAN_THREADS, Plan, Ranges, Span, TILE, plan_paged_attention, plan_vectors};

/// Decode attention.
///
/// # Safety
/// todo
#[kernel(max_threads = 128, min_blocks = 2, instances(T = [F16, Bf16], D = [32, 64, 80, 96, 128, 256]))]
pub unsafe fn paged_attention_8<T: Element, const D: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
    tables: *const u32,
    table_starts: *const u32,
    plan: *const Vector,
    partials: *mut Vector,
    arrivals: *mut u32,
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    scale: f32,
) {
    // SAFETY: the caller's.
    unsafe {
        attend::<T, D, 8>(
            output,
            query,
            cache,
            tables,
            table_starts,
            plan,
            partials,
            arrivals,
            query_stride,
            kv_heads,
            group,
            block_size,
            scale,
        )
    }
}

/// Decode attention.
///
/// # Safety
/// todo
#[kernel(max_threads = 128, min_blocks = 2, instances(T = [F16, Bf16], D = [32, 64, 80, 96, 128]))]
pub unsafe fn paged_attention_16<T: Element, const D: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
    tables: *const u32,
    table_starts: *const u32,
    plan: *const Vector,
    partials: *mut Vector,
    arrivals: *mut u32,
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    scale: f32,
) {
    // SAFETY: the caller's.
    unsafe {
        attend::<T, D, 16>(
            output,
            query,
            cache,
            tables,
            table_starts,
            plan,
            partials,
            arrivals,
            query_stride,
            kv_heads,
            group,
            block_size,
            scale,
        )
    }
}

/// The body of both kernels.
///
/// # Safety
/// As for these.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "those of a kernel")]
unsafe fn attend<T: Element, const D: u32, const H: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
    tables: *const u32,
    table_starts: *const u32,
    plan: *const Vector,
    partials: *mut Vector,
    arrivals: *mut u32,
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    scale: f32,
) {
    let pages = Pages { heads: kv_heads, head_size: D, block_size };
    let cache = Cache { vectors: cache, pages, tables, table_starts, head_tiles: group.div_ceil(H) };
    let (slots, rows, warp) = (thread::grid_dim_x(), group.min(H), warp::warp_id());
    let plan = Plan::new(plan, slots);
    // SAFETY: the caller's; see each function. Warps are of one mind about tiles, blocks about streams.
    unsafe {
        let (begin, end, sequence) = plan.range(thread::block_idx_x());
        if begin == end {
            return;
        }
        let exchange = Exchange { partials, arrivals, ranges: plan.ranges(), slots, rows };
        let ring = shared_offset(dynamic_shared_mem::<u8>()) + warp * stages(D) * tile_bytes(D);
        let merged = dynamic_shared_mem::<u8>().add(ring_bytes(D) as usize).cast::<Vector>();

        let mut stream = Stream::holding(plan, begin, sequence);
        let (mut tile, mut stage) = (begin + warp, 0);
        let mut reader = Reader::<D>::new(plan, cache, stream, tile, end, warps(D), ring);
        for stage in 0..stages(D) {
            reader.fetch(stage);
        }
        loop {
            let kv_head = divide(stream.index, cache.head_tiles);
            let head_tile = stream.index - kv_head * cache.head_tiles;
            let head = kv_head * group + head_tile * H;
            let count = (group - head_tile * H).min(H);
            let row = query.add(stream.sequence as usize * query_stride as usize);
            let mut heads = Heads::<T, D, H>::load(row.add((head * D) as usize), count);
            let stop = stream.end().min(end);
            while tile < stop {
                match stages(D) {
                    4 => cp_async::wait::<3>(),
                    _ => cp_async::wait::<1>(),
                }
                // What the other lanes copied is there, too.
                warp::sync_warp(FULL_MASK);
                let at = ring + stage * tile_bytes(D);
                heads.take(at, stream.position(tile), stream.span, scale * LOG2_E);
                // The stage is free when all lanes are done with it.
                warp::sync_warp(FULL_MASK);
                reader.fetch(stage);
                stage = (stage + 1) % stages(D);
                tile += warps(D);
            }
            heads.leave(merged.add((warp * rows * row_vectors(D)) as usize).cast(), count);
            let at = stream.sequence as usize * (kv_heads * group * D) as usize + (head * D) as usize;
            finish::<T, D>(merged, warps(D), count, stream, exchange, output.add(at));
            if stop == end {
                return;
            }
            stream.advance(plan, cache.streams());
            // The rows of the last stream have been read by all.
            thread::sync_threads();
        }
    }
}
