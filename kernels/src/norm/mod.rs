//! Normalisation of rows, optionally after adding a residual.
//!
//! | kernel | computes |
//! | --- | --- |
//! | [`layer_norm()`] | `x += y`; `out = (x - mean) / sqrt(variance + eps) * weight + bias` |
//! | [`rms_norm()`] | `x += y`; `out = x / sqrt(mean(x^2) + eps) * weight` |
//! | [`rms_norm_part()`] | `x = x / sqrt(mean(x^2) + eps) * weight` for a part of longer rows |
//! | [`row_squares()`], [`rms_norm_divided()`] | the same for a part of rows that are divided among ranks (`divided.rs`) |
//! | [`rms_norm_gated()`] | `x / sqrt(mean(x^2) + eps) * weight * silu(gate)`, or the norm of `x * silu(gate)` |
//!
//! `x`, `y` and `out` are `[rows][width]` of 16-bit elements, `weight` and `bias` `[width]`. `y` may be null, and in a
//! layer norm `weight` and `bias` too. Null arrays are left out of the computation. The sum `x + y` is rounded to 16
//! bits, stored, and normalised as stored, so the fused and the separate computation give the same numbers.
//!
//! Statistics are in `f32`, of deviations from the mean (two passes over registers). The order of summation depends
//! only on the width, so a row's result is the same in every batch.
//!
//! # After a product
//!
//! In decode steps the product before a norm also computes the norm, in the same launch (`following.rs`). A block of
//! the product normalises its row just as a block here does, which saves a launch in each step.
//!
//! Norms of single heads (Qwen3's queries and keys) are part of [`rope`](crate::rope). Norms of all heads together
//! (OLMo 2's) are [`rms_norm_part()`] on the queries and on the keys of fused rows. Norms of recurrent layers
//! ([`rms_norm_gated()`]) have a gate. Its rows are read once too, which makes the floor `6 width` bytes.
//!
//! A block normalises one row ([`NormShape`] has the number of threads). Each thread holds up to [`HELD`] vectors, so
//! the row is read once. [`NormShape::of`] refuses rows that are longer or not a whole number of vectors.
//!
//! # Floor
//!
//! A row is read and written once: `4 width` bytes, or `8 width` with a residual sum. Weights stay in L2.
//!
//! # Ladder
//!
//! 1. Sum, mean, variance and scaling in separate kernels: the row is read four times.
//! 2. One block a row, which reads the row again for the variance and the result.
//! 3. (here) The row is held in registers, packed as loaded (four registers a vector, not eight). Weights are loaded
//!    before the barriers, which hides their latency behind the reduction.

mod divided;
pub(crate) mod following;
mod gated;
mod layer;
mod rms;

use cuda_std::block;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;
use cuda_std::warp::WARP_SIZE;

use crate::element::Element;
use crate::embedding;
use crate::layout::VECTOR;
use crate::vector::{WidthError, row_vectors, sum_of_eight, widen};
use cuda_std::unroll::unroll;

pub use divided::{rms_norm_divided, row_squares};
pub use following::MAX_WIDTH as MAX_FOLLOWING_WIDTH;
pub use gated::rms_norm_gated;
pub use layer::layer_norm;
pub(crate) use layer::layer_norm_row;
pub(crate) use rms::rms_norm_row;
pub use rms::{rms_norm, rms_norm_part};

/// Maximum number of vectors of a row that a thread holds.
pub const HELD: usize = 4;

/// Maximum number of threads in a block.
pub const MAX_THREADS: u32 = 512;

/// Maximum number of warps in a block.
const MOST_WARPS: u32 = MAX_THREADS / WARP_SIZE;

/// Maximum number of elements in a row.
pub const MAX_WIDTH: u32 = MAX_THREADS * HELD as u32 * VECTOR;

/// The norm that follows a sum in the same launch. Kernels take its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SumNorm {
    /// No norm.
    None,
    /// The root-mean-square norm.
    Rms,
    /// The layer norm.
    Layer,
}

/// Threads of a block for rows of `vectors` vectors.
const fn threads_of(vectors: u32) -> u32 {
    let held = vectors.div_ceil(MAX_THREADS);
    // Rows are never empty, but the compiler cannot know that.
    if held == 0 { 0 } else { vectors.div_ceil(held).next_multiple_of(WARP_SIZE) }
}

/// How [`layer_norm()`] and [`rms_norm()`] are launched. The grid is the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormShape {
    /// Vectors in a row.
    pub vectors: u32,
    /// Threads per block: whole warps, the number that spreads the vectors evenly.
    pub threads: u32,
}

