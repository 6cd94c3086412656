//! `paged_attention_v1`: a thread block attends with one query to all that its sequence sees.
//!
//! - computes: `output[s][h] = softmax(scale query[s][h] . keys) values` for every sequence `s` and head `h`
//! - shapes, layouts, floor and ladder: [the family's](super)
//! - grid: (heads, sequences, 1) by 128 threads; dynamic shared memory: 4 bytes a token of the longest sequence
//!   ([`launch`](super::launch))
//! - serves where sequences and heads are many, or contexts short
//!
//! With `D` the head size and `B` the block size, known to the compiler: they determine how many accumulators a lane
//! has, and the compiler keeps accumulators in registers only if it knows how many there are.

use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::attend::{attend, write_row};
use super::head::{AttentionArgs, Head};
use crate::element::{Bf16, Element, F16};

/// Attention of one new token a sequence. A sequence of no tokens, which fills a batch up, gets zeros.
///
/// `kv_heads` divides the number of heads. A token sees the last `window` tokens, itself included, or all if that is 0.
///
/// # Safety
/// The arrays have [these shapes](super#shapes-and-layouts) and are aligned to 16 bytes, `query_stride` is even;
/// lengths are at most those that the dynamic shared memory has room for; block tables name a block of the cache for
/// each block of the tokens seen; the launch is [`Version::V1`](super::launch::Version)'s.
// Five blocks on a multiprocessor, 96 registers a thread. Asked for five, `ptxas` spills at head size 256 with larger blocks,
// as it does without a bound; so there it is asked for three. Five fit small heads anyway, for which it would otherwise aim for
// seven and move registers about.
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
) {
    let inputs = AttentionArgs { query, keys, values, tables, lengths, query_stride, table_stride, kv_heads, window };
    let (head, heads, sequence) = (thread::block_idx_x(), thread::grid_dim_x(), thread::block_idx_y());
    // SAFETY: the grid has a block for each head and sequence of the arrays, by this kernel's contract, so that the
    // inputs and the output's row are valid; all threads of the block call `attend` together.
    unsafe {
        let attended = attend::<T, D, B>(&Head::new(&inputs, sequence, head, heads), scale);
        let row = sequence as usize * heads as usize + head as usize;
        write_row::<T>(output.add(row * D as usize), D, attended.values, attended.sum);
    }
}
