//! A shared array that is declared in inline assembly, and one that is declared beside it.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch)]

use core::arch::asm;
use core::arch::nvptx::{_syncthreads, _thread_idx_x};

/// Declares the array where its address is taken.
#[inline(always)]
fn declared_here() -> *mut u32 {
    let address: *mut u32;
    unsafe {
        asm!("{{ .shared .align 16 .b8 here[512]; cvta.shared.u64 {0}, here; }}", out(reg64) address, options(nomem, nostack));
    }
    address
}

core::arch::global_asm!(".shared .align 16 .b8 beside[512];");

/// Takes the address of an array that the module declares.
#[inline(always)]
fn declared_beside() -> *mut u32 {
    let address: *mut u32;
    unsafe {
        asm!("cvta.shared.u64 {0}, beside;", out(reg64) address, options(nomem, nostack));
    }
    address
}

/// Reverses 128 numbers, which are to pass through one array.
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
