//! The cases, by kernel family.

mod cache;
mod communicator;
pub mod decode;
pub mod embedding;
pub mod experts;
pub mod gemm;
pub mod latent;
pub mod norm;
pub mod normed;
mod paper;
pub mod prefill;
pub mod quantised;
pub mod recurrent;
pub mod rope;
pub mod sampling;
pub mod scaling;
mod stream;

pub(crate) use crate::case::exact;
use crate::case::{Case, Scale};

pub use stream::read_stream;

/// Returns all cases for a target. Together they launch every kernel of the registry that the target has.
pub fn all(scale: Scale, target: &str) -> Vec<Case> {
    let families = [
        cache::cases,
        communicator::cases,
        decode::cases,
        embedding::cases,
        latent::cases,
        norm::cases,
        paper::cases,
        quantised::cases,
        recurrent::cases,
        rope::cases,
        sampling::cases,
        scaling::cases,
    ];
    families
        .into_iter()
        .flat_map(|cases| cases(scale))
        .chain(experts::cases(scale, target))
        .chain(prefill::cases(scale, target))
        .chain(gemm::cases(scale, target))
        .chain(normed::cases(scale, target))
        .collect()
}
