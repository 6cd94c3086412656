//! Decode attention: one query token per sequence, or a few, attends to the sequence's whole cache.
//!
//! | kernel | computes | grid | block |
//! | --- | --- | --- | --- |
//! | [`plan_paged_attention()`] | each block's share of the work, once per step for all layers | 1 | [`PLAN_THREADS`] |
//! | [`paged_attention()`] | `softmax(scale q K^T) V` for every sequence and head | [`DecodeLaunch::shape`] | |
//! | [`paged_attention_capped()`] | the same with a softcap on the scores | | |
//!
//! Queries are `[tokens][heads][D]`, with a stride between tokens. Results are `[tokens][heads][D]`, contiguous. Keys
//! and values are in the pages of [`layout`](crate::layout), found through block tables. All tables are one array, and
//! `table_starts` says where each sequence's table begins. Sequences of length 0 are padding: the kernel reads and
//! writes nothing for them. The grid is fixed and the host does not need to know the lengths, so a captured graph
//! serves every batch of its size.
//!
//! | file | |
//! | --- | --- |
//! | `plan` | divides a batch into ranges of equal length |
//! | `stream` | a warp's iteration over a range, which copies tiles of 16 tokens ahead of their use |
//! | `rows` | the token and head of each row of a stream, and the tokens that it sees |
//! | `heads` | a tile's arithmetic on the tensor cores |
//! | `merge` | merges partial results of warps, then of blocks |
//! | [`DecodeLaunch`] | the kernel for each shape; grid, shared memory, workspace |
//!
//! `H` is the number of rows that a kernel takes at once. It is 8 for groups of up to 8 query heads per KV head, and 16
//! for larger groups, for both types. From 256 elements on it is always 8, because 16 rows would not fit the registers.
//! With an 8-bit cache or a softcap it is always 8 too, to limit the number of kernels. If a group has more heads, they form further
//! streams, which read the cache again.
//!
//! # Drafts
//!
//! A sequence with a draft to verify has a few query tokens: its last token and the draft. Rows are then pairs of token
//! and head, and each row sees the sequence up to its own token. The kernels are the same as for a single token. A
//! launch [with drafts](DecodeLaunch::with_drafts) has 16 rows for groups of two or more, which is room for
//! `16 / group` tokens. A longer draft becomes several [parts](DecodeLaunch::parts). The kernel treats parts as
//! sequences, and each reads the cache again.
//!
//! Prefill's kernel reads the cache once for any draft, and takes fewer instructions overall. But it uses only one
//! block for each KV head of a sequence, and in that block only one warp computes. A few sequences then keep only a few
//! multiprocessors busy, and the longest delays the step. Here all blocks have equal shares, as without drafts.
//! [`DecodeLaunch::suits`] chooses between the two. `docs/benchmarks` has the counts of both, and of drafts as sequences
//! of one token each.
//!
//! # Floor
//!
//! [`floor`]: keys and values are read once, `4 D` bytes per token and KV head. Queries and results are negligible in
//! comparison. The arithmetic is `4 D` operations per token and query head. That is one operation per byte with MHA and
//! 8 with a group of 8, while an H200's tensor cores can do 160 per byte. So memory sets the time, at the 4.5 TB/s that
//! a read-only stream should reach.
//!
//! # Counts (emulator; no GPU has run this yet)
//!
//! | D | bytes per instruction | share of the issue slots at 4.5 TB/s | registers | blocks per SM | in flight, KiB per SM |
//! | --- | --- | --- | --- | --- | --- |
//! | 32 | 17 | 30 % | 120 | 4 | 96 to 128 |
//! | 64 | 27 | 19 % | 138 | 3 | 144 to 192 |
//! | 80 | 30 | 17 % | 142 | 3 | 60 to 120 |
//! | 96 | 31 | 16 % | 149 | 3 | 72 to 144 |
//! | 128 | 37 | 14 % | 168 | 3 | 96 to 192 |
//! | 256 | 49 | 10 % | 255 | 3 | 96 to 192 |
//! | 512 | 54 | 9 % | 253 | 2 | 64 to 128 |
//!
//! Issue slots are 132 SMs x 4 schedulers x 1.7 GHz. Instructions are counted in the PTX; `ptxas` folds some of the
//! address arithmetic and moves. Blocks per SM are limited by registers and 227 KiB of shared memory (two with groups
//! of 6 to 8 and D = 128). The last column is the bytes in flight. The smaller figure counts the rings without the tile
//! that each warp computes with. The larger one counts whole rings, since a waiting warp has all of its stages in
//! flight.
//!
//! A head of 512 elements is one warp's work. Its queries stay in shared memory, where `ldmatrix` loads two steps at a
//! time, because output and queries together would take 192 registers.
//!
//! In 8 bits the same columns are as follows, for `f16` with integer codes (`resources.tsv` has the registers of the
//! other sizes):
//!
//! | D | bytes per instruction | share of the issue slots at 4.5 TB/s | registers | blocks per SM | in flight, KiB per SM |
//! | --- | --- | --- | --- | --- | --- |
//! | 64 | 7.1 | 71 % | 145 | 3 | 173 to 198 |
//! | 128 | 7.1 | 71 % | 167 | 3 | 146 to 195 |
//!
//! Four codes take seven instructions to convert, or five once `and` and `xor` are fused. That is a third of all
//! instructions. So a GPU with an H200's memory comes close to its limit of issue slots, and one with 3.4 TB/s has half
//! of them left. At D = 64 a token takes 1.94 times fewer bytes than in 16 bits.
//!
//! With MHA the tensor cores do 12 times the work of the floor: 54 TFLOP/s at full memory rate, a tenth of the peak of
//! `mma.sync`. With a few thousand tokens per block, global sectors are 1.01 times the floor. Shared memory has no bank
//! conflicts. It takes one write and one read of each byte, a third of its bandwidth.
//!
//! At batch 1 x 1k latency dominates: five dependent reads (range, sequence, table, block, keys), four tiles per warp
//! in two rounds, and two barriers. Then come a store, a fence, a count and a load through L2. Together that is about 4
//! us, plus a launch.
//!
//! # Ladder
//!
//! 1. One block per sequence and head, whatever the length: the paper's v1. One long sequence keeps only a few SMs
//!    busy.
//! 2. Partitions of 512 tokens and a second launch that reduces them (v2). The grid depends on the longest length,
//!    blocks of short sequences are empty, and K is read again for each query head.
//! 3. The group's heads on the tensor cores, with K and V copied by `cp.async` through one ring per warp. A byte is
//!    read once for all heads of the group, and the loop has no barrier.
//! 4. Equal ranges over a fixed grid, merged by the last block to arrive. Work is balanced for any lengths, in one
//!    launch.
//! 5. (here) Copies of tiles continue across the ends of streams, so the ring does not run dry at each end. Heads are
//!    rows of Q K^T but columns of V^T P^T, so weights stay in the lanes that computed them. The softmax uses a lazy
//!    reference, so no shuffle is left in the loop.
//!
//! MHA on CUDA cores with one lane per token was considered and rejected. It needs 256 conversions and 256
//! multiplications for a tile of 8 KiB, so it reads at most 16 bytes per instruction. On the tensor cores a small group
//! is padded with rows of zeros. They take only tensor-core time, which is plentiful here, and one kernel serves all
//! groups.

