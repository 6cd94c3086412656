//! Index arithmetic in 32 and in 64 bits.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx)]

use core::arch::nvptx::{_block_dim_x, _block_idx_x, _thread_idx_x};

/// Multiplies two 32-bit numbers whose product may need 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn product(x: *mut f32, block: u32, stride: u32) {
    unsafe { *x.add(block as usize * stride as usize) = 1.0 };
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}

/// Adds in 32 bits. The sum may wrap, so the compiler must compute it before it widens it.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn narrow(x: *mut f32, offset: u32) {
    unsafe {
        let i = (_block_idx_x() * _block_dim_x() + _thread_idx_x()) as u32;
        *x.add((i + offset) as usize) = 1.0;
        *x.add((i + offset + 1) as usize) = 2.0;
    }
}

/// Widens first. The constant part of the sum can then become part of the instruction's address.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn wide(x: *mut f32, offset: u32) {
    unsafe {
        let i = (_block_idx_x() * _block_dim_x() + _thread_idx_x()) as u32;
        *x.add(i as usize + offset as usize) = 1.0;
        *x.add(i as usize + offset as usize + 1) = 2.0;
    }
}
