//! Every kernel against a plain reference, on the device of [`frame`].
//!
//! Each module tests a family of kernels. The microbenchmarks launch and check every kernel, so none can be forgotten.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod cache;
mod communicator;
mod decode;
mod eight_bits;
mod embedding;
mod experts;
#[path = "../frame/mod.rs"]
mod frame;
mod gemm;
mod intrinsics;
mod latent;
mod norm;
mod paper;
mod prefill;
mod quantised;
mod recurrent;
mod rope;
mod sampling;
mod scaling;
