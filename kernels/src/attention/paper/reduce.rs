//! `paged_attention_v2_reduce`: merges the softmaxes of a sequence's partitions into one.
//!
//! - Computes the following, where v2 wrote `m[p]`, `s[p]` and `o[p]` for partition `p`, and `M` is the greatest
//!   `m[p]`:
//!
//!   ```text
//!   output = sum over p of w[p] o[p]  /  sum over p of w[p] s[p],    w[p] = 2^(m[p] - M)
//!   ```
//! - Grid: (heads, sequences, 1) by 128 threads. Dynamic shared memory: 4 bytes per partition.
//! - Floor: reads `4 * head_size + 8` bytes per partition, less than a hundredth of what v2 has read for it. The launch
//!   itself takes a few microseconds and costs more.
//!
//! All threads together compute the weights, one partition each. Then thread `i` sums elements `2 i` and `2 i + 1` over
//! the partitions. It reads eight bytes of each, adjacent to the bytes that neighbouring threads read.

use cuda_std::block;
use cuda_std::prelude::*;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::vector::HalfVector;

use super::attend::write_row;
use super::span::TokenRange;
use super::{THREADS, WARPS};
use crate::attention::softcap::sink_weight;
use crate::element::{Bf16, Element, F16};

/// Merges the partial results of [`paged_attention_v2()`](super::paged_attention_v2()). An empty sequence gets zeros.
///
/// - `output`: `[sequences][heads][head_size]`
/// - `partials`, `maxima`, `sums`: as v2 wrote them, with `partitions` entries per sequence and head
/// - `sinks`: a logit for each head, which joins the denominator of the softmax, or null
///
/// # Safety
/// The arrays have these shapes and are aligned to 8 bytes. `lengths`, `block_size` and `window` are the same as for
/// v2. The launch is [`Version::V2`](super::launch::Version)'s.
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16]))]
pub unsafe fn paged_attention_v2_reduce<T: Element>(
    output: *mut u16,
    partials: *const f32,
    maxima: *const f32,
    sums: *const f32,
    lengths: *const u32,
    partitions: u32,
    head_size: u32,
    block_size: u32,
    window: u32,
    sinks: *const f32,
) {
    let room_for_maxima = shared_array![f32; WARPS as usize];
    let room_for_sums = shared_array![f32; WARPS as usize];
    let weights = dynamic_shared_mem::<f32>();

    let (head, heads, sequence) = (thread::block_idx_x(), thread::grid_dim_x(), thread::block_idx_y());
    let row = sequence as usize * heads as usize + head as usize;
    let first = row * partitions as usize;
    let thread = thread::thread_idx_x();
    // SAFETY: partitions are below `count`, which is at most `partitions`, so all indices are within the arrays.
    // `count` is the same for all threads of the block, so they reach the reductions together.
    unsafe {
        core::hint::assert_unchecked(block_size != 0);
        let count = TokenRange::visible(*lengths.add(sequence as usize), window).partitions(block_size);

        let mut greatest = f32::NEG_INFINITY;
        let mut partition = thread;
        while partition < count {
            greatest = greatest.max(*maxima.add(first + partition as usize));
            partition += THREADS;
        }
        let greatest = block::reduce::<WARPS>(greatest, room_for_maxima, f32::NEG_INFINITY, f32::max);

        let mut sum = 0.0;
        let mut partition = thread;
        while partition < count {
            let weight = (*maxima.add(first + partition as usize) - greatest).exp2_fast();
            *weights.add(partition as usize) = weight;
            sum += weight * *sums.add(first + partition as usize);
            partition += THREADS;
        }
        // The barrier in this reduction also completes the weights.
        let sum = block::reduce::<WARPS>(sum, room_for_sums, 0.0, |a, b| a + b);

        let mut values = [0.0f32; 2];
        if thread < head_size / 2 {
            let mut partition = 0;
            while partition < count {
                let partial = partials.add((first + partition as usize) * head_size as usize);
                let [a, b] = (*partial.cast::<HalfVector>().add(thread as usize)).to_f32();
                let weight = *weights.add(partition as usize);
                values = [GpuFloat::mul_add(weight, a, values[0]), GpuFloat::mul_add(weight, b, values[1])];
                partition += 1;
            }
        }
        let sum = sum + sink_weight(sinks, head, greatest);
        write_row::<T>(output.add(row * head_size as usize), head_size, values, sum);
    }
}
