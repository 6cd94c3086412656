//! The contents of the GPU's memory: activations, weights, the KV cache.

pub(super) mod arena;
pub(super) mod cache;
mod packed;
pub(super) mod tensor;
pub(super) mod upload;
pub(super) mod weights;
