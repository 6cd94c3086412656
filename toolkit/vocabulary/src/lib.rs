//! One small kernel for each function of `cuda_std`, so that compiler, emulator and hardware can be checked against each
//! other. No binary has them.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch),
    allow(internal_features, improper_ctypes)
)]

mod kernels;

pub use kernels::*;

/// The PTX for Ampere and everything after it.
#[cfg(not(target_arch = "nvptx64"))]
pub const SM_80: &str = include_str!("../prebuilt/sm_80.ptx");

/// The PTX for Hopper.
#[cfg(not(target_arch = "nvptx64"))]
pub const SM_90A: &str = include_str!("../prebuilt/sm_90a.ptx");
