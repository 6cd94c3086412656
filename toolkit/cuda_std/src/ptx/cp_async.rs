//! `cp.async`: asynchronous copies from global to shared memory.
//!
//! A thread issues copies, closes them into a group with [`commit`], and waits for its own groups, oldest first, with
//! [`wait`]. A barrier then makes the data visible to the other threads of the block.

/// Copies 16 bytes through L2 only. Meant for data that this multiprocessor reads once.
///
/// `cp.async.cg.shared.global [to], [from], 16`
///
/// # Safety
/// `to` is an offset in shared memory, and `from` is in global memory. Both are valid and aligned to 16 bytes. The
/// destination is neither read nor written before [`wait`].
#[inline(always)]
pub unsafe fn copy_cg(to: u32, from: *const u8) {
    device!((to, from) => {
        // SAFETY: this function's contract requires valid, aligned addresses.
        unsafe {
            core::arch::asm!(
                "cp.async.cg.shared.global [{0}], [{1}], 16;",
                in(reg32) to,
                in(reg64) from,
                options(nostack, preserves_flags),
            );
        }
    })
}

/// Copies 16 bytes through L1 as well.
///
/// `cp.async.ca.shared.global [to], [from], 16`
///
/// # Safety
/// As for [`copy_cg`].
#[inline(always)]
pub unsafe fn copy_ca(to: u32, from: *const u8) {
    device!((to, from) => {
        // SAFETY: this function's contract requires valid, aligned addresses.
        unsafe {
            core::arch::asm!(
                "cp.async.ca.shared.global [{0}], [{1}], 16;",
                in(reg32) to,
                in(reg64) from,
                options(nostack, preserves_flags),
            );
        }
    })
}

/// Copies the first `bytes` (0 to 16) of 16 bytes, and fills the rest with zeros. Meant for the incomplete end of a
/// tile.
///
/// `cp.async.cg.shared.global [to], [from], 16, bytes`
///
/// # Safety
/// As for [`copy_cg`], but only the first `bytes` bytes of `from` need be valid.
#[inline(always)]
pub unsafe fn copy_cg_zero_fill(to: u32, from: *const u8, bytes: u32) {
    device!((to, from, bytes) => {
        // SAFETY: this function's contract requires that `to` and the first `bytes` bytes of `from` are valid and
        // aligned.
        unsafe {
            core::arch::asm!(
                "cp.async.cg.shared.global [{0}], [{1}], 16, {2};",
                in(reg32) to,
                in(reg64) from,
                in(reg32) bytes,
                options(nostack, preserves_flags),
            );
        }
    })
}

/// Closes the group of all copies that this thread has issued since the previous call.
///
/// `cp.async.commit_group`
#[inline(always)]
pub fn commit() {
    // SAFETY: groups the thread's own copies and accesses no memory.
    device!(() => unsafe { core::arch::asm!("cp.async.commit_group;", options(nostack, preserves_flags)) })
}

/// Waits until at most `PENDING` of this thread's groups, the newest, are still in flight.
///
/// `cp.async.wait_group PENDING`
#[inline(always)]
pub fn wait<const PENDING: u32>() {
    device!(() => {
        // SAFETY: only waits for the thread's own copies.
        unsafe {
            core::arch::asm!("cp.async.wait_group {0};", const PENDING, options(nostack, preserves_flags));
        }
    })
}
