//! Every kernel against a plain reference, on the device of [`frame`].
//!
//! A family of kernels is a module here. That none is forgotten is for the microbenchmarks, which launch and check every one of them.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod cache;
mod communicator;
mod decode;
mod eight_bits;
mod embedding;
#[path = "../frame/mod.rs"]
mod frame;
mod gemm;
mod norm;
mod paper;
mod prefill;
mod quantised;
mod rope;
mod sampling;
mod vocabulary;
