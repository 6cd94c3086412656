//! A product and a sum.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, core_intrinsics)]
#![allow(internal_features)]

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn separate(x: *mut f32, a: f32, b: f32) {
    unsafe { *x = *x * a + b };
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn fused(x: *mut f32, a: f32, b: f32) {
    unsafe { *x = core::intrinsics::fmaf32(*x, a, b) };
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
