//! Collectives that the compiler is allowed to break, and does, next to correct versions of the same kernels.
#![no_std]
#![feature(abi_ptx, asm_experimental_arch, stdarch_nvptx)]

use core::arch::asm;
use core::arch::nvptx::{_block_dim_x, _block_idx_x, _syncthreads, _thread_idx_x};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The value of the lane whose index differs in one bit. `pure` lets the compiler move the shuffle into a branch.
fn pure_exchange(value: f32, bit: u32) -> f32 {
    let result: f32;
    unsafe {
        asm!("shfl.sync.bfly.b32 {0}, {1}, {2}, 31, -1;", out(reg32) result, in(reg32) value, in(reg32) bit,
            options(pure, nomem, nostack));
    }
    result
}

/// The same shuffle without `pure`, so the compiler leaves it in place.
fn exchange(value: f32, bit: u32) -> f32 {
    let result: f32;
    unsafe {
        asm!("shfl.sync.bfly.b32 {0}, {1}, {2}, 31, -1;", out(reg32) result, in(reg32) value, in(reg32) bit,
            options(nostack));
    }
    result
}

#[inline(always)]
unsafe fn sum(input: *const f32, output: *mut f32, exchange: impl Fn(f32, u32) -> f32) {
    unsafe {
        let thread = _thread_idx_x();
        let mut value = *input.add(thread as usize);
        for step in 0..5 {
            value += exchange(value, 1 << step);
        }
        if thread == 0 {
            *output = value;
        }
    }
}

/// Sums 32 numbers with pure shuffles. Only lane 0 needs the result, so the compiler sinks them into its branch.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sum_pure(input: *const f32, output: *mut f32) {
    unsafe { sum(input, output, pure_exchange) }
}

/// Sums 32 numbers with shuffles that stay in place.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sum_right(input: *const f32, output: *mut f32) {
    unsafe { sum(input, output, exchange) }
}

/// Copies through registers, with a barrier between two tests of the same condition. Jump threading duplicates the
/// barrier into both arms (rust-lang/rust#137086).
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn copy_threaded(input: *const f32, output: *mut f32, n: u32) {
    unsafe {
        let index = (_block_idx_x() * _block_dim_x() + _thread_idx_x()) as usize;
        let value = if index < n as usize { input.add(index).read() } else { 0.0 };
        _syncthreads();
        if index < n as usize {
            output.add(index).write(value);
        }
    }
}
