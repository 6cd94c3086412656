//! A shuffle as an intrinsic, as volatile assembly and as pure assembly, where only one lane uses the result.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch, link_llvm_intrinsics)]
#![allow(internal_features)]

use core::arch::asm;
use core::arch::nvptx::_thread_idx_x;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, value: u32, xor: u32, clamp: u32) -> u32;
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn intrinsic(x: *const u32, out: *mut u32) {
    unsafe {
        let lane = _thread_idx_x();
        let value = *x.add(lane as usize);
        let other = shfl_bfly(u32::MAX, value, 1, 31);
        if lane == 0 {
            *out = value + other;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn volatile(x: *const u32, out: *mut u32) {
    unsafe {
        let lane = _thread_idx_x();
        let value = *x.add(lane as usize);
        let other: u32;
        asm!("shfl.sync.bfly.b32 {0}, {1}, 1, 31, -1;", out(reg32) other, in(reg32) value, options(nomem, nostack));
        if lane == 0 {
            *out = value + other;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn pure(x: *const u32, out: *mut u32) {
    unsafe {
        let lane = _thread_idx_x();
        let value = *x.add(lane as usize);
        let other: u32;
        asm!("shfl.sync.bfly.b32 {0}, {1}, 1, 31, -1;", out(reg32) other, in(reg32) value, options(pure, nomem, nostack));
        if lane == 0 {
            *out = value + other;
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
