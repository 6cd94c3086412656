//! One function for each PTX instruction that neither Rust nor Rust-CUDA's `cuda_std` has a name for.
//!
//! Correctness decides how each function is implemented. Collectives are LLVM's intrinsics if these are marked
//! convergent (`ldmatrix`). LLVM (22) treats the intrinsic of `mma` as plain arithmetic that it may move into a branch,
//! so `mma` is volatile assembly. LLVM may still copy volatile assembly into both arms of a nearby branch. Use such an
//! instruction only where all lanes of a warp take the same branches. Instructions that read memory are never `pure`.
//!
//! Instructions of Hopper (`sm_90a`) are for kernels that exist only there: `#[kernel(arch = "sm_90a")]`.

pub mod bulk;
pub mod cluster;
pub mod control;
pub mod cp_async;
pub mod fence;
pub mod ldmatrix;
pub mod mbarrier;
pub mod memory;
pub mod mma;
pub mod pattern;
pub mod stmatrix;
pub mod tensor;
pub mod wgmma;
pub mod wgmma_chain;
