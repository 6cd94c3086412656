//! The root-mean-square norm of rows that are divided among ranks, as queries and keys are (OLMo 2).
//!
//! 1. [`row_squares()`] computes a rank's sums of squares, one of its queries and one of its keys.
//! 2. [`all_reduce`](crate::communicator::all_reduce()) gives each rank the sums of all ranks.
//! 3. [`rms_norm_divided()`] adds them and normalises the rank's part of the row.
//!
//! An all-reduce adds 16-bit elements, which have too few digits for a sum of squares. So each rank writes the four bytes
//! of its `f32` sum as four numbers from 0 to 255. Both 16-bit types represent them exactly. Each rank has a vector of its
//! own, which is zero on all other ranks, so the all-reduce changes no number.

use cuda_std::block;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::MOST_WARPS;
use crate::element::{Bf16, Element, F16};
use crate::vector::{narrow, sum_of_eight, widen};
use cuda_std::unroll::eight;

/// Bytes of a sum.
const BYTES: usize = 4;

/// Writes the sums of squares of a rank's queries and keys: `out [rows][ranks]`, vector `rank` of each row. The other
/// vectors are zero.
///
/// A row of `x` begins with `queries` vectors of queries and `keys` vectors of keys. Rows are `stride` vectors apart.
///
/// # Safety
/// The arrays have a row for each x of the grid and are 16-byte aligned. The block has whole warps, at most 16, and at
/// least `ranks` threads.
#[kernel(dependent, max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn row_squares<T: Element>(
    x: *const Vector,
    out: *mut Vector,
    queries: u32,
    keys: u32,
    stride: u32,
    rank: u32,
    ranks: u32,
) {
    let row = thread::block_idx_x() as usize;
    let room = shared_array![f32; 2 * MOST_WARPS as usize];
    // SAFETY: both parts are within the row. All threads of the block are here, and each sum has a room of its own.
    unsafe {
        let x = x.add(row * stride as usize);
        let (own_queries, own_keys) = (squares::<T>(x, queries), squares::<T>(x.add(queries as usize), keys));
        let of_queries = block::reduce::<MOST_WARPS>(own_queries, room, 0.0, |a, b| a + b);
        let of_keys = block::reduce::<MOST_WARPS>(own_keys, room.add(MOST_WARPS as usize), 0.0, |a, b| a + b);
        let slot = thread::thread_idx_x();
        if slot < ranks {
            let is_own = slot == rank;
            let byte = |e: usize| {
                let sum = if e < BYTES { of_queries } else { of_keys };
                let byte = (sum.to_bits() >> (8 * (e % BYTES))) & 255;
                if is_own { byte as f32 } else { 0.0 }
            };
            *out.add(row * ranks as usize + slot as usize) = narrow::<T>(eight(byte));
        }
    }
}

/// Computes `out = x / sqrt(mean(row^2) + eps) * weight` for a rank's part of each row.
///
/// The part has `vectors` vectors, and the whole row `width` elements. Rows of `x` and `out` are `stride` vectors apart,
/// and `out` may be `x`. `squares` is the sum of all ranks' results of [`row_squares()`]. `part` is 0 for queries and 1
/// for keys.
///
/// # Safety
/// The arrays have a row for each x of the grid and are 16-byte aligned.
#[kernel(dependent, max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn rms_norm_divided<T: Element>(
    x: *const Vector,
    weight: *const Vector,
    out: *mut Vector,
    squares: *const Vector,
    part: u32,
    width: u32,
    eps: f32,
    vectors: u32,
    stride: u32,
    ranks: u32,
) {
    let row = thread::block_idx_x() as usize;
    // SAFETY: each rank has a vector in the row of `squares`, and `vector` is checked against the part.
    unsafe {
        let mut total = 0.0;
        let mut rank = 0;
        while rank < ranks {
            total += sum_of_part(widen::<T>(*squares.add(row * ranks as usize + rank as usize)), part);
            rank += 1;
        }
        let scale = (total / width as f32 + eps).rsqrt_fast();
        let mut vector = thread::thread_idx_x();
        while vector < vectors {
            let at = row * stride as usize + vector as usize;
            let (values, factors) = (widen::<T>(*x.add(at)), widen::<T>(*weight.add(vector as usize)));
            *out.add(at) = narrow::<T>(eight(|e| values[e] * scale * factors[e]));
            vector += thread::block_dim_x();
        }
    }
}

/// Returns the sum of squares of this thread's vectors among `vectors` vectors.
///
/// # Safety
/// The vectors exist and are 16-byte aligned.
#[inline(always)]
unsafe fn squares<T: Element>(x: *const Vector, vectors: u32) -> f32 {
    let mut sum = 0.0;
    let mut vector = thread::thread_idx_x();
    while vector < vectors {
        // SAFETY: the index was just checked against the vectors.
        sum += sum_of_eight(widen::<T>(unsafe { *x.add(vector as usize) }).map(|v| v * v));
        vector += thread::block_dim_x();
    }
    sum
}

/// Returns the sum whose bytes are the first four numbers, or the last four if `part` is 1.
#[inline(always)]
fn sum_of_part([a, b, c, d, e, f, g, h]: [f32; 8], part: u32) -> f32 {
    let [a, b, c, d] = if part == 0 { [a, b, c, d] } else { [e, f, g, h] }.map(|byte| byte as u32);
    f32::from_bits(a | b << 8 | c << 16 | d << 24)
}
