//! Index arithmetic in 32 bits and in 64.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx)]

use core::arch::nvptx::{_block_dim_x, _block_idx_x, _thread_idx_x};

/// A product that may be larger than 32 bits, of numbers that are not.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn product(x: *mut f32, block: u32, stride: u32) {
    unsafe { *x.add(block as usize * stride as usize) = 1.0 };
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}

/// The sum may wrap in 32 bits, and has to be made before it is widened.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn narrow(x: *mut f32, offset: u32) {
    unsafe {
        let i = (_block_idx_x() * _block_dim_x() + _thread_idx_x()) as u32;
        *x.add((i + offset) as usize) = 1.0;
        *x.add((i + offset + 1) as usize) = 2.0;
    }
}

/// What is widened first can go into the address of the instruction.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn wide(x: *mut f32, offset: u32) {
    unsafe {
        let i = (_block_idx_x() * _block_dim_x() + _thread_idx_x()) as u32;
        *x.add(i as usize + offset as usize) = 1.0;
        *x.add(i as usize + offset as usize + 1) = 2.0;
    }
}
