//! The windows of the generic address space: where shared and local memory lie in it. All else is global memory.

/// Generic addresses from here on are shared memory.
pub(crate) const SHARED_WINDOW: u64 = 0x7fff_f100_0000;
/// Generic addresses from here on are the thread's local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x7fff_f200_0000;
/// Generic addresses from here on are the kernel's parameters.
pub(crate) const PARAMETER_WINDOW: u64 = 0x7fff_f300_0000;
/// Size of each window, in bits.
pub(crate) const WINDOW_BITS: u32 = 24;
