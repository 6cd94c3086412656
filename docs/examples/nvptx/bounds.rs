//! A comment that is kept in the assembly.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch)]

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn nothing() {}
core::arch::global_asm!("//@kernel nothing max_threads=256");

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { core::arch::nvptx::trap() }
}
