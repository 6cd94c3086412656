//! Lesson 3: softmax. How attention gets its weights, and what it costs to read memory once, twice or three times.
//!
//! Softmax turns a row of numbers into weights: `e` to the power of each number, divided by the sum of all these
//! powers. The maximum is subtracted first, because powers of `e` soon exceed the range of an `f32`. So a row is read
//! three times: for the maximum, for the sum, and to write the weights. Here one warp handles a row, and each lane
//! takes every 32nd element.
//!
//! The first kernel works exactly like this. The second reads the row twice. It sums relative to the maximum *so far*,
//! and scales the sum when it finds a greater number. Two such sums can be combined, which a warp does with shuffles.
//! This *online softmax* lets attention read keys and values once, without ever storing a row of weights. The third
//! kernel reads the row once and keeps it in *registers*, the variables of a thread, which are fast but few. An array
//! stays in registers only if every index is a constant, so the loops are written out by `unroll`.
//!
//! The code uses powers of 2, because the hardware has an instruction for them: `e` to the `x` is 2 to the `x *
//! log2(e)`.
//!
//! Run it: `cargo run --example softmax`
//!
//! Look at: the bytes requested, which are four, three and two times the size of the array (this includes one write).
//! The distinct sectors are the same for all three kernels: if rows were short enough, a cache would hide the
//! difference.
//!
//! Try next: rows of 1024 elements. A thread has at most 255 registers. How long can a row of the third kernel be, and
//! how could a block keep longer rows?

use cuda_std::{float::GpuFloat, prelude::*, unroll::unroll, warp::WARP_SIZE};
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::{KernelCall, LaunchShape},
    examples::{Lesson, LessonFailed, Result, teach},
};

/// Elements per row in the kernel that keeps a row in registers.
const COLUMNS: u32 = 256;

/// `e` to the power of `x` is 2 to the power of `x * LOG2_E`.
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// Computes the weights of each row, reading it three times.
///
/// # Safety
/// The launch has one warp per row. `x` and `weights` have `columns` elements per row, and `columns` is a multiple of
/// 32.
#[kernel(max_threads = 128)]
pub unsafe fn softmax_three_passes(x: *const f32, weights: *mut f32, columns: u32) {
    let start = (thread::index_1d() / WARP_SIZE * columns) as usize;
    // SAFETY: the row belongs to this warp, and `i` is below `columns`. All lanes make the same number of rounds, and
    // then reduce together.
    unsafe {
        let (x, weights) = (x.add(start), weights.add(start));
        let mut most = f32::NEG_INFINITY;
        let mut i = warp::lane_id();
        while i < columns {
            most = most.max(*x.add(i as usize));
            i += WARP_SIZE;
        }
        let most = warp::warp_max(most);
        let mut sum = 0.0;
        let mut i = warp::lane_id();
        while i < columns {
            sum += ((*x.add(i as usize) - most) * LOG2_E).exp2_fast();
            i += WARP_SIZE;
        }
        let scale = warp::warp_sum(sum).rcp_fast();
        let mut i = warp::lane_id();
        while i < columns {
            *weights.add(i as usize) = ((*x.add(i as usize) - most) * LOG2_E).exp2_fast() * scale;
            i += WARP_SIZE;
        }
    }
}

