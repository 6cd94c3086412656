//! Kernels from other projects' compilers, run in several orders of blocks and warps and checked against their expected
//! results. `build.sh` builds their PTX.

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
