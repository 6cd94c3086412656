//! `paged_prefill`: causal attention of many new tokens per sequence over the paged cache.
//!
//! For each new token at position p of its sequence, and each query head with its KV head's keys k and values v,
//!
//! ```text
//! output = sum over j of softmax(scale * query . k[j]) v[j],      max(0, p + 1 - window) <= j <= p
//! ```
//!
//! One launch takes whole prompts, prompt chunks that continue a cached prefix, and several sequences of any lengths.
//! All keys and values, including the new tokens', must already be in the cache. A sequence may have no new tokens. The
//! first entry of `query_starts` may be any number. Cache blocks outside the windows of all of a sequence's new tokens
//! may have been freed.
//!
//! | array | shape |
//! | --- | --- |
//! | `output` | `[tokens][heads][head_size]` |
//! | `query` | the same, but tokens are `query_stride` elements apart, so it may point into a fused QKV output |
//! | `cache` | the layer's pages, see [`layout`](crate::layout) |
//! | `tables`, `table_starts` | block tables of `ceil(context / block_size)` entries, and the start of each |
//! | `query_starts` | `[sequences + 1]`: the new tokens of sequence s are `query_starts[s] .. query_starts[s + 1]` |
//! | `contexts` | `[sequences]`: tokens of each sequence in the cache, including the new ones |
//!
//! # Grid
//!
//! ([KV heads](shape::launch_shape()), tiles) blocks of 4 warps. A block computes a tile of 128 query rows (64 at head
//! size 256, 32 at 512). It iterates over the keys that these rows see, in tiles of 64 (32 at head size 256, 16 at 512). The query heads of a
//! KV head are neighbouring rows. So a group of any size fills tiles, and a token's heads share its keys. A block finds
//! its rows by bisection of `query_starts`. The host needs bounds on tokens and sequences, but no lengths.
//!
//! With an 8-bit cache, each warp converts codes to 16-bit numbers as it loads them. For a tile of 64 keys at head size
//! 64 that takes twice the instructions of a 16-bit cache. From head size 80 on, tiles have 32 keys, because registers
//! are short. At head size 256 the queries stay in shared memory.
//!
//! At head size 512 a row's output would take 256 registers of each lane, and a lane has 255. Two warps therefore share rows.
//! Both compute the scores, and each computes half of the output. That is half as much again on the tensor cores. Only
//! with 32 rows and 16 keys do queries and two stages fit into the 99 KiB that every GPU has.
//!
//! # Reuse of a prefix
//!
//! Tiles of keys begin at multiples of their size, with any window. The reference of a row's softmax depends only
//! on the row's own scores. A tile that a row does not see leaves its result as it is. A token's result is therefore the
//! same to the bit, whether its prefix is known or is computed in the same launch.
//!
//! # Latent vectors
//!
//! `paged_latent_attention` has one KV head, and the last elements of its keys are the values. A tile of keys is therefore
//! copied once and serves both products. A row has 576 elements and its output 512, so tiles are as small as at head size
//! 512. It also serves decode: a token's heads are the rows. A sequence's keys are read by one block for each 32 of its
//! rows, so long contexts in small batches leave multiprocessors idle.
//!
//! # Floor
//!
//! [`shape::floor()`] gives bytes and operations. For prompts of about 500 tokens or more, tensor-core time is the
//! floor. At head size 128, a warp's tile is 32 rows x 64 keys. It issues, as counted in the assembler's output for
//! sm_90a:
//!
//! | | instructions | cycles for two blocks (8 warps) on a multiprocessor |
//! | --- | --- | --- |
//! | `mma` | 256 | 3251 of each scheduler's tensor core, at 6.35 each: 63 % of the rate of `wgmma` |
//! | `ldmatrix` x4 | 80, at 4 passes each | 2560 of shared memory, and 512 for the writes of `cp.async` |
//! | `ex2` | 64 | 1024 of each scheduler's special function units |
//! | all | 770 | 1540 of each scheduler's issue slots |
//!
//! If the tensor cores hid everything else, that would be 8.4 MFLOP in 3251 cycles: 590 TFLOP/s on an H200 at 1.75 GHz.
//! FlashAttention-2 also has 32 rows per warp. Its published rate is 338 TFLOP/s on an H100, which has the same cores
//! (forward and backward together, without a mask). This kernel is not measured yet; the target is 300 TFLOP/s.
//!
//! The kernel's registers are limited so that two blocks share a multiprocessor. The softmax of one block then overlaps
//! the products of the other. Two blocks need 2 x 97 KiB of shared memory. A GPU with less, such as the A100, runs one.
//!
//! # Ladder
//!
//! 1. One thread per query row: each key is loaded for every row, and the tensor cores are idle.
//! 2. One warp per 16 rows, `mma`, queries in registers, and scores never in memory. A load of 4 passes serves two
//!    `mma`. Four tensor cores take 6.35 cycles for one `mma` each, and need 8 passes of shared memory for it.
//! 3. 32 rows per warp, as in FlashAttention-2: half the loads. In exchange, from head size 80 on, the queries move to
//!    shared memory, which costs a quarter of the saving. At head size 256, 32 rows are too many, and step 2 applies.
//! 4. Tiles in two stages, with one group of copies and one barrier per tile. The next tile has a whole tile's time to
//!    arrive, and warps can drift apart by as much.
//! 5. The heads of a group as rows. There are fewer and fuller tiles, and fewer half-masked ones. A few new tokens
//!    occupy one warp instead of one warp per head. A warp whose rows do not see a tile skips it.
//! 6. (here) Outputs are rescaled only when a score exceeds its row's reference by 2^8, see `softmax.rs`. In nearly
//!    every tile that saves 128 multiplications and 8 shuffles out of 900 instructions.

