//! Lesson 4: matrix multiplication as a ladder. `C = A * B` for square matrices whose width is a multiple of 32.
//!
//! The arithmetic is the same on every rung. The rungs differ in how the operands reach it.
//!
//! 1. *Naive.* A thread computes one element of C, and loads a row of A and a column of B for it from global memory.
//!    Each element is loaded again by every thread that needs it.
//! 2. *Tiled.* A block computes a 16 x 16 tile of C. Its threads load a tile of A and a tile of B into shared memory,
//!    and then read each element from there 16 times. Two barriers separate loading from computing.
//! 3. *cp.async.* Asynchronous copies move 16 bytes each into shared memory while the threads compute. The data passes
//!    through no register. There are two sets of tiles: the next set is copied while the current one is used. A thread
//!    waits for its own copies (`wait`), and the barrier after it makes everyone's copies visible to all.
//! 4. *Tensor cores.* A warp multiplies 16 x 16 by 16 x 8 matrices of `f16` in one instruction, `mma`, and accumulates
//!    in `f32`. `ldmatrix` loads the operands from shared memory into the layout over the lanes that `mma` requires.
//!    Rows of tiles are padded with 8 unused elements, so eight consecutive rows begin in different banks.
//!
//! Run it: `cargo run --example matmul`
//!
//! Look at: the sectors, which drop to a tenth from rung 1 to rung 2. From rung 2 to rung 3 only the passes over shared
//! memory drop, because threads no longer store there. The benefit of `cp.async` is less time spent waiting for memory,
//! which no count shows. From rung 3 to rung 4, instructions and passes almost disappear. Rung 4 uses more sectors than
//! necessary, because each of its stores writes only every second element of eight rows.
//!
//! Try next: remove the 8 unused elements and find the bank conflicts. Then let each thread of the tiled kernel compute
//! two elements. How does that change its passes over shared memory?

use cuda_std::ptx::{cp_async, ldmatrix, mma};
use cuda_std::{prelude::*, shared, unroll::unroll};
#[cfg(not(target_arch = "nvptx64"))]
use {
    cuda_std::launch::LaunchShape,
    emulator::CostReport,
    examples::{Lesson, LessonFailed, Result, teach},
    half::f16,
};

/// Rows and columns of a tile in the kernels that compute in `f32`.
const TILE: usize = 16;
/// Rows and columns of C that a block of the tensor-core kernel computes.
const WIDE: usize = 32;
/// Columns of A, and rows of B, in a tile of the tensor-core kernel. One `mma` consumes this many.
const DEPTH: usize = 16;
/// Row strides of the tensor-core kernel's tiles in elements, including the 8 unused ones.
const A_ROW: usize = DEPTH + 8;
const B_ROW: usize = WIDE + 8;
/// Elements of one set: a tile of A and a tile of B.
const SET: usize = WIDE * A_ROW + DEPTH * B_ROW;

/// Computes one element per thread, from global memory.
///
/// # Safety
/// The matrices are `n` x `n`, and the launch has `n * n` threads.
#[kernel(max_threads = 256)]
pub unsafe fn matmul_naive(a: *const f32, b: *const f32, c: *mut f32, n: u32) {
    let i = thread::index_1d();
    let (row, column, n) = ((i / n) as usize, (i % n) as usize, n as usize);
    let mut sum = 0.0;
    for k in 0..n {
        // SAFETY: row, column and `k` are below `n`.
        sum += unsafe { *a.add(row * n + k) * *b.add(k * n + column) };
    }
    // SAFETY: this thread's own element.
    unsafe { *c.add(row * n + column) = sum };
}

/// Computes one tile per block, through shared memory.
///
/// # Safety
/// The matrices are `n` x `n`, `n` is a multiple of 16, blocks have 256 threads, and the grid is `n / 16` blocks wide
/// and high.
#[kernel(max_threads = 256)]
pub unsafe fn matmul_tiled(a: *const f32, b: *const f32, c: *mut f32, n: u32) {
    let (a_tile, b_tile) = (shared_array![f32; 256], shared_array![f32; 256]);
    let thread = thread::thread_idx_x() as usize;
    let (y, x, n) = (thread / TILE, thread % TILE, n as usize);
    let row = thread::block_idx_y() as usize * TILE + y;
    let column = thread::block_idx_x() as usize * TILE + x;
    let mut sum = 0.0;
    let mut k = 0;
    while k < n {
        // SAFETY: `k + x` and `k + y` are below `n`, and tiles have 256 elements. A thread writes its own elements. The
        // first barrier comes before any thread reads them, and the second before any thread overwrites them.
        unsafe {
            *a_tile.add(thread) = *a.add(row * n + k + x);
            *b_tile.add(thread) = *b.add((k + y) * n + column);
            thread::sync_threads();
            unroll::<TILE>(|i| sum += *a_tile.add(y * TILE + i) * *b_tile.add(i * TILE + x));
            thread::sync_threads();
        }
        k += TILE;
    }
    // SAFETY: this thread's own element.
    unsafe { *c.add(row * n + column) = sum };
}

