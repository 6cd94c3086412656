//! The larger operations: attention, projections, sampling.

mod attention;
pub(super) mod linear;
pub(super) mod sampling;
