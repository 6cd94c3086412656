//! Every kernel against a plain reference, on the device of [`frame`].
//!
//! A family of kernels is a module here. Beside its own tests it has a function that launches each of its kernels at least
//! once, on a small problem, and checks what came out; `FAMILIES` lists these, and a kernel that none of them launches fails
//! the test below.

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

use std::collections::BTreeSet;

use cuda_builder::ptx::entries;
use frame::gpu::{Gpu, TARGETS};

/// What launches every kernel of a family, and checks it.
const FAMILIES: &[fn(&mut Gpu)] = &[
    cache::every_kernel,
    communicator::every_kernel,
    decode::every_kernel,
    embedding::every_kernel,
    gemm::every_kernel,
    norm::every_kernel,
    paper::every_kernel,
    prefill::every_kernel,
    quantised::every_kernel,
    rope::every_kernel,
    sampling::every_kernel,
];

#[test]
fn every_shipped_kernel_is_executed() {
    for (target, ptx) in TARGETS {
        let mut gpu = Gpu::new(target);
        FAMILIES.iter().for_each(|every_kernel| every_kernel(&mut gpu));
        assert_eq!(gpu.launched(), names(ptx), "kernels launched for {target}, and those there are");
    }
}

/// The names of the entries in PTX.
fn names(ptx: &str) -> BTreeSet<String> {
    entries(ptx).unwrap().into_iter().map(|entry| entry.name).collect()
}
