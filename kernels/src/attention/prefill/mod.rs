//! `paged_prefill`: causal attention of many new tokens a sequence over the paged cache.
//!
//! For each new token at position p of its sequence, and each query head with its KV head's keys k and values v,
//!
//! ```text
//! output = sum over j of softmax(scale * query . k[j]) v[j],      max(0, p + 1 - window) <= j <= p
//! ```
//!
//! Whole prompts, chunks of them behind what is cached already, and several sequences of any lengths go into one
//! launch; their keys and values, those of the new tokens included, are in the cache before it. A sequence may bring no
//! token, and the first entry of `query_starts` may be any number. Blocks of the cache that lie outside the windows of
//! all its new tokens may have been freed.
//!
//! | array | shape |
//! | --- | --- |
//! | `output` | `[tokens][heads][head_size]` |
//! | `query` | the same, tokens `query_stride` elements apart, so that it may be part of a fused QKV output |
//! | `cache` | the layer's pages, see [`layout`](crate::layout) |
//! | `tables`, `table_starts` | block tables of `ceil(context / block_size)` entries, and where each begins |
//! | `query_starts` | `[sequences + 1]`: sequence s brings tokens `query_starts[s] .. query_starts[s + 1]` |
//! | `contexts` | `[sequences]`: tokens of each in the cache, the new ones included |
//!
//! # Grid
//!
//! ([KV heads](shape::launch_shape()), tiles) blocks of 4 warps. A block computes a tile of 128 query rows (64 of head size
//! 256) and goes through the keys that these see in tiles of 64 (32). The query heads of a KV head are rows side by
//! side, so that a group of any size fills tiles, and a token's heads share its keys. Which rows a block has follows
//! from `query_starts` by bisection: the host needs bounds on tokens and sequences, and no lengths.
//!
//! Where the cache has 8 bits, each warp turns codes into 16-bit numbers as it loads them: for a tile of 64 keys and head
//! size 64 that is twice the instructions of 16 bits. From head size 80 on tiles have 32 keys, since registers do not suffice, and
//! at head size 256 the queries stay in shared memory.
//!
//! # Floor
//!
//! [`shape::floor()`] gives bytes and operations; from prompts of some 500 tokens on it is the tensor cores' time. At
//! head size 128 a warp issues for a tile of its 32 rows x 64 keys, as the assembler's output for sm_90a counts it,
//!
//! | | instructions | cycles of two blocks, 8 warps, a multiprocessor |
//! | --- | --- | --- |
//! | `mma` | 256 | 3251 of each scheduler's tensor core, at 6.35 each: 63 % of what `wgmma` reaches |
//! | `ldmatrix` x4 | 80, at 4 passes each | 2560 of shared memory, and 512 for what `cp.async` writes |
//! | `ex2` | 64 | 1024 of each scheduler's special functions |
//! | all | 770 | 1540 of each scheduler's issue slots |
//!
//! If all were hidden behind the tensor cores, that would be 8.4 MFLOP in 3251 cycles: 590 TFLOP/s on an H200 at 1.75
//! GHz. FlashAttention-2, which has 32 rows a warp, too, is published at 338 on an H100, which has the same cores
//! (forward and backward together, without a mask). This kernel is not measured yet; the target is 300 TFLOP/s. The kernel's registers are limited so that two blocks share a
//! multiprocessor: the softmax of one runs beside the products of the other. They need 2 x 97 KiB of its shared memory;
//! a GPU with less, such as the A100, runs one.
//!
//! # Ladder
//!
//! 1. A thread a query row: each key is loaded for every row, and no tensor core is used.
//! 2. A warp for 16 rows, `mma`, queries in registers, scores never in memory. A load of 4 passes serves two `mma`:
//!    that is 8 passes of shared memory in the 6.35 cycles that four tensor cores take for one each.
//! 3. 32 rows a warp, as FlashAttention-2 has it: half the loads. From head size 80 on the queries go to shared memory
//!    in exchange, which costs a quarter of what was saved. At head size 256, 32 rows are too many, and step 2 is what
//!    remains.
//! 4. Tiles in two stages, one group of copies and one barrier a tile: the next tile has a whole tile's time to arrive,
//!    and warps can drift apart by as much.
//! 5. Heads of a group as rows: fewer and fuller tiles, fewer half-masked ones, and a few new tokens occupy one warp,
//!    not one warp a head. Warps whose rows do not see a tile skip it.
//! 6. (here) Outputs are rescaled only when a score exceeds its row's reference by 2^8, see `softmax.rs`: that saves
//!    128 multiplications and 8 shuffles in 900 instructions, in nearly every tile.

use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use crate::element::{Bf16, F16};
use crate::kv_element::{Bf16Fp8, Bf16Int8, F16Fp8, F16Int8, KvElement};
use crate::layout::Pages;
use cuda_std::ptx::cp_async;

