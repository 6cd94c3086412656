//! Ways to copy sixteen bytes and to declare parameters.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch)]

use core::arch::asm;

#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct Vector(pub [u32; 4]);

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn by_pointer(from: *const Vector, to: *mut Vector) {
    unsafe { *to = *from };
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn by_reference(from: &Vector, to: &mut Vector) {
    *to = *from;
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn looked_into(from: *const Vector, to: *mut Vector) {
    unsafe {
        let Vector([a, b, c, d]) = *from;
        *to = Vector([a + 1, b, c, d]);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn by_assembly(from: *const Vector, to: *mut Vector) {
    unsafe {
        let (a, b, c, d): (u32, u32, u32, u32);
        asm!(
            "ld.global.nc.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) from,
            options(readonly, nostack),
        );
        *to = Vector([a, b, c, d]);
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
