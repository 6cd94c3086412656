//! Instructions that neither Rust nor Rust-CUDA's `cuda_std` has a name for, a function each.
//!
//! Which form each takes is decided by what keeps it right. Collectives are LLVM's intrinsics where these are marked
//! convergent (`ldmatrix`). `mma` has an intrinsic, but LLVM (22) takes it for plain arithmetic that it may move into a
//! branch; it is volatile assembly. LLVM may copy that, too, into both arms of a branch beside it: such an instruction
//! belongs only where all of a warp take the same branches. Nothing that reads memory is `pure`.
//!
//! Those of Hopper (`sm_90a`) are for kernels that exist there alone: `#[kernel(arch = "sm_90a")]`.

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