/// Computes the weights of each row, reading it twice: the online softmax.
///
/// # Safety
/// As for [`softmax_three_passes`].
#[kernel(max_threads = 128)]
pub unsafe fn softmax_online(x: *const f32, weights: *mut f32, columns: u32) {
    let start = (thread::index_1d() / WARP_SIZE * columns) as usize;
    // SAFETY: as in the kernel above.
    unsafe {
        let (x, weights) = (x.add(start), weights.add(start));
        // Each lane starts with its first element: minus infinity could be subtracted from itself, which gives NaN.
        let mut i = warp::lane_id();
        let (mut most, mut sum) = (*x.add(i as usize), 1.0);
        i += WARP_SIZE;
        while i < columns {
            let x = *x.add(i as usize);
            let greater = most.max(x);
            sum = sum * ((most - greater) * LOG2_E).exp2_fast() + ((x - greater) * LOG2_E).exp2_fast();
            most = greater;
            i += WARP_SIZE;
        }
        let greatest = warp::warp_max(most);
        let scale = warp::warp_sum(sum * ((most - greatest) * LOG2_E).exp2_fast()).rcp_fast();
        let mut i = warp::lane_id();
        while i < columns {
            *weights.add(i as usize) = ((*x.add(i as usize) - greatest) * LOG2_E).exp2_fast() * scale;
            i += WARP_SIZE;
        }
    }
}

/// Computes the weights of each row of 256 elements, reading it once.
///
/// # Safety
/// As for [`softmax_three_passes`], with 256 columns.
#[kernel(max_threads = 128)]
pub unsafe fn softmax_registers(x: *const f32, weights: *mut f32) {
    const EACH: usize = (COLUMNS / WARP_SIZE) as usize;
    let start = (thread::index_1d() / WARP_SIZE * COLUMNS + warp::lane_id()) as usize;
    // SAFETY: all accesses are within the row of this warp, and all lanes reduce together.
    unsafe {
        let (x, weights) = (x.add(start), weights.add(start));
        let mut row = [0.0; EACH];
        unroll::<EACH>(|i| row[i] = *x.add(i * WARP_SIZE as usize));
        let mut most = f32::NEG_INFINITY;
        unroll::<EACH>(|i| most = most.max(row[i]));
        let most = warp::warp_max(most);
        let mut sum = 0.0;
        unroll::<EACH>(|i| {
            row[i] = ((row[i] - most) * LOG2_E).exp2_fast();
            sum += row[i];
        });
        let scale = warp::warp_sum(sum).rcp_fast();
        unroll::<EACH>(|i| *weights.add(i * WARP_SIZE as usize) = row[i] * scale);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
fn main() -> Result<(), LessonFailed> {
    teach(run)
}

/// Runs the lesson.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<()> {
    let (rows, columns) = (16, COLUMNS);
    let x: Vec<f32> = (0..rows * columns).map(|i| (i * 7919 % 1000) as f32 / 50.0).collect();
    let truth: Vec<f64> = x.chunks(columns as usize).flat_map(softmax).collect();
    let buffer = lesson.gpu.upload("x", &x)?;
    let x = buffer.ptr();
    let shape = LaunchShape::covering(rows * WARP_SIZE, 128);
    let mut worst = 0.0f64;
    for title in ["three passes", "online, two passes", "registers, one pass"] {
        let result = lesson.gpu.alloc::<f32>("weights", buffer.len())?;
        let weights = result.mut_ptr();
        let call: KernelCall = match title {
            "three passes" => softmax_three_passes { x, weights, columns }.into(),
            "online, two passes" => softmax_online { x, weights, columns }.into(),
            _ => softmax_registers { x, weights }.into(),
        };
        // SAFETY: the shape has one warp per row, and both arrays have 256 elements per row.
        unsafe { lesson.launch(title, shape, call) }?;
        let found = lesson.gpu.download(result)?;
        let off = found.iter().zip(&truth).map(|(&found, truth)| (f64::from(found) - truth).abs());
        worst = off.fold(worst, f64::max);
    }
    if worst > 1e-6 {
        return Err(format!("a weight is off by {worst:e}").into());
    }
    lesson.say(format!("weights of {rows} rows of {columns} numbers: none is off by more than 1e-6"));
    Ok(())
}

/// Computes softmax on the host.
#[cfg(not(target_arch = "nvptx64"))]
fn softmax(row: &[f32]) -> Vec<f64> {
    let powers: Vec<f64> = row.iter().map(|&x| f64::from(x).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}
