//! `paged_prefill_hopper`: [`paged_prefill`](super::paged_prefill()) for Hopper, with `wgmma` products and pages
//! fetched by tensor copies.
//!
//! A block has 128 query rows of one sequence and KV head, as in [`paged_prefill`](super::paged_prefill()). Two warp
//! groups have 64 rows each. Their queries are in shared memory. Scores and outputs are in registers, and weights go
//! from one product to the other without leaving them. The first warp of a third group fetches tiles of 128 keys and
//! values into a ring (see [`gemm_hopper`](crate::gemm::hopper)).
//!
//! | | |
//! | --- | --- |
//! | arguments | as for [`paged_prefill`](super::paged_prefill()), with the cache as a tensor: [`shape::pages`] |
//! | grid | (KV heads, tiles of rows), see [`shape::launch_shape`]; [`shape::THREADS`] threads |
//! | shared memory | 225 KiB at head size 128, 113 KiB at 64; one block per SM |
//! | floor | as for [`paged_prefill`](super::shape::floor()) |
//!
//! # Limits
//!
//! A `wgmma` of 64 x 128 x 16 keeps the tensor cores busy for 64 clocks. At head size 128, a tile takes both groups
//! 2,048 clocks. In that time 64 KiB come from L2, 32 bytes per clock. Each lane has 64 exponentials per tile, which
//! keep a scheduler's special function units busy for 1,024 clocks.
//!
//! A group waits for its own products, so only the other group's work can overlap them. The second group starts a tile
//! when the first has its scores. So the softmax of each group overlaps products of the other from the first tile on.
//! If both groups started together, they would stay in step: first all products, then all exponentials.
//!
//! # Pages as `wgmma` operands
//!
//! Eight tokens of eight elements are 128 contiguous bytes of a page, which `wgmma` accepts as a matrix without a
//! swizzle pattern. In the page, the same elements of the next eight tokens follow. But no single stride then leads
//! through the tokens of several pages. So the tensor view has another order:
//! `[group of 8 tokens][head_size / 8][8 x 8]`. Tiles of any pages can be concatenated in that order.
//!
//! Pages that no row sees are not read: the copy gets a block number outside the cache and writes zeros. If the context
//! ends within a page, the fetching warp zeroes the values after the last token. A weight of zero would not be enough,
//! because the memory may hold NaN.

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::CuTensorMap;
use cuda_std::ptx::{control, cp_async, fence, mbarrier};
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use super::Batch;
use super::rows::QueryRows;
use super::tile::Tile;
use crate::element::{Bf16, F16};
use crate::gemm::hopper::ring::{Ring, RingPlace, barrier_bytes};

mod fetch;
mod products;
pub mod shape;
mod softmax;

use fetch::PageTiles;
use products::{GroupProducts, Sums, add_values, scores};
use shape::{GROUP_ROWS, GROUP_THREADS, GROUPS, KEYS, STAGES, part_bytes, query_bytes};
use softmax::GroupSoftmax;

/// Warps that read tiles.
const READERS: u32 = GROUPS * GROUP_THREADS / warp::WARP_SIZE;

