//! One small kernel for each function of `cuda_std`, to check compiler, emulator and hardware against each other. Only
//! tests and benchmarks use them.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch),
    allow(internal_features, improper_ctypes)
)]

/// Declares kernels with the same bounds, and a list of their descriptors.
macro_rules! kernels {
    ($list:ident $bounds:tt
        $($(#[$doc:meta])* $name:ident($($param:ident: $ty:ty),*) { $($body:tt)* })*
    ) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Each array must have an element for every thread, and more if the kernel's description says so.
            #[kernel $bounds]
            pub unsafe fn $name($($param: $ty),*) {
                // SAFETY: the kernel's contract gives each thread its elements. Each body states what else it relies
                // on.
                unsafe { $($body)* }
            }
        )*

        /// The descriptors of these kernels.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const $list: &[cuda_std::launch::Descriptor] =
            &[$(<$name as cuda_std::launch::Kernel>::DESCRIPTOR),*];
    };
}

// Only Hopper has these instructions.
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
mod hopper;
mod kernels;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
mod products;

#[cfg(not(target_arch = "nvptx64"))]
pub use hopper::*;
pub use kernels::*;
#[cfg(not(target_arch = "nvptx64"))]
pub use products::*;

/// The descriptors of all kernels, for every GPU and for Hopper only.
#[cfg(not(target_arch = "nvptx64"))]
pub fn all() -> impl Iterator<Item = &'static cuda_std::launch::Descriptor> {
    KERNELS.iter().chain(HOPPER).chain(PRODUCTS)
}

/// The PTX for Ampere and later GPUs.
#[cfg(not(target_arch = "nvptx64"))]
pub const SM_80: &str = include_str!("../prebuilt/sm_80.ptx");

/// The PTX for Hopper, with all kernels.
#[cfg(not(target_arch = "nvptx64"))]
pub const SM_90A: &str = include_str!("../prebuilt/sm_90a.ptx");
