//! Lesson 2: threads that work together. The sum of an array, with shared memory and with shuffles.
//!
//! Each block adds up its own part, and one atomic addition per block combines the parts in the end. Within a block the
//! threads need each other's numbers, and there are two ways to share them.
//!
//! *Shared memory* is a small, fast memory of the block. A thread writes its number there. Other threads may read it
//! after a *barrier* (`sync_threads`), which no thread passes until all have reached it. Half of the threads add the
//! numbers of the other half, then half of these, and so on. That makes eight rounds for 256 threads, with a barrier in
//! each.
//!
//! Shared memory has 32 *banks*: neighbouring words are in neighbouring banks, and one pass reads a word from each. If
//! lanes want different words of the same bank, each further word takes another pass. This is a *bank conflict*. The
//! first kernel adds in the order one would use on paper: neighbours first, then every fourth number, every eighth. Its
//! lanes use every second bank, then every fourth, and in the end all use the same one. The second kernel adds the
//! upper half to the lower, so the active lanes stay neighbours.
//!
//! *Shuffles* need no memory: the lanes of a warp read each other's registers. The third kernel sums within warps with
//! five shuffles. Only the eight sums of the warps go through shared memory, with one barrier.
//!
//! Run it: `cargo run --example reduction`
//!
//! Look at: the passes over shared memory, how many of them are for bank conflicts, and the barriers. The instructions
//! drop, too.
//!
//! Try next: let each thread add up eight elements before the block begins. How much of the difference remains?

use cuda_std::{atomic, prelude::*};
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::{KernelCall, LaunchShape},
    examples::{Lesson, LessonFailed, Result, teach},
};

/// Threads per block.
const THREADS: u32 = 256;

/// Returns this thread's element, or zero past the end.
///
/// # Safety
/// `x` has `n` elements.
#[inline(always)]
unsafe fn own(x: *const f32, n: u32) -> f32 {
    let i = thread::index_1d();
    // SAFETY: `i` is below `n`.
    if i < n { unsafe { *x.add(i as usize) } } else { 0.0 }
}

/// Sums through shared memory, neighbours first: with bank conflicts.
///
/// # Safety
/// Blocks have 256 threads, `x` has `n` elements, and `sum` points to one number that is zero before the launch.
#[kernel(max_threads = 256)]
pub unsafe fn sum_neighbours(x: *const f32, n: u32, sum: *mut f32) {
    let shared = shared_array![f32; 256];
    let thread = thread::thread_idx_x();
    // SAFETY: every index is below 256. Within a round no thread writes an element that another one reads, and barriers
    // separate the rounds.
    unsafe {
        *shared.add(thread as usize) = own(x, n);
        thread::sync_threads();
        let mut step = 1;
        while step < THREADS {
            let at = (2 * step * thread) as usize;
            if at < THREADS as usize {
                *shared.add(at) += *shared.add(at + step as usize);
            }
            thread::sync_threads();
            step *= 2;
        }
        if thread == 0 {
            atomic::add_f32(sum, *shared);
        }
    }
}

/// Sums through shared memory, adding the upper half to the lower: without bank conflicts.
///
/// # Safety
/// As for [`sum_neighbours`].
#[kernel(max_threads = 256)]
pub unsafe fn sum_halves(x: *const f32, n: u32, sum: *mut f32) {
    let shared = shared_array![f32; 256];
    let thread = thread::thread_idx_x();
    // SAFETY: every index is below 256. Within a round no thread writes an element that another one reads, and barriers
    // separate the rounds.
    unsafe {
        *shared.add(thread as usize) = own(x, n);
        thread::sync_threads();
        let mut half = THREADS / 2;
        while half > 0 {
            if thread < half {
                *shared.add(thread as usize) += *shared.add((thread + half) as usize);
            }
            thread::sync_threads();
            half /= 2;
        }
        if thread == 0 {
            atomic::add_f32(sum, *shared);
        }
    }
}

/// Sums within warps with shuffles.
///
/// # Safety
/// As for [`sum_neighbours`].
#[kernel(max_threads = 256)]
pub unsafe fn sum_shuffles(x: *const f32, n: u32, sum: *mut f32) {
    let warps = shared_array![f32; 8];
    // SAFETY: all lanes of all warps execute each shuffle. A warp writes its own number, and all numbers are read after
    // the barrier.
    unsafe {
        let mut value = own(x, n);
        let mut distance = warp::WARP_SIZE / 2;
        while distance > 0 {
            value += warp::warp_shuffle_down(warp::FULL_MASK, value, distance, warp::WARP_SIZE);
            distance /= 2;
        }
        if warp::lane_id() == 0 {
            *warps.add(warp::warp_id() as usize) = value;
        }
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            let mut value = 0.0;
            for warp in 0..(THREADS / warp::WARP_SIZE) as usize {
                value += *warps.add(warp);
            }
            atomic::add_f32(sum, value);
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
fn main() -> Result<(), LessonFailed> {
    teach(run)
}

/// Runs the lesson.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<()> {
    // Small integers, whose sum is exact in any order.
    let x: Vec<f32> = (0..4000).map(|i| (i % 17) as f32).collect();
    let truth: f32 = x.iter().sum();
    let n = x.len() as u32;
    let buffer = lesson.gpu.upload("x", &x)?;
    let x = buffer.ptr();
    let shape = LaunchShape::covering(n, THREADS);
    for title in ["shared memory, neighbours first", "shared memory, upper half onto lower", "shuffles"] {
        let result = lesson.gpu.upload("sum", &[0.0f32])?;
        let sum = result.mut_ptr();
        let call: KernelCall = match title {
            "shuffles" => sum_shuffles { x, n, sum }.into(),
            "shared memory, neighbours first" => sum_neighbours { x, n, sum }.into(),
            _ => sum_halves { x, n, sum }.into(),
        };
        // SAFETY: blocks have 256 threads, `x` has `n` elements, and the sum starts at zero.
        unsafe { lesson.launch(title, shape, call) }?;
        let found = lesson.gpu.download(result)?[0];
        if found != truth {
            return Err(format!("the kernel's sum is {found}, but the host's is {truth}").into());
        }
    }
    lesson.say(format!("the sum of {n} elements is {truth}: all three kernels found it"));
    Ok(())
}