mod heads;
mod launch;
mod merge;
mod plan;
mod rows;
mod stream;

use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use super::LOG2_E;
use super::softcap::Softcap;
use crate::element::{Bf16, F16};
use crate::kv_element::{Bf16Fp8, Bf16Int8, F16Fp8, F16Int8, KvElement};
use crate::layout::Pages;
use cuda_std::ptx::cp_async;
use heads::QueryHeads;
use launch::{ring_bytes, stages, warps};
use merge::{Exchange, finish, row_vectors};
use plan::DecodePlan;
use rows::StreamRows;
use stream::{Cache, KvStream, Reader, tile_bytes};

pub use launch::{DecodeLaunch, floor, is_draft};
pub use plan::{MIN_RANGE, PLAN_THREADS, Ranges, TILE, plan_paged_attention, plan_vectors};

/// The arguments of [`paged_attention()`].
#[derive(Clone, Copy)]
struct Arguments {
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    plan: *const Vector,
    partials: *mut Vector,
    arrivals: *mut u32,
    sinks: *const f32,
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    padding: u32,
    rows: u32,
    window: u32,
    scale: f32,
    /// Used if the kernel has a softcap.
    softcap: Softcap,
}

/// Computes decode attention, `H` rows at once, with `D` elements each.
///
/// - `output`: `[tokens][heads][D]`.
/// - `query`: the same, but tokens are `query_stride` elements apart.
/// - `cache`: the layer's pages, with `kv_heads` heads and `block_size` tokens. `group` query heads share each KV head.
/// - `tables`: all block tables, each long enough for its sequence.
/// - `table_starts`: the start of each sequence's table.
/// - `query_starts`: `[sequences + 1]`. Sequence s has query tokens `query_starts[s] .. query_starts[s + 1]`: at least
///   one, and at most as many as fill `H` rows. Padding may have any number.
/// - `plan`: the result of [`plan_paged_attention()`] for this batch, window and grid.
/// - `partials`, `arrivals`: the workspace, with the sizes [`DecodeLaunch::partial_vectors`] and
///   [`DecodeLaunch::arrivals`].
/// - `sinks`: a logit for each query head, which joins the denominator of the softmax, or null.
/// - `rows`: the maximum number of rows of a stream, [`DecodeLaunch::rows`].
/// - `window`: with w > 0, a query sees the last w tokens up to its own; with 0 it sees all. Below 2^31.
/// - `scale`: the factor for products of queries and keys, above 0.
/// - `padding`: the number of unused vectors at the end of a page of codes. It is the last parameter.
///   Anywhere else it moves later parameters, and `ptxas` then spills a register even in a kernel that does not read it.
///
/// # Safety
/// The arrays have these shapes. Query rows are aligned to 4 bytes, output to 8, vectors to 16. The launch is as
/// [`DecodeLaunch`] says, and no other launch uses the workspace meanwhile.
// At head size 32 shared memory has room for more than three blocks, so registers must suffice for four.
#[kernel(
    dependent,
    max_threads = 128,
    min_blocks = 2,
    instances(min_blocks = 4, T = [F16, Bf16], D = [32], H = [8]),
    instances(T = [F16, Bf16], D = [64, 80, 96, 128, 256, 512], H = [8]),
    instances(T = [F16, Bf16], D = [32, 64, 80, 96, 128], H = [16]),
    instances(T = [F16Int8, F16Fp8, Bf16Int8, Bf16Fp8], D = [32, 64, 80, 96, 128, 256, 512], H = [8])
)]
pub unsafe fn paged_attention<T: KvElement, const D: u32, const H: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    plan: *const Vector,
    partials: *mut Vector,
    arrivals: *mut u32,
    sinks: *const f32,
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    rows: u32,
    window: u32,
    scale: f32,
    padding: u32,
) {
    let args = Arguments {
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
        scale,
        softcap: Softcap::NONE,
    };
    // SAFETY: this kernel's contract is the function's.
    unsafe { attend::<T, D, H, false>(args) };
}