impl NormShape {
    /// Returns the shape for rows of `width` elements.
    ///
    /// # Errors
    /// [`WidthError`] if rows are not a whole number of vectors, or have more than [`MAX_WIDTH`] elements.
    pub const fn of(width: u32) -> Result<NormShape, WidthError> {
        let vectors = match row_vectors(width) {
            Ok(vectors) => vectors,
            Err(error) => return Err(error),
        };
        if width > MAX_WIDTH {
            return Err(WidthError::Long { width, most: MAX_WIDTH });
        }
        Ok(NormShape { vectors, threads: threads_of(vectors) })
    }
}

/// Bytes that a norm of `rows` rows must move, apart from weights.
pub const fn floor_bytes(rows: u64, width: u64, with_sum: bool) -> u64 {
    rows * width * if with_sum { 8 } else { 4 }
}

/// A thread's part of a row of `vectors` vectors: the vectors at [`at`], and zeros past the end.
type Held = [Vector; HELD];

/// Returns the index of a thread's `i`-th vector. Neighbouring threads hold neighbouring vectors.
#[inline(always)]
fn at(i: usize) -> u32 {
    thread::thread_idx_x() + i as u32 * thread::block_dim_x()
}

/// Loads the thread's part of a row, or zeros if the pointer is null.
///
/// # Safety
/// The row is null, or has `vectors` vectors and is 16-byte aligned.
#[inline(always)]
unsafe fn load(row: *const Vector, vectors: u32) -> Held {
    let mut held = [Vector::default(); HELD];
    if !row.is_null() {
        unroll::<HELD>(|i| {
            if at(i) < vectors {
                // SAFETY: the index was just checked against the row's `vectors` vectors.
                held[i] = unsafe { *row.add(at(i) as usize) };
            }
        });
    }
    held
}

/// Loads the thread's part of row `x`. If `y` is not null, adds row `y` to it and stores the sum in `x`.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
unsafe fn load_sum<T: Element>(x: *mut Vector, y: *const Vector, vectors: u32) -> Held {
    // SAFETY: each row that is not null has `vectors` vectors, by this function's contract, and `at` is checked against
    // that.
    unsafe {
        let mut held = load(x, vectors);
        if !y.is_null() {
            let added = load(y, vectors);
            unroll::<HELD>(|i| {
                if at(i) < vectors {
                    held[i] = embedding::sum::<T>(held[i], added[i]);
                    *x.add(at(i) as usize) = held[i];
                }
            });
        }
        held
    }
}

/// Returns the sum of `f` over the row's elements, in every thread.
///
/// # Safety
/// All threads of the block call this together.
#[inline(always)]
unsafe fn sum<T: Element, const SLOT: usize>(held: &Held, vectors: u32, f: impl Fn(f32) -> f32) -> f32 {
    let mut own = 0.0;
    unroll::<HELD>(|i| {
        if at(i) < vectors {
            own += sum_of_eight(widen::<T>(held[i]).map(&f));
        }
    });
    let room = shared_array![f32; 2 * MOST_WARPS as usize];
    // SAFETY: all threads of the block are here, and each slot has room for every warp.
    unsafe {
        let room = room.add(SLOT * MOST_WARPS as usize);
        block::reduce::<MOST_WARPS>(own, room, 0.0, |a, b| a + b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_spread_a_row_evenly() {
        assert_eq!(NormShape::of(768), Ok(NormShape { vectors: 96, threads: 96 }));
        assert_eq!(NormShape::of(5120), Ok(NormShape { vectors: 640, threads: 320 }));
        assert_eq!(NormShape::of(8), Ok(NormShape { vectors: 1, threads: 32 }));
        assert_eq!(NormShape::of(MAX_WIDTH), Ok(NormShape { vectors: 2048, threads: 512 }));
        for vectors in 1..=MAX_WIDTH / VECTOR {
            let Ok(shape) = NormShape::of(vectors * VECTOR) else { panic!("{vectors}") };
            assert!(shape.threads * HELD as u32 >= vectors && shape.threads <= MAX_THREADS);
        }
    }

    #[test]
    fn other_widths_are_refused() {
        assert_eq!(NormShape::of(100), Err(WidthError::Ragged { width: 100, multiple: 8 }));
        assert_eq!(NormShape::of(0), Err(WidthError::Ragged { width: 0, multiple: 8 }));
        assert_eq!(NormShape::of(MAX_WIDTH + 8), Err(WidthError::Long { width: 16392, most: 16384 }));
    }
}
