//! Kernels, which run on the GPU.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

use cuda_std::prelude::*;

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
