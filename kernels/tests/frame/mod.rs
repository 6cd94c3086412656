//! The frame for tests of kernels: a device with buffers and typed launches.
//!
//! A test binary declares `mod frame;` and uses the parts that it needs.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod gpu;
pub mod mutate;
pub mod ptxas;
pub mod sass;