/// Does the same as [`paged_attention()`] with scores `cap tanh(s / cap)` in place of `s`. `inner` and `outer` are fields
/// of a `Softcap`.
///
/// # Safety
/// As for [`paged_attention()`].
#[kernel(
    dependent,
    max_threads = 128,
    min_blocks = 2,
    instances(min_blocks = 4, T = [F16, Bf16], D = [32], H = [8]),
    instances(T = [F16, Bf16], D = [128, 256], H = [8]),
    instances(T = [F16Int8, F16Fp8, Bf16Int8, Bf16Fp8], D = [32, 128, 256], H = [8])
)]
pub unsafe fn paged_attention_capped<T: KvElement, const D: u32, const H: u32>(
    output: *mut u16,
    query: *const u16,
    cache: *const Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    plan: *const Vector,
    partials: *mut Vector,
    arrivals: *mut u32,
    sinks: *const f32,
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    rows: u32,
    window: u32,
    inner: f32,
    outer: f32,
    padding: u32,
) {
    let args = Arguments {
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
        scale: 0.0,
        softcap: Softcap { inner, outer },
    };
    // SAFETY: this kernel's contract is the function's.
    unsafe { attend::<T, D, H, true>(args) };
}

/// Computes a block's range. If `CAPPED`, scores have a softcap.
///
/// # Safety
/// As for [`paged_attention_capped()`].
#[inline(always)]
unsafe fn attend<T: KvElement, const D: u32, const H: u32, const CAPPED: bool>(args: Arguments) {
    let Arguments { output, query, cache, tables, table_starts, query_starts, plan, partials, arrivals, sinks, .. } =
        args;
    let Arguments { query_stride, kv_heads, group, block_size, padding, rows, window, scale, softcap, .. } = args;
    let window = if window == 0 { i32::MAX as u32 } else { window };
    let pages = Pages { heads: kv_heads, head_size: D, block_size, format: T::FORMAT, padding };
    let cache = Cache { vectors: cache, pages, tables, table_starts, head_tiles: group.div_ceil(H) };
    let (slots, warp) = (thread::grid_dim_x(), warp::warp_id());
    let plan = DecodePlan::new(plan, slots);
    let shift = softcap.shift();
    let softcap = if CAPPED { Some(softcap) } else { None };
    // SAFETY: this function's contract covers the contracts of the functions called here. All lanes of a warp go through
    // the same tiles, and all threads of a block through the same streams, so they reach shuffles and barriers
    // together.
    unsafe {
        let (begin, end, sequence) = plan.range(thread::block_idx_x());
        if begin == end {
            return;
        }
        let exchange = Exchange { partials, arrivals, ranges: plan.ranges(), slots, rows, sinks, shift };
        let (stages, tile_bytes) = (stages(D, T::FORMAT), tile_bytes(D, T::FORMAT));
        let ring = shared_offset(dynamic_shared_mem::<u8>()) + warp * stages * tile_bytes;
        let merged = dynamic_shared_mem::<u8>().add(ring_bytes(D, T::FORMAT) as usize).cast::<Vector>();

        let mut stream = KvStream::containing(plan, begin, sequence);
        let (mut tile, mut stage) = (begin + warp, 0);
        let mut reader = Reader::<T, D>::new(plan, cache, stream, tile, end, warps(D), ring);
        for stage in 0..stages {
            reader.fetch(stage);
        }
        loop {
            let stream_rows = StreamRows::new(stream, query_starts, cache.head_tiles, group, H);
            // Queries in shared memory use the memory of the warp's partial results, which follow after the last tile.
            let mut heads = QueryHeads::<T, D, H>::load(query, query_stride, stream_rows, merged.cast());
            let sight = stream_rows.sight(stream, window);
            let stop = stream.end().min(end);
            while tile < stop {
                match stages {
                    8 => cp_async::wait::<7>(),
                    4 => cp_async::wait::<3>(),
                    _ => cp_async::wait::<1>(),
                }
                // Wait for the copies of the other lanes, too.
                warp::sync_warp(FULL_MASK);
                let at = ring + stage * tile_bytes;
                heads.attend(at, tile, sight, scale * LOG2_E, softcap);
                // All lanes must be done with the stage before it is refilled.
                warp::sync_warp(FULL_MASK);
                reader.fetch(stage);
                stage = (stage + 1) % stages;
                tile += warps(D);
            }
            // Recomputed here because registers are scarce in the loop.
            let stream_rows = StreamRows::new(stream, query_starts, cache.head_tiles, group, H);
            heads.store_partials(merged.add((warp * rows * row_vectors(D)) as usize).cast(), stream_rows.count);
            finish::<T, D>(merged, warps(D), stream_rows, stream, exchange, output, kv_heads * group * D);
            if stop == end {
                return;
            }
            stream.advance(plan, cache.streams());
            // All threads must have read the previous stream's rows before they are overwritten.
            thread::sync_threads();
        }
    }
}
