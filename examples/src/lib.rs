//! Lessons: small programs for GPUs, each in one file, kernel and host together. `README.md` lists them in order.
//!
//! The crate is compiled twice. The build for the GPU contains the kernels of all lessons and produces the committed
//! PTX. The build for the host contains the code that the lessons share: a [`Lesson`] opens a device, launches kernels
//! on it and reports their cost.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch), allow(missing_docs))]

#[cfg(not(target_arch = "nvptx64"))]
mod lesson;
#[cfg(not(target_arch = "nvptx64"))]
mod listing;
#[cfg(not(target_arch = "nvptx64"))]
pub use lesson::{Lesson, LessonFailed, PTX, Result, teach};
#[cfg(not(target_arch = "nvptx64"))]
pub use listing::{entry, listing};

#[cfg(target_arch = "nvptx64")]
pub mod attention;
#[cfg(target_arch = "nvptx64")]
pub mod exercises;
#[cfg(target_arch = "nvptx64")]
pub mod matmul;
#[cfg(target_arch = "nvptx64")]
pub mod minimal_engine;
#[cfg(target_arch = "nvptx64")]
pub mod reduction;
#[cfg(target_arch = "nvptx64")]
pub mod saxpy;
#[cfg(target_arch = "nvptx64")]
pub mod softmax;
