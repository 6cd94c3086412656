//! The paper's PagedAttention kernels, for study and as the yardstick (4.1, 5.1).
//!
//! | file | what |
//! | --- | --- |
//! | `v1.rs` | `paged_attention_v1`: a thread block attends to a whole sequence with one head. Start here |
//! | `v2.rs` | `paged_attention_v2`: a thread block attends to 512 tokens of it |
//! | `reduce.rs` | `paged_attention_v2_reduce`: merges the partial results of v2's thread blocks |
//! | `attend.rs` | what v1 and v2 share: one thread block's work from the query to the sum of values |
//! | `scores.rs`, `softmax.rs`, `values.rs` | its three phases |
//! | `write.rs` | `paper_rope_and_cache`: puts new tokens' keys and values where v1 and v2 look for them |
//! | `head.rs`, [`span`] | where a thread block finds its keys and values; which tokens it sees |
//! | [`launch`], [`floor`] | for the host: which kernel serves, its grid and shared memory; attention's least cost |
//!
//! # What is computed
//!
//! In a decode step each sequence has one new token, with a query `q` for every head. With the keys `k[t]` and values
//! `v[t]` of the tokens that it sees, which the earlier steps have left in the cache, attention is (4.1)
//!
//! ```text
//! output = sum over t of a[t] v[t],    a[t] = exp(scale q.k[t]) / sum over u of exp(scale q.k[u])
//! ```
//!
//! and `scale` is one over the square root of the head size. There is nothing to reuse: every key and value is read for
//! two flops an element and never again in this step. So the time is that of reading the cache, and the kernel is built
//! to read it in large contiguous pieces, with enough of them in flight.
//!
//! # What is paged
//!
//! Keys and values of a sequence are not contiguous. They lie in blocks of `block_size` tokens, anywhere in the cache,
//! and the sequence's block table says where (4.2). Equation 4 of the paper is the same sum, block by block:
//!
//! ```text
//! sequence of 41 tokens    | 0 ........ 15 | 16 ....... 31 | 32 .. 40 ///// |
//! its block table          |       7       |       1       |       3        |
//! the cache     | block 0 | block 1 | block 2 | block 3 | ... | block 7 | ...
//!                          16 ... 31           32 .. 40         0 ... 15
//! ```
//!
//! The lookup costs one load of 4 bytes a block, which all lanes of a warp share, before kilobytes of keys. It is in
//! `head.rs`, and it is all that paging adds: the rest of the kernel would be the same without pages. What lies behind
//! the last token (`/////`) was never written or belongs to no sequence: it may be anything, and must not reach the
//! result.
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
//! Keys are summed over elements, values over tokens, and so they lie differently: `scores.rs` and `values.rs` show
//! how. Quire's own kernels use [`crate::layout`] instead, which has values in the order of the keys: here a new
//! token's value is written in pieces of 2 bytes, `block_size` elements apart.
//!
//! # Who does what
//!
//! A thread block is four warps. It has one query head of one sequence (and in v2 one partition); a **warp takes a
//! block** of the cache at a time, so that it reads coalesced (5.1): warp 0 takes blocks 0, 4, 8 and so on. Everything
//! is in `attend.rs`:
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
//! # Floor, and what is needed above it
//!
//! Floor: `4 * head_size` bytes a token and key/value head (key and value, 2 bytes an element), and as many flops a
//! token and query head. With as many key/value heads as query heads that is a flop a byte; an H200 could do about ten.
//!
//! Memory traffic above the floor, at head size 128 and blocks of 16: 0.8 % for the block table, of which each warp
//! reads a sector twice a block of 8 KiB; in v2 another 0.4 % for the partial results. With grouped queries every query
//! head reads the keys and values for itself: `heads / kv_heads` times the floor's bytes are asked of L2, though DRAM
//! may be spared.
//!
//! Issue slots: the emulator counts 71 warp instructions for each KiB of keys and values that a thread block reads
//! (head size 128, blocks of 16). An H200 issues some 204 in the time in which its memory gives a KiB (132
//! multiprocessors, 4 schedulers, 1.7 GHz, 4.5 TB/s). So with a key/value head for each query head a third of the slots
//! is used, and memory bandwidth is the limit; with four query heads to one, 277 are needed, and v1 and v2 cannot reach
//! three quarters of the memory's rate.
//!
//! Registers are on record in `prebuilt/resources.tsv`: with `f16`, head size 128 and blocks of 16, v1 has 132 a thread
//! on sm_80 and 138 on sm_90a. They are allocated by the warp in units of 256: 4,352 and 4,608 registers a warp, four
//! times that a thread block. Three thread blocks fit into a multiprocessor's 65,536 registers in both cases, and a
//! fourth does not. Each thread has eight loads in flight, of 8 bytes for keys and of 16 for values (blocks of 16): 24
//! and 48 KiB in all on a multiprocessor.
//!
//! # Ladder
//!
//! 1. Attention over contiguous keys and values, as FasterTransformer has it: a thread block a sequence and head,
//!    memory reserved for the longest sequence that may arrive.
//! 2. The same with a block table: a thread a token, keys as `[token][head_size]`. Each load of a warp touches 32 rows.
//! 3. v1: keys in chunks of 16 bytes with the tokens inside, a warp a block. Each load of a warp is contiguous. With
//!    one sequence and 32 heads 32 thread blocks run, on a GPU with 132 multiprocessors; and all logits of a sequence
//!    must fit into shared memory.
//! 4. v2: partitions of 512 tokens. A sequence of 16,384 tokens is 32 thread blocks a head, at the price of a second
//!    launch and of partial results.
//!
//! What it leaves to the kernels after it (Quire's `paged_attention`): keys and values are read once for every query
//! head of a group; memory is idle at each barrier between the phases; a partition is 512 tokens long whether that
//! fills the GPU evenly or not, and a multiprocessor whose last partition is short idles until the others are done;
//! logits go to shared memory and back.
//!
//! # Not quite vLLM's
//!
//! The work is partitioned as in vLLM. Some details are not vLLM's, because they are simpler this way, and no slower:
//! the query is scaled and widened once, not at each use; weights are not divided by their sum, but the output is; the
//! warps' sums are merged behind one barrier instead of four; v2's partial results are `f32`; a sliding window is here,
//! ALiBi and block-sparse masks aren't.

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

/// Threads per block of all kernels here.
pub const THREADS: u32 = 128;

/// Warps per block.
pub const WARPS: u32 = THREADS / WARP_SIZE;

/// Tokens that a thread block of `paged_attention_v2` attends to: a multiple of every block size.
pub const PARTITION: u32 = 512;

/// The largest head size.
pub const MAX_HEAD_SIZE: u32 = 256;

/// Threads in a thread group: those that take a token's key together, so that a warp takes a block. 4, 2 and 1 for
/// blocks of 8, 16 and 32.
pub const fn group_size(block_size: u32) -> u32 {
    WARP_SIZE / block_size
}
