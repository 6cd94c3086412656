//! A step on its way to the GPU: its inputs, its launches, and graphs of them.

pub(super) mod graph;
pub(super) mod inputs;
pub(super) mod queue;
pub(super) mod sequences;
pub(super) mod staging;