/// Computes one tile per block, with asynchronous copies.
///
/// # Safety
/// As for [`matmul_tiled`], and the matrices are aligned to 16 bytes.
#[kernel(max_threads = 256)]
pub unsafe fn matmul_async(a: *const f32, b: *const f32, c: *mut f32, n: u32) {
    // Two sets of tiles. A set has 256 elements of A and 256 of B.
    let tiles = shared_array![f32; 1024];
    let thread = thread::thread_idx_x() as usize;
    let (y, x, n) = (thread / TILE, thread % TILE, n as usize);
    let top = thread::block_idx_y() as usize * TILE;
    let left = thread::block_idx_x() as usize * TILE;
    // Copies the tiles at `k` into a set. The first 64 threads copy 16 bytes of A each, and the next 64 copy B.
    let copy = |k: usize, set: usize| {
        let (row, four) = (thread / 4 % TILE, thread % 4 * 4);
        let from = match thread / 64 {
            0 => Some(a.wrapping_add((top + row) * n + k + four)),
            1 => Some(b.wrapping_add((k + row) * n + left + four)),
            _ => None,
        };
        if let Some(from) = from {
            let to = shared::shared_offset(tiles.wrapping_add(set * 512 + thread * 4));
            // SAFETY: `from` is in its matrix, `to` is in its set, and both are multiples of four elements. No thread
            // reads the set before the wait for its copies, and a barrier follows the last reads of its previous
            // contents.
            unsafe { cp_async::copy_cg(to, from.cast()) };
        }
        cp_async::commit();
    };
    let mut sum = 0.0;
    copy(0, 0);
    let mut k = 0;
    while k < n {
        let set = k / TILE % 2;
        if k + TILE < n {
            copy(k + TILE, 1 - set);
            // Waits for all groups but the newest, which belongs to the next set.
            cp_async::wait::<1>();
        } else {
            cp_async::wait::<0>();
        }
        thread::sync_threads();
        let (a_tile, b_tile) = (tiles.wrapping_add(set * 512), tiles.wrapping_add(set * 512 + 256));
        // SAFETY: both tiles are in the set, and all threads have waited for its copies.
        unroll::<TILE>(|i| sum += unsafe { *a_tile.add(y * TILE + i) * *b_tile.add(i * TILE + x) });
        thread::sync_threads();
        k += TILE;
    }
    // SAFETY: this thread's own element.
    unsafe { *c.add((top + y) * n + left + x) = sum };
}

/// Computes a 32 x 32 tile per block on tensor cores. Each of the four warps computes 16 x 16 elements.
///
/// # Safety
/// The matrices are `n` x `n`. A and B are `f16` and aligned to 16 bytes. `n` is a multiple of 32, blocks have 128
/// threads, and the grid is `n / 32` blocks wide and high.
#[kernel(max_threads = 128)]
pub unsafe fn matmul_tensor(a: *const u16, b: *const u16, c: *mut f32, n: u32) {
    let tiles = shared_array![u16; 2 * SET];
    let (thread, n) = (thread::thread_idx_x() as usize, n as usize);
    let top = thread::block_idx_y() as usize * WIDE;
    let left = thread::block_idx_x() as usize * WIDE;
    // Copies the tiles at `k` into a set: each thread copies 8 elements of A or B.
    let copy = |k: usize, set: usize| {
        let part = thread % 64;
        let (from, to) = if thread < 64 {
            let (row, column) = (part / 2, part % 2 * 8);
            (a.wrapping_add((top + row) * n + k + column), row * A_ROW + column)
        } else {
            let (row, column) = (part / 4, part % 4 * 8);
            (b.wrapping_add((k + row) * n + left + column), WIDE * A_ROW + row * B_ROW + column)
        };
        let to = shared::shared_offset(tiles.wrapping_add(set * SET + to));
        // SAFETY: as in the kernel above. Rows of tiles are multiples of 16 bytes.
        unsafe { cp_async::copy_cg(to, from.cast()) };
        cp_async::commit();
    };
    let (lane, warp) = (warp::lane_id() as usize, warp::warp_id() as usize);
    let (down, right) = (warp / 2 * 16, warp % 2 * 16);
    let mut sums = [[0.0; 4]; 2];
    copy(0, 0);
    let mut k = 0;
    while k < n {
        let set = k / DEPTH % 2;
        if k + DEPTH < n {
            copy(k + DEPTH, 1 - set);
            cp_async::wait::<1>();
        } else {
            cp_async::wait::<0>();
        }
        thread::sync_threads();
        // SAFETY: all lanes execute this together. Each passes a row of eight elements in the set, aligned to 16 bytes.
        unsafe {
            let a_tile = tiles.add(set * SET + (down + lane % 16) * A_ROW + lane / 16 * 8);
            let b_tile = tiles.add(set * SET + WIDE * A_ROW + lane % 16 * B_ROW + right + lane / 16 * 8);
            let a = ldmatrix::load_x4(a_tile.cast());
            let b = ldmatrix::load_x4_trans(b_tile.cast());
            sums[0] = mma::m16n8k16_f16(a, [b[0], b[1]], sums[0]);
            sums[1] = mma::m16n8k16_f16(a, [b[2], b[3]], sums[1]);
        }
        thread::sync_threads();
        k += DEPTH;
    }
    let (row, column) = (top + down + lane / 4, left + right + lane % 4 * 2);
    unroll::<2>(|i| {
        // SAFETY: `mma` leaves these elements in this lane only.
        unsafe {
            let c = c.add(row * n + column + i * 8);
            *c = sums[i][0];
            *c.add(1) = sums[i][1];
            *c.add(8 * n) = sums[i][2];
            *c.add(8 * n + 1) = sums[i][3];
        }
    });
}

