//! The paper's PagedAttention kernels, for study and as a baseline. Numbers like (4.1) are sections of the paper.
//!
//! | file | what |
//! | --- | --- |
//! | `v1.rs` | `paged_attention_v1`: a thread block attends to a whole sequence with one head. Start here |
//! | `v2.rs` | `paged_attention_v2`: a thread block attends to 512 tokens of a sequence |
//! | `reduce.rs` | `paged_attention_v2_reduce`: merges the partial results of v2's thread blocks |
//! | `attend.rs` | shared by v1 and v2: one thread block's work, from the query to the sum of values |
//! | `scores.rs`, `softmax.rs`, `values.rs` | its three phases |
//! | `write.rs` | `paper_rope_and_cache`: writes new tokens' keys and values where v1 and v2 read them |
//! | `head.rs`, [`span`] | the location of a thread block's keys and values, and the tokens that it sees |
//! | [`launch`], [`floor`] | host code: the choice of kernel, its grid and shared memory, and attention's least cost |
//!
//! # The computation
//!
//! In a decode step each sequence has one new token, with a query `q` for every head. The token sees keys `k[t]` and
//! values `v[t]`, which earlier steps left in the cache. Attention is then (4.1)
//! ```text
//! output = sum over t of a[t] v[t],    a[t] = exp(scale q.k[t]) / sum over u of exp(scale q.k[u])
//! ```
//!
//! with `scale` equal to one over the square root of the head size. Nothing can be reused: this step reads every key
//! and value once, for two flops per element. So the time is the time to read the cache. The kernel therefore reads it
//! in large contiguous pieces and keeps enough of them in flight.
//!
//! # Paging
//!
//! Keys and values of a sequence are not contiguous. They are in blocks of `block_size` tokens, anywhere in the cache.
//! The sequence's block table lists the blocks (4.2). Equation 4 of the paper is the same sum, block by block:
//!
//! ```text
//! sequence of 41 tokens    | 0 ........ 15 | 16 ....... 31 | 32 .. 40 ///// |
//! its block table          |       7       |       1       |       3        |
//! the cache     | block 0 | block 1 | block 2 | block 3 | ... | block 7 | ...
//!                          16 ... 31           32 .. 40         0 ... 15
//! ```
//!
//! The lookup costs one 4-byte load per block, which all lanes of a warp share, before kilobytes of keys. It is in
//! `head.rs`, and it is all that paging adds: the rest of the kernel would be the same without pages. Slots after the
//! last token (`/////`) were never written or belong to no sequence. Their contents are arbitrary and must not reach
//! the result.
//!
//! # Shapes and layouts
//!
//! Elements are `f16` or `bf16`. The layouts are vLLM's, with 8 elements (16 bytes) as the unit *x*:
//!
//! | array | shape |
//! | --- | --- |
//! | query | `[sequences][heads][head_size]`, rows `query_stride` elements apart |
//! | keys | `[blocks][kv_heads][head_size / 8][block_size][8]` |
//! | values | `[blocks][kv_heads][head_size][block_size]` |
//! | block tables | `[sequences][table_stride]` of `u32` |
//! | lengths | `[sequences]` of `u32`: tokens in the cache, the new one included |
//! | output | `[sequences][heads][head_size]` |
//!
//! Keys are summed over elements and values over tokens, so their layouts differ: see `scores.rs` and `values.rs`.
//! Quire's own kernels use [`crate::layout`] instead, which stores values in the same order as keys. Here, a new
//! token's value is written in pieces of 2 bytes, `block_size` elements apart.
//!
//! # Division of work
//!
//! A thread block is four warps. It handles one query head of one sequence (in v2, one partition of it). A **warp takes
//! one block** of the cache at a time, so its reads coalesce (5.1): warp 0 takes blocks 0, 4, 8 and so on. `attend.rs`
//! contains all of this:
//!
//! ```text
//!            query -> shared memory, as f32
//!   barrier  ----------------------------------------------------------------------
//!   phase 1  for each of the warp's blocks: logits of its tokens -> shared memory       reads the keys
//!   barrier  - with the greatest logit of the thread block -------------------------
//!   phase 2  each thread: logits -> weights, in place
//!   barrier  - with the sum of all weights -----------------------------------------
//!   phase 3  for each of the warp's blocks: weights x values, in registers              reads the values
//!            warp's sums -> shared memory
//!   barrier  ----------------------------------------------------------------------
//!            sum over the four warps, divide by the sum of weights
//! ```
//!
//! # Floor, and costs above it
//!
//! Floor: `4 * head_size` bytes per token and key/value head (key and value, 2 bytes per element), and as many flops
//! per token and query head. With as many key/value heads as query heads that is one flop per byte. An H200 could do
//! about ten.
//!
//! Memory traffic above the floor, at head size 128 and blocks of 16, is 0.8 % for the block table: each warp reads a
//! sector of it twice per 8 KiB block. In v2 the partial results add another 0.4 %. With grouped queries every query
//! head reads the keys and values for itself. L2 then serves `heads / kv_heads` times the floor's bytes, though DRAM
//! may serve fewer.
//!
//! Issue slots: the emulator counts 71 warp instructions for each KiB of keys and values that a thread block reads
//! (head size 128, blocks of 16). An H200 issues about 204 while its memory delivers one KiB (132 multiprocessors, 4
//! schedulers, 1.7 GHz, 4.5 TB/s). With one key/value head per query head, v1 and v2 use a third of the slots, and
//! memory bandwidth is the limit. With four query heads per key/value head they need 277, and cannot reach three
//! quarters of the memory's rate.
//!
//! Registers are recorded in `prebuilt/resources.tsv`. With head size 128 and blocks of 16, v1 has 96 per thread on
//! sm_80 and on sm_90a: 3,072 per warp and 12,288 per thread block. Five thread blocks fit into a multiprocessor's
//! 65,536 registers, and a sixth does not. Each thread has eight loads in flight, of 8 bytes for keys and 16 bytes for
//! values (blocks of 16). That is 40 and 80 KiB per multiprocessor.
//!
//! # Ladder
//!
//! 1. Attention over contiguous keys and values, as in FasterTransformer: one thread block per sequence and head, and
//!    memory reserved for the longest sequence that may arrive.
//! 2. The same with a block table: one thread per token, and keys as `[token][head_size]`. Each load of a warp touches
//!    32 rows.
//! 3. v1: keys in chunks of 16 bytes with the tokens inside, and one warp per block. Each load of a warp is contiguous.
//!    But one sequence with 32 heads runs only 32 thread blocks on a GPU with 132 multiprocessors, and all logits of a
//!    sequence must fit into shared memory.
//! 4. v2: partitions of 512 tokens. A sequence of 16,384 tokens is 32 thread blocks per head. The price is a second
//!    launch and the partial results.
//!
//! Quire's `paged_attention` removes these remaining costs:
//!
//! - Every query head of a group reads the keys and values again.
//! - Memory is idle at each barrier between the phases.
//! - A partition is 512 tokens long whether or not that fills the GPU evenly. A multiprocessor whose last partition is
//!   short idles until the others are done.
//! - Logits go to shared memory and back.
//!
//! # Differences from vLLM
//!
//! The work is partitioned as in vLLM. Some details differ because they are simpler this way, and no slower:
//!
//! - The query is scaled and widened once, not at each use.
//! - The output is divided by the sum of the weights, not each weight.
//! - The warps' sums are merged at one barrier instead of four.
//! - v2's partial results are `f32`.
//! - Sliding windows, attention sinks and softcaps are supported. ALiBi and block-sparse masks are not.

mod attend;
pub mod floor;
mod head;
pub mod launch;
mod reduce;
mod scores;
mod softmax;
pub mod span;
mod v1;
mod v2;
mod values;
mod write;

pub use reduce::*;
pub use v1::*;
pub use v2::*;
pub use write::*;

use cuda_std::warp::WARP_SIZE;

/// Threads per block of the attention kernels.
pub const THREADS: u32 = 128;

/// Warps per block.
pub const WARPS: u32 = THREADS / WARP_SIZE;

/// Tokens that a thread block of `paged_attention_v2` attends to, a multiple of every block size.
pub const PARTITION: u32 = 512;

/// The largest head size.
pub const MAX_HEAD_SIZE: u32 = 256;

/// Returns the threads in a thread group, which process one token's key together so that a warp takes a whole block. 4,
/// 2 and 1 for blocks of 8, 16 and 32.
pub const fn group_size(block_size: u32) -> u32 {
    WARP_SIZE / block_size
}
