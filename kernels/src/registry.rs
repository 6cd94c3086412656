//! The list of kernels. A test holds it against the entries of the PTX, in both directions.

use cuda_std::launch::{Descriptor, Family, Kernel};

use crate::attention::paper;
use crate::cache;
use crate::gemm::{decode::gemm_decode, gemv::gemv, prefill::gemm};

/// Every kernel in the PTX that the engine embeds.
pub fn shipped() -> impl Iterator<Item = &'static Descriptor> {
    let single = [
        &cache::reshape_and_cache::DESCRIPTOR,
        &cache::copy_blocks::DESCRIPTOR,
        &cache::swap_blocks_out::DESCRIPTOR,
        &cache::swap_blocks_in::DESCRIPTOR,
    ];
    single
        .into_iter()
        .chain(family::<paper::paged_attention_v1>())
        .chain(family::<paper::paged_attention_v2>())
        .chain(family::<paper::paged_attention_v2_reduce>())
        .chain(family::<gemm>())
        .chain(family::<gemm_decode>())
        .chain(family::<gemv>())
}

/// All instances of a generic kernel.
fn family<F: Family>() -> impl Iterator<Item = &'static Descriptor> {
    F::INSTANCES.iter().map(|instance| instance.entry.descriptor())
}

/// Every kernel that the feature `vocabulary` adds to them.
pub fn vocabulary() -> impl Iterator<Item = &'static Descriptor> {
    crate::vocabulary::KERNELS.iter()
}
