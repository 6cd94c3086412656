//! Lesson 1: a kernel. `y = a * x + y`, with one thread for each element.
//!
//! A *kernel* is a function that the GPU calls many times at once. Each call is a *thread*, and knows its number.
//! Threads are grouped into *blocks*, here of 256, and all blocks together are the *grid*. The hardware executes 32
//! threads of a block together, as a *warp*: one instruction does the same for all 32, which are its *lanes*. Therefore
//! costs are counted per warp.
//!
//! Memory moves in *sectors* of 32 bytes. When the lanes of a warp load neighbouring `f32`s, 32 times 4 bytes are four
//! sectors, and every byte is used. When the lanes load addresses far from each other, each lane costs a sector of its
//! own and uses an eighth of it. The second kernel does this: it computes the same result, but the lanes of a warp are
//! `STRIDE` elements apart.
//!
//! Run it: `cargo run --example saxpy`. Add `-- --ptx` to see the compiler's output for the kernels.
//!
//! Look at: the sectors of both kernels, compared with the minimum that could hold the bytes. The number of
//! instructions hardly changes.
//!
//! Try next: a `STRIDE` of 2, of 4 and of 64. From which stride on does it get no worse, and why? (After a change to a
//! kernel, run `cargo run -p quire-cuda-builder` to compile the PTX again.)

use cuda_std::prelude::*;
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::LaunchShape,
    examples::{Lesson, LessonFailed, Result, teach},
};

/// The distance between the elements of neighbouring lanes in the second kernel.
const STRIDE: u32 = 32;

/// Adds `a` times `x` to `y`.
///
/// # Safety
/// `x` and `y` have `n` elements each.
#[kernel(max_threads = 256)]
pub unsafe fn saxpy(a: f32, x: *const f32, y: *mut f32, n: u32) {
    let i = thread::index_1d();
    if i < n {
        // SAFETY: `i` is below `n`, and no other thread has the same `i`.
        unsafe { *y.add(i as usize) += a * *x.add(i as usize) };
    }
}

/// Computes the same as [`saxpy`], but in an access order that wastes memory bandwidth.
///
/// # Safety
/// As for [`saxpy`], and `n` is a multiple of `STRIDE`.
#[kernel(max_threads = 256)]
pub unsafe fn saxpy_strided(a: f32, x: *const f32, y: *mut f32, n: u32) {
    let thread = thread::index_1d();
    if thread < n {
        // Walks down the columns of a table with `STRIDE` columns, one column after the other.
        let rows = n / STRIDE;
        let i = thread % rows * STRIDE + thread / rows;
        // SAFETY: `i` is below `n`: the row is below `rows`, the column below `STRIDE`. No other thread has both.
        unsafe { *y.add(i as usize) += a * *x.add(i as usize) };
    }
}

#[cfg(not(target_arch = "nvptx64"))]
fn main() -> Result<(), LessonFailed> {
    teach(run)
}

/// Runs the lesson.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<()> {
    // The last block is only partly used: its last threads have `i >= n`, and do nothing.
    let n = 4032;
    let a = 2.0;
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let ones = vec![1.0f32; n as usize];
    let truth: Vec<f32> = x.iter().map(|x| a * x + 1.0).collect();

    let x = lesson.gpu.upload("x", &x)?;
    let [y, z] = [lesson.gpu.upload("y", &ones)?, lesson.gpu.upload("y, strided", &ones)?];
    let shape = LaunchShape::covering(n, 256);
    // SAFETY: `x`, `y` and `z` have `n` elements each, and `n` is a multiple of the stride.
    unsafe {
        lesson.launch("neighbours", shape, saxpy { a, x: x.ptr(), y: y.mut_ptr(), n })?;
        lesson.launch("far apart", shape, saxpy_strided { a, x: x.ptr(), y: z.mut_ptr(), n })?;
    }
    for y in [y, z] {
        if lesson.gpu.download(y)? != truth {
            return Err("the kernel's result differs from the host's".into());
        }
    }
    lesson.say(format!(
        "2 * x + 1 for {n} elements: both results equal the host's, the last is {}",
        truth[n as usize - 1]
    ));
    Ok(())
}
