//! The windows of the generic address space: where shared and local memory lie in it. All else is global memory.

/// Generic addresses from here on are shared memory.
pub(crate) const SHARED_WINDOW: u64 = 0x7fff_f100_0000;
/// Generic addresses from here on are the thread's local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x7fff_f200_0000;
/// Generic addresses from here on are the kernel's parameters.
pub(crate) const PARAMETER_WINDOW: u64 = 0x7fff_f300_0000;
/// Addresses from here on are functions: the index in the module, times sixteen. They are not memory.
pub(crate) const FUNCTION_WINDOW: u64 = 0x7fff_f400_0000;
/// Size of each window, in bits.
pub(crate) const WINDOW_BITS: u32 = 24;

/// The address of the function of an index in its module.
pub(crate) fn function_address(index: usize) -> u64 {
    FUNCTION_WINDOW + 16 * index as u64
}

/// The bit from which on an address of shared memory has the rank of a block in its cluster, counted from one. Zero stands
/// for the own block.
pub(crate) const RANK_SHIFT: u32 = 18;
