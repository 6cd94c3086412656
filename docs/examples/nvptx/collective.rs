//! A barrier between two conditions that are the same.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx)]

use core::arch::nvptx::{_syncthreads, _thread_idx_x};

/// The first `n` threads of a block exchange their numbers with their neighbours; the others only wait.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn exchange(x: *mut f32, room: *mut f32, n: u32) {
    unsafe {
        let i = _thread_idx_x() as u32;
        let taking_part = i < n;
        if taking_part {
            *room.add(i as usize) = *x.add(i as usize);
        }
        _syncthreads();
        if taking_part {
            *x.add(i as usize) = *room.add((n - 1 - i) as usize);
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
