//! The library for writing GPU kernels: threads, warps, shared memory and single instructions.
//!
//! Names and paths match Rust-CUDA's `cuda_std` where it has an equivalent (`kernel`, `thread`, `warp`,
//! `shared_array!`, `shared::dynamic_shared_mem`), so kernels look alike. The implementation is Quire's own, for
//! rustc's `nvptx64-nvidia-cuda` target. The two share no code.
//!
//! The crate compiles for the host as well, so editors and clippy can check kernels like any other code. On the host,
//! device functions type-check, and panic with "device only" when called. The host uses only [`launch`]: the descriptor
//! and argument types of each kernel.
//!
//! # Collectives
//!
//! The threads of a warp or block execute a collective instruction together: a shuffle, a vote, a barrier. The compiler
//! must not move it into or out of a branch. LLVM respects this for its own intrinsics, which are marked *convergent*,
//! but not for inline assembly. Hence the rule in this crate: a collective is an intrinsic, never `pure` assembly.
//! MIR's jump threading ignores convergence for both, so `cuda_builder` turns it off.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(stdarch_nvptx, asm_experimental_arch, f16, link_llvm_intrinsics, abi_unadjusted),
    allow(internal_features, improper_ctypes)
)]

// The macros' output refers to this crate as `cuda_std`, also within the crate itself.
#[allow(unused_extern_crates, reason = "only the macros' output uses the name")]
extern crate self as cuda_std;

#[macro_use]
mod device;

pub mod atomic;
pub mod block;
pub mod flag;
pub mod float;
pub mod half;
pub mod launch;
pub mod ptx;
pub mod shared;
pub mod thread;
#[macro_use]
pub mod unroll;
pub mod vector;
pub mod warp;

/// ```
/// use cuda_std::launch::{DevicePtrMut, KernelCall};
/// use cuda_std::prelude::*;
///
/// /// Multiplies `n` numbers by `by`.
/// ///
/// /// # Safety
/// /// `x` has `n` elements.
/// #[kernel(max_threads = 256, min_blocks = 2, max_regs = 128)]
/// pub unsafe fn scale(x: *mut f32, by: f32, n: u32) {
///     let i = thread::index_1d();
///     if i < n {
///         unsafe { *x.add(i as usize) *= by };
///     }
/// }
/// // On the host the arguments are a struct: by name, in any order.
/// let call = KernelCall::from(scale { n: 3, by: 2.0, x: DevicePtrMut::from_address(0x1000) });
/// assert_eq!(call.bits(), [0x1000, u64::from(2.0f32.to_bits()), 3]);
///
/// /// Raises to the power `P`.
/// ///
/// /// # Safety
/// /// `x` has an element for each thread.
/// #[kernel(instances(P = [2, 3]))]
/// pub unsafe fn power<const P: u32>(x: *mut f32) {
///     let x = unsafe { &mut *x.add(thread::index_1d() as usize) };
///     *x = (0..P).fold(1.0, |power, _| power * *x);
/// }
/// let call = power { x: DevicePtrMut::NULL }.instance::<3>();
/// assert_eq!(call.descriptor().name, "power_3");
/// ```
///
/// Several mistakes do not compile: an argument of another type, a read-only pointer where the kernel writes, a missing
/// argument, and an instance that does not exist.
///
/// ```compile_fail,E0308
/// # use cuda_std::{launch::*, prelude::*};
/// # #[kernel] unsafe fn scale(x: *mut f32, by: f32, n: u32) {}
/// let words: DevicePtrMut<u32> = DevicePtrMut::NULL;
/// scale { x: words, by: 2.0, n: 3 };
/// ```
///
/// ```compile_fail,E0308
/// # use cuda_std::{launch::*, prelude::*};
/// # #[kernel] unsafe fn scale(x: *mut f32, by: f32, n: u32) {}
/// let read: DevicePtr<f32> = DevicePtr::NULL;
/// scale { x: read, by: 2.0, n: 3 };
/// ```
///
/// ```compile_fail,E0063
/// # use cuda_std::{launch::*, prelude::*};
/// # #[kernel] unsafe fn scale(x: *mut f32, by: f32, n: u32) {}
/// scale { x: DevicePtrMut::NULL, n: 3 };
/// ```
///
/// ```compile_fail,E0277
/// # use cuda_std::{launch::*, prelude::*};
/// # #[kernel(instances(P = [2, 3]))] unsafe fn power<const P: u32>(x: *mut f32) {}
/// power { x: DevicePtrMut::NULL }.instance::<4>();
/// ```
pub use quire_cuda_std_macros::kernel;

/// ```
/// use cuda_std::prelude::*;
///
/// /// Reverses the elements of each block.
/// ///
/// /// # Safety
/// /// Blocks have 256 threads, and `x` has an element for each thread.
/// #[kernel(max_threads = 256)]
/// pub unsafe fn reverse(x: *mut u32) {
///     let tile = shared_array![u32; 256];
///     let (i, x) = (thread::thread_idx_x() as usize, unsafe { x.add(thread::index_1d() as usize) });
///     unsafe { *tile.add(i) = *x };
///     thread::sync_threads();
///     unsafe { *x = *tile.add(255 - i) };
/// }
/// ```
pub use quire_cuda_std_macros::shared_array;

/// The imports of a typical kernel file: `use cuda_std::prelude::*;`.
pub mod prelude {
    pub use crate::{float::GpuFloat, kernel, shared_array, thread, warp};
}

/// Panics. Every device function calls this on the host.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
#[cold]
#[track_caller]
pub fn device_only<T>() -> T {
    panic!("device only: this runs in kernels, not on the host")
}

/// Ends the launch through the function that `assert` calls in CUDA C++. The driver and the emulator then name the line
/// of the panic. A panic message would add formatting code to every kernel.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    use core::ffi::c_char;

    unsafe extern "C" {
        fn __assertfail(condition: *const c_char, file: *const c_char, line: u32, function: *const c_char, size: usize);
    }
    let location = info.location();
    let file = location.map_or(c"?", |location| location.file_as_c_str());
    let line = location.map_or(0, |location| location.line());
    // SAFETY: the texts end with a zero and are constants. Every driver has the function, and the trap ends the launch
    // even if it returned.
    unsafe {
        __assertfail(c"no panic".as_ptr(), file.as_ptr(), line, c"Rust".as_ptr(), size_of::<c_char>());
        core::arch::nvptx::trap()
    }
}
