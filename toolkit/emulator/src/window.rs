//! Windows of the generic address space, for shared memory, local memory, parameters and functions. All other addresses
//! are global memory.

/// Start of the window for shared memory.
pub(crate) const SHARED_WINDOW: u64 = 0x7fff_f100_0000;
/// Start of the window for the thread's local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x7fff_f200_0000;
/// Start of the window for the kernel's parameters.
pub(crate) const PARAMETER_WINDOW: u64 = 0x7fff_f300_0000;
/// Start of the window for functions. The offset is sixteen times the function's index in the module. Functions are not
/// memory.
pub(crate) const FUNCTION_WINDOW: u64 = 0x7fff_f400_0000;
/// The binary logarithm of the bytes of each window.
pub(crate) const WINDOW_BITS: u32 = 24;

/// Returns the address of the function with an index in its module.
pub(crate) fn function_address(index: usize) -> u64 {
    FUNCTION_WINDOW + 16 * index as u64
}

/// The lowest bit of the block's rank in an address of shared memory. The rank in the cluster is counted from one. Zero
/// means the thread's own block.
pub(crate) const RANK_SHIFT: u32 = 18;