use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use super::page_head_size;
use super::softcap::Softcap;
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
use shape::{fragments, query_in_registers, row_bytes, sharers, stage_bytes, tile_keys, tile_rows};
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

/// The arguments of [`paged_prefill()`].
#[derive(Clone, Copy)]
struct Arguments {
    output: *mut u16,
    batch: Batch,
    cache: *const Vector,
    sinks: *const f32,
    kv_heads: u32,
    block_size: u32,
    padding: u32,
    window: u32,
    scale: f32,
    /// Used if the kernel has a softcap.
    softcap: Softcap,
}

/// Computes causal attention of each sequence's new tokens over its whole context, see the module.
///
/// `sinks` has a logit for each query head, which joins the denominator of the softmax. It may be null.
///
/// # Safety
/// - The arrays have the shapes that the module describes. `query`, its rows, `cache` and `output` are aligned to 16
///   bytes.
/// - `group` is at least 1, `block_size` is a power of two, `scale` is positive, and contexts and `window` are below
///   2^31.
/// - A context includes at least the new tokens, and their keys and values are in the cache.
/// - The launch is the one that [`launch_shape`](shape::launch_shape()) returns.
#[kernel(
    dependent,
    max_threads = 128,
    min_blocks = 2,
    instances(T = [F16, Bf16], D = [32, 64, 80, 96, 128, 256, 512]),
    instances(T = [F16Int8, F16Fp8, Bf16Int8, Bf16Fp8], D = [32, 64, 80, 96, 128, 256, 512])
)]
pub unsafe fn paged_prefill<T: KvElement, const D: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
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
    padding: u32,
    window: u32,
    scale: f32,
) {
    let batch = Batch { query, query_stride, tables, table_starts, query_starts, contexts, sequences, group };
    let softcap = Softcap::NONE;
    let args = Arguments { output, batch, cache, sinks, kv_heads, block_size, padding, window, scale, softcap };
    // SAFETY: this kernel's contract is the function's.
    unsafe { attend::<T, D, false>(args) };
}

/// Does the same as [`paged_prefill()`] with scores `cap tanh(s / cap)` in place of `s`. `inner` and `outer` are fields
/// of a `Softcap`.
///
/// # Safety
/// As for [`paged_prefill()`].
#[kernel(
    dependent,
    max_threads = 128,
    min_blocks = 2,
    instances(T = [F16, Bf16], D = [32, 128, 256]),
    instances(T = [F16Int8, F16Fp8, Bf16Int8, Bf16Fp8], D = [32, 128, 256])
)]
pub unsafe fn paged_prefill_capped<T: KvElement, const D: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
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
    padding: u32,
    window: u32,
    inner: f32,
    outer: f32,
) {
    let batch = Batch { query, query_stride, tables, table_starts, query_starts, contexts, sequences, group };
    let args = Arguments {
        output,
        batch,
        cache,
        sinks,
        kv_heads,
        block_size,
        padding,
        window,
        scale: 0.0,
        softcap: Softcap { inner, outer },
    };
    // SAFETY: this kernel's contract is the function's.
    unsafe { attend::<T, D, true>(args) };
}

