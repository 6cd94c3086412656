//! One small kernel for each function of `cuda_std`, so that compiler, emulator and hardware can be checked against each
//! other. No binary has them.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch),
    allow(internal_features, improper_ctypes)
)]

/// Declares kernels with the same bounds, and their list.
macro_rules! kernels {
    ($list:ident $bounds:tt
        $($(#[$doc:meta])* $name:ident($($param:ident: $ty:ty),*) { $($body:tt)* })*
    ) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Arrays have an element for each thread, and more where the kernel says so.
            #[kernel $bounds]
            pub unsafe fn $name($($param: $ty),*) {
                // SAFETY: the kernel's contract gives each thread its elements; what else a body relies on stands in it.
                unsafe { $($body)* }
            }
        )*

        /// All of them.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const $list: &[cuda_std::launch::Descriptor] =
            &[$(<$name as cuda_std::launch::Kernel>::DESCRIPTOR),*];
    };
}

// Other targets have none of these.
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

/// All kernels: those of every GPU, and those of Hopper alone.
#[cfg(not(target_arch = "nvptx64"))]
pub fn all() -> impl Iterator<Item = &'static cuda_std::launch::Descriptor> {
    KERNELS.iter().chain(HOPPER).chain(PRODUCTS)
}

/// The PTX for Ampere and everything after it.
#[cfg(not(target_arch = "nvptx64"))]
pub const SM_80: &str = include_str!("../prebuilt/sm_80.ptx");

/// The PTX for Hopper.
#[cfg(not(target_arch = "nvptx64"))]
pub const SM_90A: &str = include_str!("../prebuilt/sm_90a.ptx");
