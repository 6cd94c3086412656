//! A collective between two identical conditions: as LLVM's intrinsic, as assembly, and as assembly next to an
//! intrinsic.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch, link_llvm_intrinsics)]
#![allow(internal_features)]

use core::arch::asm;
use core::arch::nvptx::{_syncthreads, _thread_idx_x};

unsafe extern "C" {
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
}

/// The first `n` threads of a block reverse their numbers. The other threads only take part in the barrier.
#[inline(always)]
unsafe fn reverse(x: *mut u32, room: *mut u32, n: u32, barrier: impl Fn()) {
    unsafe {
        let i = _thread_idx_x() as u32;
        let has_one = i < n;
        if has_one {
            *room.add(i as usize) = *x.add(i as usize);
        }
        barrier();
        if has_one {
            *x.add(i as usize) = *room.add((n - 1 - i) as usize);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn by_intrinsic(x: *mut u32, room: *mut u32, n: u32) {
    unsafe { reverse(x, room, n, || _syncthreads()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn by_assembly(x: *mut u32, room: *mut u32, n: u32) {
    unsafe { reverse(x, room, n, || asm!("bar.sync 0;")) };
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn beside_an_intrinsic(x: *mut u32, room: *mut u32, n: u32) {
    unsafe {
        reverse(x, room, n, || {
            bar_warp_sync(u32::MAX);
            asm!("bar.sync 0;");
        });
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
