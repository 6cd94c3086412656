//! What tests of kernels stand on: a device with buffers, launched by typed entries.
//!
//! A test binary says `mod frame;` and takes what it needs.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod gpu;
pub mod mutate;
pub mod ptxas;
pub mod sass;
