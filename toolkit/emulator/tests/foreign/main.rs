//! Kernels as other people's compilers write them, in any order of blocks and warps, against what they should compute. `build.sh`
//! makes their PTX.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod cuda;
mod numba;
mod problem;
mod sweep;
mod triton;