#[cfg(not(target_arch = "nvptx64"))]
fn main() -> Result<(), LessonFailed> {
    teach(|lesson| run(lesson).map(|_| ()))
}

/// Runs the lesson and returns the cost of each rung.
#[cfg(not(target_arch = "nvptx64"))]
pub fn run(lesson: &mut Lesson) -> Result<Vec<CostReport>> {
    let n = 128u32;
    // Small integers, whose products and sums are exact in both types.
    let numbers = |by: u32| -> Vec<f32> { (0..n * n).map(|i| (i * by % 11) as f32 - 5.0).collect() };
    let halves = |x: &[f32]| -> Vec<u16> { x.iter().map(|&x| f16::from_f32(x).to_bits()).collect() };
    let (host_a, host_b) = (numbers(7), numbers(5));
    let truth = product(&host_a, &host_b, n as usize);
    let a16 = lesson.gpu.upload("a", &halves(&host_a))?.ptr();
    let b16 = lesson.gpu.upload("b", &halves(&host_b))?.ptr();
    let a = lesson.gpu.upload("a", &host_a)?.ptr();
    let b = lesson.gpu.upload("b", &host_b)?.ptr();
    let results = [(); 4].map(|()| lesson.gpu.alloc::<f32>("c", truth.len()));
    let [naive, tiled, asynchronous, tensor] = results;
    let (naive, tiled, asynchronous, tensor) = (naive?, tiled?, asynchronous?, tensor?);
    let tiles = LaunchShape::new([n / TILE as u32, n / TILE as u32, 1], 256);
    let wide = LaunchShape::new([n / WIDE as u32, n / WIDE as u32, 1], 128);
    let each = LaunchShape::covering(n * n, 256);
    // SAFETY: all matrices are 128 x 128, which is a multiple of 32, and the kernels require these shapes.
    let reports = unsafe {
        vec![
            lesson.launch("1. naive", each, matmul_naive { a, b, c: naive.mut_ptr(), n })?,
            lesson.launch("2. tiled", tiles, matmul_tiled { a, b, c: tiled.mut_ptr(), n })?,
            lesson.launch("3. cp.async", tiles, matmul_async { a, b, c: asynchronous.mut_ptr(), n })?,
            lesson.launch("4. tensor cores", wide, matmul_tensor { a: a16, b: b16, c: tensor.mut_ptr(), n })?,
        ]
    };
    for result in [naive, tiled, asynchronous, tensor] {
        if lesson.gpu.download(result)? != truth {
            return Err("a kernel's result differs from the host's".into());
        }
    }
    lesson.say(format!("the product of two {n} x {n} matrices: all four results equal the host's"));
    Ok(reports)
}

/// Computes the product on the host.
#[cfg(not(target_arch = "nvptx64"))]
fn product(a: &[f32], b: &[f32], n: usize) -> Vec<f32> {
    let element = |row: usize, column: usize| (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum();
    (0..n * n).map(|i| element(i / n, i % n)).collect()
}
