//! Decode attention: one query token a sequence, or a few, against all that the sequence has in the cache.
//!
//! | kernel | computes | grid | block |
//! | --- | --- | --- | --- |
//! | [`plan_paged_attention()`] | the share of each block, once a step and for all layers | 1 | [`PLAN_THREADS`] |
//! | [`paged_attention()`] | `softmax(scale q K^T) V` of every sequence and head | [`DecodeLaunch::shape`] | |
//!
//! Queries are `[tokens][heads][D]`, tokens a stride apart; results `[tokens][heads][D]`, contiguous.
//! Keys and values are pages of [`layout`](crate::layout), found through block tables: all tables are one array, and a
//! sequence's begins where `table_starts` says. Sequences of length 0 are padding: nothing is read for them, and
//! nothing written. The grid is fixed and the host knows no length: a captured graph serves every batch of its size.
//!
//! | file | |
//! | --- | --- |
//! | `plan` | the cut of a batch into ranges of equal length |
//! | `stream` | a warp's iteration over a range, copying tiles of 16 tokens ahead of their use |
//! | `rows` | which token and head each row of a stream is, and what it sees |
//! | `heads` | a tile's arithmetic on the tensor cores |
//! | `merge` | partial results of warps, then of blocks, to results |
//! | [`DecodeLaunch`] | which kernel serves which shape; grid, shared memory, workspace |
//!
//! `H` is 8 for groups of up to 8 query heads to a KV head, and 16 for larger ones, for both types; with heads of 256
//! it is always 8, since registers do not suffice for more, and with a cache of 8 bits, for fewer kernels. More heads than
//! a kernel takes at once are further streams, and read the cache again.
//!
//! # Drafts
//!
//! Where a sequence has a few query tokens, its last one and a draft that is to be verified, rows are pairs of token and head, and
//! each sees the sequence up to its own token. The kernels are those that serve a single token. A launch
//! [with drafts](DecodeLaunch::with_drafts) has 16 rows from a group of two on, room for `16 / group` tokens; a longer draft is
//! several [parts](DecodeLaunch::parts), which are sequences to the kernel, and each reads the cache again.
//!
//! Prefill's kernel reads the cache once for any draft, and with fewer instructions in all, but in one block for each KV head of a
//! sequence, of which one warp computes: a few sequences keep a few multiprocessors busy, and the longest holds up the step. Here
//! all blocks have equal shares, as without drafts. [`DecodeLaunch::suits`] says which is to be taken; `BENCHMARKS.md` has the
//! counts of both, and of drafts as sequences of one token each.
//!
//! # Floor
//!
//! [`floor`]: keys and values are read once, `4 D` bytes for a token and KV head; queries and results are negligible
//! beside them. `4 D` operations for a token and query head: one a byte with MHA, 8 with a group of 8, where an H200
//! has 160 on the tensor cores for each byte. So the time is that of memory, at the 4.5 TB/s that a read-only stream
//! should reach.
//!
//! # What the counts say (emulator; no GPU has run this yet)
//!
//! | D | bytes an instruction | of the issue slots at 4.5 TB/s | registers | blocks an SM | in flight, KiB an SM |
//! | --- | --- | --- | --- | --- | --- |
//! | 32 | 17 | 30 % | 128 | 4 | 96 to 128 |
//! | 64 | 27 | 19 % | 128 | 3 | 144 to 192 |
//! | 80 | 30 | 17 % | 140 | 3 | 60 to 120 |
//! | 96 | 31 | 16 % | 148 | 3 | 72 to 144 |
//! | 128 | 37 | 14 % | 168 | 3 | 96 to 192 |
//! | 256 | 49 | 10 % | 255 | 3 | 96 to 192 |
//!
//! Issue slots are 132 SMs x 4 schedulers x 1.7 GHz; instructions those of the PTX, of which `ptxas` folds address
//! arithmetic and moves. Blocks on an SM are what registers and 227 KiB of shared memory allow (with groups of 6 to 8
//! and D = 128: two). The last column is the bytes in flight: the smaller figure counts the rings without the tile that
//! each warp computes with, the larger one the whole rings, since a warp that waits has all of its stages in flight.
//! In 8 bits, with the same columns for `f16` beside integers (the registers of the other sizes are in `resources.tsv`):
//!
//! | D | bytes an instruction | of the issue slots at 4.5 TB/s | registers | blocks an SM | in flight, KiB an SM |
//! | --- | --- | --- | --- | --- | --- |
//! | 64 | 7.1 | 71 % | 145 | 3 | 173 to 198 |
//! | 128 | 7.1 | 71 % | 167 | 3 | 146 to 195 |
//!
//! For four codes there are seven instructions, five once `and` and `xor` are one: a third of all. So a GPU with the memory
//! of an H200 comes near to its issue slots, and one of 3.4 TB/s has half of them left. A token is read in 1.94 times fewer
//! bytes at D = 64.
//!
//! The tensor cores do 12 times the work of the floor with MHA, 54 TFLOP/s at the memory's full rate, a tenth of what
//! `mma.sync` can do. Global sectors are 1.01 of the floor with some thousands of tokens a block; shared memory has no
//! bank conflicts, and takes a write and a read of each byte, a third of its bandwidth.
//!
//! At batch 1 x 1k latency counts: five reads that depend on each other (range, sequence, table, block, keys), four
//! tiles a warp in two rounds, two barriers, then store, fence, count and load through L2: some 4 us, and a launch.
//!
//! # Ladder
//!
//! 1. A block for each sequence and head, whatever the length: the paper's v1. One long sequence keeps a few SMs busy.
//! 2. Partitions of 512 tokens and a second launch that reduces (v2): the grid depends on the longest length, blocks of
//!    short sequences are empty, and K is read again for each query head.
//! 3. Group on the tensor cores, K and V by `cp.async` through a ring for each warp: a byte is read once for all its
//!    heads, and no barrier stands in the loop.
//! 4. Equal ranges over a fixed grid, merged by the last block to arrive: balanced for any lengths, and one launch.
//! 5. (here) Copies of tiles go on across the ends of streams, so that the ring does not run dry at each; heads as rows
//!    of Q K^T but columns of V^T P^T, so that weights stay in the lanes that computed them; a lazy reference for the
//!    softmax, so that no shuffle is left in the loop.
//!
//! MHA on CUDA cores, a lane for each token, was considered and rejected: with 256 conversions and 256 multiplications
//! for a tile of 8 KiB it reads 16 bytes an instruction at best. On the tensor cores a small group is padded with rows
//! of zeros; they take only tensor-core time, of which there is plenty here, and one kernel serves all groups.

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

