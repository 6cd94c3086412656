//! The cases, by family of kernels.

mod cache;
mod gemm;
mod paper;
mod stream;

use crate::case::{Case, Scale};

pub use stream::read_stream;

/// All of them: every kernel of the registry is launched by one at least.
pub fn all(scale: Scale) -> Vec<Case> {
    [cache::cases(scale), gemm::cases(scale), paper::cases(scale)].into_iter().flatten().collect()
}

/// The error of results that are either right or wrong.
fn exact<T: PartialEq>(results: &[T], truth: &[T]) -> f64 {
    if results == truth { 0.0 } else { f64::INFINITY }
}
