//! `paged_attention_v1`: a thread block attends with one query to all the tokens that its sequence sees.
//!
//! - Computes `output[s][h] = softmax(scale query[s][h] . keys) values` for every sequence `s` and head `h`.
//! - Shapes, layouts, floor and ladder: see [the parent module](super).
//! - Grid: (heads, sequences, 1) by 128 threads. Dynamic shared memory: 4 bytes per token of the longest sequence
//!   ([`launch`](super::launch)).
//! - Suits many sequences and heads, or short contexts.
//!
//! The head size `D` and the block size `B` are compile-time constants because they determine how many accumulators a
//! lane has. The compiler keeps accumulators in registers only if it knows their number.

use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::attend::{attend, write_row};
use super::head::{AttentionArgs, Head};
use crate::attention::softcap::sink_weight;
use crate::element::{Bf16, Element, F16};

/// Computes attention for one new token per sequence. An empty sequence, which pads a batch, gets zeros.
///
/// `kv_heads` divides the number of heads. A token sees the last `window` tokens, itself included, or all if `window`
/// is 0. `sinks` has a logit for each head, which joins the denominator of the softmax, or is null. With a positive
/// `softcap`, a logit `s` becomes `softcap tanh(s / softcap)`.
///
/// # Safety
/// The arrays have [these shapes](super#shapes-and-layouts) and are aligned to 16 bytes. `query_stride` is even.
/// Dynamic shared memory has room for every length. For each block of visible tokens, the block table names a block of
/// the cache. The tables have fewer than 2^32 entries. The launch is [`Version::V1`](super::launch::Version)'s.
// Five blocks per multiprocessor need at most 96 registers per thread. With a bound of five, `ptxas` spills at head
// size 256 with larger blocks, as it does without a bound, so the bound there is three. With small heads five blocks
// fit anyway, but under a bound of five `ptxas` would aim for seven and shuffle registers around, so the bound there is
// three, too.
#[kernel(
    dependent,
    max_threads = 128,
    min_blocks = 5,
    instances(T = [F16, Bf16], D = [80, 96, 128], B = [8, 16, 32]),
    instances(T = [F16, Bf16], D = [64], B = [32]),
    instances(T = [F16, Bf16], D = [256], B = [8]),
    instances(min_blocks = 3, T = [F16, Bf16], D = [32], B = [8, 16, 32]),
    instances(min_blocks = 3, T = [F16, Bf16], D = [64], B = [8, 16]),
    instances(min_blocks = 3, T = [F16, Bf16], D = [256], B = [16, 32])
)]
pub unsafe fn paged_attention_v1<T: Element, const D: u32, const B: u32>(
    output: *mut u16,
    query: *const u16,
    keys: *const Vector,
    values: *const Vector,
    tables: *const u32,
    lengths: *const u32,
    query_stride: u32,
    table_stride: u32,
    kv_heads: u32,
    window: u32,
    scale: f32,
    sinks: *const f32,
    softcap: f32,
) {
    let (head, heads, sequence) = (thread::block_idx_x(), thread::grid_dim_x(), thread::block_idx_y());
    // The sequence's own table, found by a product of 32 bits. A product of 64 bits would take a register too many at head
    // size 128 with blocks of 32.
    let (tables, table_stride) = (tables.wrapping_add((sequence * table_stride) as usize), 0);
    let inputs = AttentionArgs { query, keys, values, tables, lengths, query_stride, table_stride, kv_heads, window };
    // SAFETY: by this kernel's contract, the grid has a block for each head and sequence of the arrays. So the inputs
    // and the output row are valid. All threads of the block call `attend` together.
    unsafe {
        let sink = |greatest| sink_weight(sinks, head, greatest);
        let attended = attend::<T, D, B>(&Head::new(&inputs, sequence, head, heads), scale, softcap, sink);
        let row = sequence as usize * heads as usize + head as usize;
        write_row::<T>(output.add(row * D as usize), D, attended.values, attended.sum);
    }
}
