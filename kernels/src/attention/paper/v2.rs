//! `paged_attention_v2`: a thread block attends with one query to one partition of the tokens that its sequence sees.
//!
//! - Computes the result of [`attend`](super::attend) for every sequence, head and partition: the greatest logit, the
//!   sum of the weights, and the sum of the values with these weights. [`reduce`](super::reduce) combines them into the
//!   output.
//! - Shapes, layouts, floor and ladder: see [the parent module](super). Partitions are 512 tokens
//!   ([`TokenRange::partition`](super::span::TokenRange::partition)).
//! - Grid: (heads, sequences, partitions of the longest sequence) by 128 threads. Dynamic shared memory: 2 KiB.
//! - Suits launches in which v1 would leave multiprocessors idle, or would not have room for the logits.
//!
//! ```text
//! partitions       0         1         2         3
//! sequence 0   |=========|=========|=========|====     |
//! sequence 1   |=========|===      |         |         |      idle thread blocks end at once
//! sequence 2   |==       |         |         |         |
//! ```
//!
//! Why parts of a softmax can be merged: weights are powers of two of distances from *some* maximum. Let one part have
//! weights relative to its maximum `m`, and another part have a greater maximum `M`. Multiplying the first part's
//! weights by `2^(m - M)` makes them relative to `M`. Sums are linear, so it is enough to multiply the sum of weights
//! and the sum of values.

use cuda_std::prelude::*;
use cuda_std::vector::{HalfVector, Vector};

use super::attend::attend;
use super::head::{AttentionArgs, Head};
use crate::element::{Bf16, Element, F16};

/// Computes attention for one new token per sequence, to each partition of its tokens separately.
///
/// - `partials`: `[sequences][heads][partitions][D]`, sums of values, not divided by the sum of weights
/// - `maxima`, `sums`: `[sequences][heads][partitions]`, the greatest logit in powers of two and the sum of weights
///
/// Writes no results for partitions that a sequence does not have. The rest is as for
/// [`paged_attention_v1()`](super::paged_attention_v1()).
///
/// # Safety
/// As for v1. `partials` is aligned to 8 bytes. The launch is [`Version::V2`](super::launch::Version)'s.
// Bounds on blocks per multiprocessor are explained at v1.
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
    softcap: f32,
) {
    let inputs = AttentionArgs { query, keys, values, tables, lengths, query_stride, table_stride, kv_heads, window };
    let (head_index, heads, sequence) = (thread::block_idx_x(), thread::grid_dim_x(), thread::block_idx_y());
    let (partition, partitions) = (thread::block_idx_z(), thread::grid_dim_z());
    // SAFETY: by this kernel's contract, the grid has a block for each head, sequence and partition of the arrays. So
    // inputs and rows are valid. The span is the same for all threads of a block, so either all call `attend` together
    // or all return.
    unsafe {
        let mut head = Head::<D, B>::new(&inputs, sequence, head_index, heads);
        head.span = head.span.partition(partition, B);
        if head.span.is_empty() {
            return;
        }
        let attended = attend::<T, D, B>(&head, scale, softcap, |_| 0.0);

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
