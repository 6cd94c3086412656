//! Lesson 1: a kernel. `y = a * x + y`, a thread for each element.
//!
//! A *kernel* is a function that the GPU calls many times at once. Each call is a *thread*, and knows its number. Threads
//! come in *blocks*, here of 256, and all blocks together are the *grid*. The hardware executes 32 threads of a block
//! together, as a *warp*: one instruction does the same for all 32, which are its *lanes*. So costs are counted per warp.
//!
//! Memory moves in *sectors* of 32 bytes. When the lanes of a warp load neighbouring `f32`s, 32 times 4 bytes are four
//! sectors, all of which is used. When they load far from each other, every lane costs a sector of its own, an eighth
//! of which is used. The second kernel does just that: it computes the same, but the lanes of a warp are `STRIDE`
//! elements apart.
//!
//! Run it: `cargo run --example saxpy`, and with `-- --ptx` to see what the compiler made of the kernels.
//!
//! Look at: the sectors of both kernels beside the least that could hold the bytes, and at how few instructions that
//! changes.
//!
//! Try next: a `STRIDE` of 2, of 4 and of 64. From where on does it get no worse, and why? (After a change to a kernel,
//! `cargo run -p quire-cuda-builder` makes the PTX anew.)

use cuda_std::prelude::*;
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::LaunchShape,
    examples::{Lesson, LessonFailed, Result, teach},
};

/// How far apart the lanes of a warp are in the second kernel.
const STRIDE: u32 = 32;

/// Adds `a` times `x` to `y`.
///
/// # Safety
/// `x` and `y` have `n` elements each.
#[kernel(max_threads = 256)]
pub unsafe fn saxpy(a: f32, x: *const f32, y: *mut f32, n: u32) {
    let i = thread::index_1d();
    if i < n {
        // SAFETY: `i` is below `n`, and no other thread has it.
        unsafe { *y.add(i as usize) += a * *x.add(i as usize) };
    }
}

/// Does the same in an order that memory does not like.
///
/// # Safety
/// As for [`saxpy`]; `n` is a multiple of `STRIDE`.
#[kernel(max_threads = 256)]
pub unsafe fn saxpy_strided(a: f32, x: *const f32, y: *mut f32, n: u32) {
    let thread = thread::index_1d();
    if thread < n {
        // Row and column of a table with `STRIDE` columns, of which this walks down one after the other.
        let rows = n / STRIDE;
        let i = thread % rows * STRIDE + thread / rows;
        // SAFETY: `i` is below `n`, as the row is below `rows` and the column below `STRIDE`; no other thread has both.
        unsafe { *y.add(i as usize) += a * *x.add(i as usize) };
    }
}

#[cfg(not(target_arch = "nvptx64"))]
fn main() -> Result<(), LessonFailed> {
    teach(run)
}

/// The lesson.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<()> {
    // The last block is not full: its last threads find `i` beyond `n`, and do nothing.
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
            return Err("the kernel computed something else than the host".into());
        }
    }
    lesson.say(format!(
        "2 * x + 1 for {n} elements: both kernels computed what the host did, the last is {}",
        truth[n as usize - 1]
    ));
    Ok(())
}
