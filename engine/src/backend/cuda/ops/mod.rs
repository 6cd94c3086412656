//! The larger operations: attention with Quire's kernels or the paper's, layers that keep a state, experts, projections,
//! queries, keys and values, latent vectors, elementwise changes, sampling.

mod attention;
mod elementwise;
pub(super) mod experts;
pub(super) mod latent;
pub(super) mod linear;
pub(super) mod paper;
mod qkv;
pub(super) mod recurrent;
pub(super) mod sampling;
