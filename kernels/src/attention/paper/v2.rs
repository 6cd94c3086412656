//! `paged_attention_v2`: a thread block attends with one query to one partition of what its sequence sees.
//!
//! - computes, for every sequence, head and partition, what [`attend`](super::attend) gives: the greatest logit, the
//!   sum of the weights and the sum of the values with these weights. [`reduce`](super::reduce) makes the output of
//!   them
//! - shapes, layouts, floor and ladder: [the family's](super); partitions are 512 tokens
//!   ([`TokenRange::partition`](super::span::TokenRange::partition))
//! - grid: (heads, sequences, partitions of the longest sequence) by 128 threads; dynamic shared memory: 2 KiB
//! - serves where v1 would leave multiprocessors idle, or have no room for the logits
//!
//! ```text
//! partitions       0         1         2         3
//! sequence 0   |=========|=========|=========|====     |
//! sequence 1   |=========|===      |         |         |      thread blocks with nothing to do end at once
//! sequence 2   |==       |         |         |         |
//! ```
//!
//! Why parts of a softmax can be merged: weights are powers of two of distances from *some* maximum. Weights relative
//! to the maximum `m` of one part become weights relative to a greater maximum `M` of another part when all of them are
//! multiplied by `2^(m - M)`; or, since sums are linear, when only their sum and the sum of values are.

use cuda_std::prelude::*;
use cuda_std::vector::{HalfVector, Vector};

use super::attend::attend;
use super::head::{AttentionArgs, Head};
use crate::element::{Bf16, Element, F16};

/// Attention of one new token a sequence, to each partition of the tokens separately.
///
/// - `partials`: `[sequences][heads][partitions][D]`, sums of values, not divided by the sum of weights
/// - `maxima`, `sums`: `[sequences][heads][partitions]`, the greatest logit in powers of two and the sum of weights
///
/// Nothing is written for partitions that a sequence does not have. The rest is as for
/// [`paged_attention_v1()`](super::paged_attention_v1()).
///
/// # Safety
/// As for v1; `partials` is aligned to 8 bytes; the launch is [`Version::V2`](super::launch::Version)'s.
// Blocks on a multiprocessor as for v1.
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
pub unsafe fn paged_attention_v2<T: Element, const D: u32, const B: u32>(
    partials: *mut f32,
    maxima: *mut f32,
    sums: *mut f32,
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
    let (head_index, heads, sequence) = (thread::block_idx_x(), thread::grid_dim_x(), thread::block_idx_y());
    let (partition, partitions) = (thread::block_idx_z(), thread::grid_dim_z());
    // SAFETY: the grid has a block for each head, sequence and partition of the arrays, by this kernel's contract, so
    // that inputs and rows are valid. The span is the same for all threads of a block: either all call `attend`
    // together, or all return.
    unsafe {
        let mut head = Head::<D, B>::new(&inputs, sequence, head_index, heads);
        head.span = head.span.partition(partition, B);
        if head.span.is_empty() {
            return;
        }
        let attended = attend::<T, D, B>(&head, scale);

        let row = (sequence as usize * heads as usize + head_index as usize) * partitions as usize + partition as usize;
        let thread = thread::thread_idx_x();
        if thread < D / 2 {
            let pair = partials.add(row * D as usize).cast::<HalfVector>().add(thread as usize);
            *pair = HalfVector::from_f32(attended.values);
        }
        if thread == 0 {
            *maxima.add(row) = attended.greatest;
            *sums.add(row) = attended.sum;
        }
    }
}