/// Computes causal attention of each sequence's new tokens over its whole context, see the module.
///
/// # Safety
/// As for [`paged_prefill()`](super::paged_prefill()). `cache` is [`shape::pages`], and the launch is
/// [`shape::launch_shape`].
#[kernel(dependent, arch = "sm_90a", max_threads = 384, min_blocks = 1, instances(T = [F16, Bf16], D = [64, 128]))]
pub unsafe fn paged_prefill_hopper<T: GroupProducts, const D: u32>(
    cache: &CuTensorMap,
    output: *mut u16,
    query: *const u16,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    contexts: *const u32,
    sinks: *const f32,
    sequences: u32,
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    window: u32,
    scale: f32,
) {
    let batch = Batch { query, query_stride, tables, table_starts, query_starts, contexts, sequences, group };
    let window = if window == 0 { i32::MAX as u32 } else { window };
    let head = thread::block_idx_x();
    // SAFETY: the arrays are as this kernel's contract says.
    let tile = unsafe { Tile::of_block::<D>(&batch) };
    let Some(sight) = tile.sight(tile.first, GROUPS * GROUP_ROWS, window) else { return };
    // Tiles start at multiples of their size. Pages before the first that a row sees are not read.
    let (start, first) = (sight.first_key() & !(KEYS - 1), sight.first_key() & !(block_size - 1));
    let tiles = (sight.last - start) / KEYS + 1;

    let memory: *mut u8 = dynamic_shared_mem();
    let queries = shared_offset(memory);
    let ring_at = queries + query_bytes(D);
    let ring = Ring { tiles: ring_at, barriers: ring_at + STAGES * 2 * part_bytes(D), stages: STAGES };
    // The shuffle tells the assembler that all lanes have the same warp number.
    // SAFETY: all lanes of the warp are here together.
    let warp = unsafe { warp::warp_shuffle_idx(FULL_MASK, warp::warp_id(), 0, warp::WARP_SIZE) };
    let patched = ring.barriers + barrier_bytes(STAGES);
    let scored = patched + 8;
    if thread::thread_idx_x() == 0 {
        // SAFETY: no thread uses the barriers before the block's barrier below.
        unsafe {
            mbarrier::init(patched, 1);
            for stage in 0..STAGES {
                mbarrier::init(scored + 8 * stage, READERS / GROUPS);
            }
            ring.set_up(READERS);
        }
    }
    thread::sync_threads();
    if warp >= READERS {
        // SAFETY: all threads of the warp group are here, and then all lanes of one warp. The block's tiles belong to a
        // sequence.
        unsafe {
            control::give_registers::<40>();
            if warp == READERS {
                let memory = memory.add(query_bytes(D) as usize);
                let pages = PageTiles::<D> {
                    cache,
                    head,
                    block_size,
                    start,
                    first,
                    last: sight.last,
                    tiles,
                    ring,
                    memory,
                    patched,
                };
                pages.fetch(batch.tables.add(*batch.table_starts.add(tile.sequence as usize) as usize));
            }
        }
        return;
    }
    // SAFETY: all threads of the warp group are here, and the fetching group releases the registers that these two
    // take.
    unsafe { control::take_registers::<232>() };
    let own_group = warp / 4;
    let sync = || {
        // SAFETY: each group has its own barrier, which all of its threads reach.
        unsafe { thread::sync_named(1 + own_group, GROUP_THREADS) };
    };
    let rows = QueryRows::<D>::new(tile, head, kv_heads, memory.cast(), 1);
    let own_sight = rows.sight(window);
    let group_sight = tile.sight(tile.first + own_group * GROUP_ROWS, GROUP_ROWS, window);
    // SAFETY: the arrays are as this kernel's contract says. Warps of a group take different branches only in the
    // masking, the softmax and the final store, so all threads reach products and barriers together. A tile is read
    // only after its barrier completes.
    unsafe {
        rows.copy_queries(&batch);
        cp_async::commit();
        cp_async::wait::<0>();
        fence::proxy_async_shared();
        sync();
        let queries = queries + own_group * GROUP_ROWS * size_of::<Vector>() as u32;
        let positions = [0, 1].map(|half| rows.position(0, half));
        let mut softmax = GroupSoftmax::<T, D>::new(scale);
        let mut sums: Sums = [[0.0; 4]; 16];
        // The second group starts when the first has the scores of a tile. By then the tile has arrived.
        let ready = if own_group == 0 { ring.full(RingPlace::default()) } else { scored };
        let mut at = RingPlace::default();
        let (mut index, mut key) = (0, start);
        while index < tiles {
            mbarrier::wait(ready + 8 * at.stage, at.parity);
            let give_turn = || {
                if own_group == 0 && warp::lane_id() == 0 {
                    mbarrier::arrive(scored + 8 * at.stage);
                }
            };
            let is_seen = group_sight.is_some_and(|seen| seen.any(key, KEYS));
            // The vote tells the assembler that a warp stays together.
            if warp::warp_vote_any(FULL_MASK, is_seen) {
                let keys = ring.tiles + at.stage * (2 * part_bytes(D));
                let mut weights = scores::<T, D>(queries, keys);
                give_turn();
                if !own_sight.is_some_and(|own| own.all(key, KEYS)) {
                    mask(&mut weights, positions, key, window);
                }
                softmax.weigh(&mut weights, &mut sums);
                add_values::<T, D>(&mut sums, &weights, keys + part_bytes(D));
            } else {
                give_turn();
            }
            if warp::lane_id() == 0 {
                mbarrier::arrive(ring.empty(at));
            }
            at.advance(STAGES);
            index += 1;
            key += KEYS;
        }
        // Outputs overwrite the queries, which the group no longer reads.
        sync();
        if own_sight.is_some() {
            let factors = softmax.finish(|half, reference| rows.sink(sinks, 0, half, reference));
            rows.store::<T, 16>(output, core::slice::from_ref(&sums), core::slice::from_ref(&factors));
        }
    }
}

/// Sets the scores of keys that the lane's rows do not see to minus infinity, so that their weight is 0.
///
/// The tokens of the lane's rows are at `positions`, and `key` is the tile's first key.
#[inline(always)]
fn mask(scores: &mut Sums, positions: [u32; 2], key: u32, window: u32) {
    let to_first = positions.map(|position| position.wrapping_sub(key + warp::lane_id() % 4 * 2));
    for (n, four) in scores.iter_mut().enumerate() {
        for (i, score) in four.iter_mut().enumerate() {
            // For a key after the row's position, the distance wraps around to a very large number.
            if to_first[i / 2].wrapping_sub((8 * n + i % 2) as u32) >= window {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}
