//! Inline assembly with a label, in a loop that the compiler unrolls.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch)]
#![allow(named_asm_labels)]

use core::arch::asm;

/// Waits until the number at `flag` differs from `not`.
#[inline(always)]
unsafe fn wait(flag: *const u32, not: u32) {
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            ".reg .b32 seen;",
            "again:",
            "ld.acquire.gpu.global.u32 seen, [{0}];",
            "setp.eq.u32 p, seen, {1};",
            "@p bra again;",
            "}}",
            in(reg64) flag, in(reg32) not, options(nostack),
        );
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn wait_for_all(flags: *const u32) {
    for i in 0..2 {
        unsafe { wait(flags.add(i), 0) };
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
