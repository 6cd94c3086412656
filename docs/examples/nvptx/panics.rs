//! A division whose divisor may be zero, a division whose divisor the compiler knows to be nonzero, and a checked
//! index.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx)]

use core::hint::assert_unchecked;

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn checked(x: *mut u32, by: u32) {
    unsafe { *x /= by };
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn unchecked(x: *mut u32, by: u32) {
    unsafe {
        assert_unchecked(by != 0);
        *x /= by;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn indexed(x: *mut u32, i: u32) {
    unsafe {
        let x = core::slice::from_raw_parts_mut(x, 1024);
        x[i as usize] = 7;
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
