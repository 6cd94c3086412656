//! Kernels as other people's compilers write them, in any order of blocks and warps, against what they should compute. `build.sh`
//! makes their PTX.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod cub;
mod cuda;
mod exact;
mod half_arithmetic;
mod half_conversions;
mod halves;
mod numba;
mod problem;
mod products;
mod sweep;
mod tiles;
mod triton;