mod fragment;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod hopper;
mod pages;
mod rows;
pub mod shape;
mod softmax;
mod tile;

use fragment::{Queries, ZERO, add_values};
use pages::KvTiles;
use rows::QueryRows;
use shape::{fragments, query_in_registers, row_bytes, stage_bytes, tile_keys, tile_rows};
use softmax::Softmax;
use tile::Tile;

/// The arguments of [`paged_prefill()`] that describe the sequences.
#[derive(Clone, Copy)]
struct Batch {
    query: *const u16,
    query_stride: u32,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    contexts: *const u32,
    sequences: u32,
    group: u32,
}

/// A layer's pages.
#[derive(Clone, Copy)]
struct Cache {
    pages: Pages,
    vectors: *const Vector,
}

/// Causal attention of each sequence's new tokens over its whole context, see the module.
///
/// # Safety
/// The arrays have the shapes that the module describes; `query`, its rows, `cache` and `output` are aligned to 16
/// bytes; `group` is at least 1, `block_size` a power of two, `scale` positive, contexts and `window` are below 2^31; a
/// context holds at least the new tokens, and their keys and values are in the cache; the launch is of
/// [`launch_shape`](shape::launch_shape()).
#[kernel(
    dependent,
    max_threads = 128,
    min_blocks = 2,
    instances(T = [F16, Bf16], D = [32, 64, 80, 96, 128, 256]),
    instances(T = [F16Int8, F16Fp8, Bf16Int8, Bf16Fp8], D = [32, 64, 80, 96, 128, 256])
)]
pub unsafe fn paged_prefill<T: KvElement, const D: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    contexts: *const u32,
    sequences: u32,
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    window: u32,
    scale: f32,
) {
    let batch = Batch { query, query_stride, tables, table_starts, query_starts, contexts, sequences, group };
    let cache = Cache { pages: Pages { heads: kv_heads, head_size: D, block_size, format: T::FORMAT }, vectors: cache };
    let window = if window == 0 { i32::MAX as u32 } else { window };
    let head = thread::block_idx_x();
    // SAFETY: the arrays are as this kernel's contract says, which is what the functions called here ask for; the
    // launch has the shared memory for all rows and stages. All threads of a block take the same tile, and all lanes of
    // a warp the same rows, so that they reach barriers and shuffles together.
    unsafe {
        let tile = Tile::of_block::<D>(&batch);
        let Some(sight) = tile.sight(tile.first, tile_rows(D), window) else { return };
        let image: *mut Vector = dynamic_shared_mem();
        let stages = shared_offset(image) + row_bytes(D);
        let rows = QueryRows::<D>::new(tile, head, kv_heads, image, fragments(D));
        let own_sight = rows.sight(window);

        rows.copy_queries(&batch);
        if query_in_registers(D, T::FORMAT) {
            // In a group of their own, so that they are not waited for together with the first tile.
            cp_async::commit();
        }
        let mut stream = KvTiles::<T, D>::new(&batch, &cache, tile.sequence, head, sight, stages);
        let (mut index, last) = (sight.first_key() / tile_keys(D, T::FORMAT), sight.last / tile_keys(D, T::FORMAT));
        stream.copy(index % 2);

        let mut queries = Queries::<D>::new(shared_offset(rows.place(0, 0)));
        if query_in_registers(D, T::FORMAT) {
            cp_async::wait::<1>();
            warp::sync_warp(FULL_MASK);
            queries.hold();
        }
        let mut softmax = Softmax::<T, D>::new(scale);
        let mut sums = ZERO;
        while index <= last {
            // The tile has arrived, and all warps are done with the one before, whose stage the next one takes.
            cp_async::wait::<0>();
            thread::sync_threads();
            if index < last {
                stream.copy((index + 1) % 2);
            }
            let key = index * tile_keys(D, T::FORMAT);
            if let Some(own) = own_sight
                && own.any(key, tile_keys(D, T::FORMAT))
            {
                let stage = stages + index % 2 * stage_bytes(D, T::FORMAT);
                let mut scores = queries.times_keys::<T>(stage);
                if !own.all(key, tile_keys(D, T::FORMAT)) {
                    rows.mask::<T>(&mut scores, key, window);
                }
                softmax.weigh(&mut scores, &mut sums);
                add_values::<T, D>(&mut sums, &scores, stage);
            }
            index += 1;
        }
        if own_sight.is_some() {
            if !query_in_registers(D, T::FORMAT) {
                // Other lanes may have yet to read the queries for the last tile.
                warp::sync_warp(FULL_MASK);
            }
            rows.store::<T, _>(output, &sums, &softmax.finish());
        }
    }
}
