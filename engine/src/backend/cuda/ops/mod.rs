//! The larger operations: attention with Quire's kernels or the paper's, projections, sampling.

mod attention;
pub(super) mod linear;
pub(super) mod paper;
pub(super) mod sampling;
