//! A shared array that is declared inside the inline assembly, and one that is declared outside.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch)]

use core::arch::asm;
use core::arch::nvptx::{_syncthreads, _thread_idx_x};

/// Declares the array in the statement that takes its address.
#[inline(always)]
fn declared_here() -> *mut u32 {
    let address: *mut u32;
    unsafe {
        asm!("{{ .shared .align 16 .b8 here[512]; cvta.shared.u64 {0}, here; }}", out(reg64) address, options(nomem, nostack));
    }
    address
}

core::arch::global_asm!(".shared .align 16 .b8 beside[512];");

/// Takes the address of an array that is declared at module level.
#[inline(always)]
fn declared_beside() -> *mut u32 {
    let address: *mut u32;
    unsafe {
        asm!("cvta.shared.u64 {0}, beside;", out(reg64) address, options(nomem, nostack));
    }
    address
}

/// Reverses 128 numbers through a shared array. Both calls of `room` must return the same array.
#[inline(always)]
unsafe fn reverse(x: *mut u32, room: impl Fn() -> *mut u32) {
    unsafe {
        let i = _thread_idx_x() as usize;
        *room().add(i) = *x.add(i);
        _syncthreads();
        *x.add(i) = *room().add(127 - i);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn reverse_here(x: *mut u32) {
    unsafe { reverse(x, declared_here) };
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn reverse_beside(x: *mut u32) {
    unsafe { reverse(x, declared_beside) };
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
