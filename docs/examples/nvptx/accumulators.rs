//! An array of accumulators with two nested loops over it.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx)]

use core::arch::nvptx::_thread_idx_x;

/// Computes a tile of a matrix product. Each step uses one column of `a` and one row of `b`.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn tile(a: *const f32, b: *const f32, out: *mut f32, k: u32) {
    unsafe {
        let mut sums = [[0.0f32; SIZE]; SIZE];
        for step in 0..k as usize {
            for i in 0..SIZE {
                for j in 0..SIZE {
                    sums[i][j] += *a.add(step * SIZE + i) * *b.add(step * SIZE + j);
                }
            }
        }
        let out = out.add(SIZE * SIZE * _thread_idx_x() as usize);
        for i in 0..SIZE {
            for j in 0..SIZE {
                *out.add(SIZE * i + j) = sums[i][j];
            }
        }
    }
}

const SIZE: usize = 12;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