/// Computes the same as [`paged_prefill()`] for latent keys, whose last elements are the values. `output` has rows of
/// `[heads][value size]`. All heads share one KV head. Pages are as [`AttentionShape::pages`](super::AttentionShape::pages)
/// describes.
///
/// # Safety
/// As for [`paged_prefill()`].
#[kernel(dependent, max_threads = 128, min_blocks = 2, instances(T = [F16, Bf16], D = [48, 576]))]
pub unsafe fn paged_latent_attention<T: KvElement, const D: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    contexts: *const u32,
    sequences: u32,
    query_stride: u32,
    group: u32,
    block_size: u32,
    scale: f32,
) {
    let batch = Batch { query, query_stride, tables, table_starts, query_starts, contexts, sequences, group };
    let (sinks, softcap) = (core::ptr::null(), Softcap::NONE);
    let args =
        Arguments { output, batch, cache, sinks, kv_heads: 1, block_size, padding: 0, window: 0, scale, softcap };
    // SAFETY: this kernel's contract is the function's.
    unsafe { attend::<T, D, false>(args) };
}

/// Computes a block's tile of rows. If `CAPPED`, scores have a softcap.
///
/// # Safety
/// As for [`paged_prefill_capped()`].
#[inline(always)]
unsafe fn attend<T: KvElement, const D: u32, const CAPPED: bool>(args: Arguments) {
    let Arguments { output, batch, cache, sinks, kv_heads, block_size, padding, window, scale, softcap } = args;
    let pages = Pages { heads: kv_heads, head_size: page_head_size(D), block_size, format: T::FORMAT, padding };
    let cache = Cache { pages, vectors: cache };
    let window = if window == 0 { i32::MAX as u32 } else { window };
    let head = thread::block_idx_x();
    // SAFETY: this function's contract covers the contracts of the functions called here. The launch has shared memory
    // for all rows and stages. All threads of a block take the same tile, and all lanes of a warp the same rows, so
    // they reach barriers and shuffles together.
    unsafe {
        let tile = Tile::of_block::<D>(&batch);
        let Some(sight) = tile.sight(tile.first, tile_rows(D), window) else { return };
        let image: *mut Vector = dynamic_shared_mem();
        let stages = shared_offset(image) + row_bytes(D);
        let rows = QueryRows::<D>::new(tile, head, kv_heads, image, fragments(D));
        let own_sight = rows.sight(window);

        rows.copy_queries(&batch);
        if query_in_registers(D, T::FORMAT) {
            // The queries are a copy group of their own, to be waited for before the first tile.
            cp_async::commit();
        }
        let mut stream = KvTiles::<T, D>::new(&batch, &cache, tile.sequence, head, sight, stages);
        let (mut index, last) = (sight.first_key() / tile_keys(D, T::FORMAT), sight.last / tile_keys(D, T::FORMAT));
        stream.copy(index % 2);

        let mut queries = Queries::<D>::new(shared_offset(rows.place(0, 0)));
        if query_in_registers(D, T::FORMAT) {
            cp_async::wait::<1>();
            warp::sync_warp(FULL_MASK);
            queries.load_all();
        }
        let mut softmax = if CAPPED { Softmax::<T, D>::of_powers(softcap.outer) } else { Softmax::<T, D>::new(scale) };
        let mut sums = ZERO;
        while index <= last {
            // The tile has arrived, and all warps are done with the previous one, whose stage the next one reuses.
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
                if CAPPED {
                    fragment::cap::<T, D>(&mut scores, softcap);
                }
                if !own.all(key, tile_keys(D, T::FORMAT)) {
                    // Registers are short in the loop with a softcap.
                    let rows = if CAPPED { rows.again() } else { rows };
                    rows.mask::<T>(&mut scores, key, window);
                }
                softmax.weigh(&mut scores, &mut sums);
                add_values::<T, D>(&mut sums, &scores, stage, rows.first_column());
            }
            index += 1;
        }
        if sharers(D) > 1 {
            // Outputs overwrite the queries, which another warp may still be reading for the last tile.
            thread::sync_threads();
        }
        if own_sight.is_some() {
            if !query_in_registers(D, T::FORMAT) && sharers(D) == 1 {
                // Other lanes may still be reading the queries for the last tile.
                warp::sync_warp(FULL_MASK);
            }
            let sink = |fragment, half, reference| rows.sink(sinks, fragment, half, reference + softcap.shift());
            rows.store::<T, _>(output, &sums, &softmax.finish(sink));
        }
    }
}
