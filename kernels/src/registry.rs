//! The list of kernels. A test holds it against the entries of the PTX, in both directions.

use cuda_std::launch::{Descriptor, Family, Kernel};

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
    let gemm = [gemm::INSTANCES, gemm_decode::INSTANCES, gemv::INSTANCES];
    let generic = gemm.into_iter().flatten().map(|instance| instance.entry.descriptor());
    single.into_iter().chain(generic)
}

/// Every kernel that the feature `vocabulary` adds to them.
pub fn vocabulary() -> impl Iterator<Item = &'static Descriptor> {
    crate::vocabulary::KERNELS.iter()
}
