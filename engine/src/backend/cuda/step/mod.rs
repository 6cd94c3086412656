//! A step on the GPU: its inputs, its launches, and CUDA graphs.

pub(super) mod graph;
pub(super) mod inputs;
pub(super) mod queue;
pub(super) mod sequences;
pub(super) mod staging;
