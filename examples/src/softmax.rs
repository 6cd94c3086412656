//! Lesson 3: softmax. The weights of attention, and what reading memory once, twice or three times costs.
//!
//! Softmax makes weights of a row of numbers: `e` to the power of each, divided by the sum of all. The greatest number
//! is subtracted before, as powers of `e` leave the range of an `f32` soon. So a row is looked at three times: for the
//! greatest, for the sum, and to write the weights. Here a warp has a row, and its lanes take every 32nd element.
//!
//! The first kernel does just that. The second looks twice: it sums as it goes, relative to the greatest number *so
//! far*, and where a greater one comes, it scales what it has. Two such sums can be joined, which a warp does by
//! shuffles. This *online softmax* is what lets attention go over keys and values once, without ever keeping a row of
//! weights. The third loads a row once and keeps it in *registers*, the variables of a thread: fast, and few. An array
//! stays there only if each index is a constant, which is why its loops are written out by `unroll`.
//!
//! Powers are of 2, as the hardware has an instruction for these: `e` to the `x` is 2 to the `x * log2(e)`.
//!
//! Run it: `cargo run --example softmax`
//!
//! Look at: the bytes asked for: four, three and two times the size of the array (with the one time that it is
//! written). The different sectors are the same for all three: what a cache would hide, if rows were short enough for
//! it.
//!
//! Try next: rows of 1024 elements. A thread has 255 registers at most: how long can a row be for the third kernel, and
//! how could a block keep longer ones?

use cuda_std::{float::GpuFloat, prelude::*, unroll::unroll, warp::WARP_SIZE};
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::{KernelCall, LaunchShape},
    examples::{Lesson, LessonFailed, Result, teach},
};

/// Elements of a row for the kernel that keeps a row in registers.
const COLUMNS: u32 = 256;

/// `e` to the power of `x` is 2 to the power of `x` times this.
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// Weights of each row, by looking at it three times.
///
/// # Safety
/// There are as many warps as rows; `x` and `weights` have `columns` elements for each, and `columns` is a multiple of 32.
#[kernel(max_threads = 128)]
pub unsafe fn softmax_three_passes(x: *const f32, weights: *mut f32, columns: u32) {
    let start = (thread::index_1d() / WARP_SIZE * columns) as usize;
    // SAFETY: `i` is below `columns` in a row of this warp's own. All lanes make equally many rounds, and then
    // reduce together.
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

/// Weights of each row, by looking at it twice: the online softmax.
///
/// # Safety
/// As for [`softmax_three_passes`].
#[kernel(max_threads = 128)]
pub unsafe fn softmax_online(x: *const f32, weights: *mut f32, columns: u32) {
    let start = (thread::index_1d() / WARP_SIZE * columns) as usize;
    // SAFETY: as in the kernel above.
    unsafe {
        let (x, weights) = (x.add(start), weights.add(start));
        // Each lane has seen a number before it scales anything: minus infinity minus itself would be no number.
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

/// Weights of each row of 256 elements, by looking at it once.
///
/// # Safety
/// As for [`softmax_three_passes`], with 256 columns.
#[kernel(max_threads = 128)]
pub unsafe fn softmax_registers(x: *const f32, weights: *mut f32) {
    const EACH: usize = (COLUMNS / WARP_SIZE) as usize;
    let start = (thread::index_1d() / WARP_SIZE * COLUMNS + warp::lane_id()) as usize;
    // SAFETY: elements of a row of this warp's own; all lanes reduce together.
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

/// The lesson.
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
        // SAFETY: the shape has a warp for each row, and both arrays have 256 elements for each.
        unsafe { lesson.launch(title, shape, call) }?;
        let found = lesson.gpu.download(result)?;
        let off = found.iter().zip(&truth).map(|(&found, truth)| (f64::from(found) - truth).abs());
        worst = off.fold(worst, f64::max);
    }
    if worst > 1e-6 {
        return Err(format!("a weight is off by {worst:e}").into());
    }
    lesson.say(format!("weights of {rows} rows of {columns} numbers: none is off by more than a millionth"));
    Ok(())
}

/// What softmax is.
#[cfg(not(target_arch = "nvptx64"))]
fn softmax(row: &[f32]) -> Vec<f64> {
    let powers: Vec<f64> = row.iter().map(|&x| f64::from(x).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}
