//! The list of kernels. A test holds it against the entries of the PTX, in both directions.

use cuda_std::launch::{Descriptor, Family, Kernel};

use crate::attention::prefill::paged_prefill;
use crate::cache;

/// Every kernel in the PTX that the engine embeds.
pub fn shipped() -> impl Iterator<Item = &'static Descriptor> {
    let single = [
        &cache::reshape_and_cache::DESCRIPTOR,
        &cache::copy_blocks::DESCRIPTOR,
        &cache::swap_blocks_out::DESCRIPTOR,
        &cache::swap_blocks_in::DESCRIPTOR,
    ];
    let families = [paged_prefill::INSTANCES];
    let instances = families.into_iter().flatten().map(|instance| instance.entry.descriptor());
    single.into_iter().chain(instances)
}

/// Every kernel that the feature `vocabulary` adds to them.
pub fn vocabulary() -> impl Iterator<Item = &'static Descriptor> {
    crate::vocabulary::KERNELS.iter()
}