/// Decode attention: `H` rows at once, with `D` elements each.
///
/// - `output`: `[tokens][heads][D]`; `query`: the same, with tokens `query_stride` elements apart.
/// - `cache`: the layer's pages, of `kv_heads` heads and `block_size` tokens; `group` query heads share each KV head.
/// - `tables`: all block tables, each long enough for its sequence; `table_starts`: where each sequence's begins.
/// - `query_starts`: `[sequences + 1]`, sequence s has query tokens `query_starts[s] .. query_starts[s + 1]`: one, or as
///   many as fill `H` rows at most, and of padding any.
/// - `plan`: of [`plan_paged_attention()`] for this batch, window and grid.
/// - `partials`, `arrivals`: the workspace, of [`DecodeLaunch::partial_vectors`] and [`DecodeLaunch::arrivals`].
/// - `rows`: the most rows that a stream may have, [`DecodeLaunch::rows`].
/// - `window`: with w > 0, which is below 2^31, a query sees the last w tokens up to its own; with 0 all.
/// - `scale`: what products of queries and keys are multiplied with, above 0.
///
/// # Safety
/// The arrays have these shapes; query rows are aligned to 4 bytes, output to 8, vectors to 16; the launch is as
/// [`DecodeLaunch`] says, and no other uses the workspace meanwhile.
#[kernel(
    dependent,
    max_threads = 128,
    min_blocks = 2,
    instances(T = [F16, Bf16], D = [32, 64, 80, 96, 128, 256], H = [8]),
    instances(T = [F16, Bf16], D = [32, 64, 80, 96, 128], H = [16]),
    instances(T = [F16Int8, F16Fp8, Bf16Int8, Bf16Fp8], D = [32, 64, 80, 96, 128, 256], H = [8])
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
    query_stride: u32,
    kv_heads: u32,
    group: u32,
    block_size: u32,
    rows: u32,
    window: u32,
    scale: f32,
) {
    let window = if window == 0 { i32::MAX as u32 } else { window };
    let pages = Pages { heads: kv_heads, head_size: D, block_size, format: T::FORMAT };
    let cache = Cache { vectors: cache, pages, tables, table_starts, head_tiles: group.div_ceil(H) };
    let (slots, warp) = (thread::grid_dim_x(), warp::warp_id());
    let plan = DecodePlan::new(plan, slots);
    // SAFETY: the arrays are as this kernel's contract says, which is what the functions called here ask for. All lanes
    // of a warp go through the same tiles, and all threads of a block through the same streams, so that they reach
    // shuffles and barriers together.
    unsafe {
        let (begin, end, sequence) = plan.range(thread::block_idx_x());
        if begin == end {
            return;
        }
        let exchange = Exchange { partials, arrivals, ranges: plan.ranges(), slots, rows };
        let (stages, tile_bytes) = (stages(D, T::FORMAT), tile_bytes(D, T::FORMAT));
        let ring = shared_offset(dynamic_shared_mem::<u8>()) + warp * stages * tile_bytes;
        let merged = dynamic_shared_mem::<u8>().add(ring_bytes(D, T::FORMAT) as usize).cast::<Vector>();

        let mut stream = KvStream::holding(plan, begin, sequence);
        let (mut tile, mut stage) = (begin + warp, 0);
        let mut reader = Reader::<T, D>::new(plan, cache, stream, tile, end, warps(D), ring);
        for stage in 0..stages {
            reader.fetch(stage);
        }
        loop {
            let of = StreamRows::of(stream, query_starts, cache.head_tiles, group, H);
            let mut heads = QueryHeads::<T, D, H>::load(query, query_stride, of);
            let sight = of.sight(stream, window);
            let stop = stream.end().min(end);
            while tile < stop {
                match stages {
                    8 => cp_async::wait::<7>(),
                    4 => cp_async::wait::<3>(),
                    _ => cp_async::wait::<1>(),
                }
                // What the other lanes copied has arrived, too.
                warp::sync_warp(FULL_MASK);
                let at = ring + stage * tile_bytes;
                heads.take(at, tile, sight, scale * LOG2_E);
                // The stage is free when all lanes are done with it.
                warp::sync_warp(FULL_MASK);
                reader.fetch(stage);
                stage = (stage + 1) % stages;
                tile += warps(D);
            }
            // Read again: in the loop registers are short.
            let of = StreamRows::of(stream, query_starts, cache.head_tiles, group, H);
            heads.leave(merged.add((warp * rows * row_vectors(D)) as usize).cast(), of.count);
            finish::<T::Element, D>(merged, warps(D), of, stream, exchange, output, kv_heads * group * D);
            if stop == end {
                return;
            }
            stream.advance(plan, cache.streams());
            // All threads have read the rows of the previous stream.
            thread::sync_threads();
        }
    }
}
