//! `cp.async.bulk`: bulk copies between global and shared memory that a single thread starts. Hopper.
//!
//! A copy to shared memory reports the copied bytes to an [`mbarrier`](super::mbarrier), where a thread must announce
//! them. Copies to global memory are closed into groups with [`commit`]. The thread that started them waits for them
//! with [`wait`] or [`wait_read`]. Sizes and both addresses are multiples of 16 bytes. To copy tiles of tensors, use
//! [`tensor`](super::tensor).

/// Copies to shared memory of this block and reports the bytes to an mbarrier.
///
/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [from], bytes, [barrier]`
///
/// # Safety
/// `to` and `barrier` are offsets in shared memory, and `from` is in global memory. All are valid and aligned. The
/// destination is neither read nor written before the mbarrier's phase ends, and the source is not written.
#[inline(always)]
pub unsafe fn load(to: u32, from: *const u8, bytes: u32, barrier: u32) {
    device!((to, from, bytes, barrier) => {
        // SAFETY: this function's contract requires valid, aligned addresses.
        unsafe {
            core::arch::asm!(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{0}], [{1}], {2}, [{3}];",
                in(reg32) to,
                in(reg64) from,
                in(reg32) bytes,
                in(reg32) barrier,
                options(nostack, preserves_flags),
            );
        }
    })
}

/// [`load`] to the same offset in several blocks of the cluster, selected by the bits of `blocks`. The copy reports to
/// each block's own mbarrier, also at the same offset.
///
/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [to], [from], bytes, [barrier], blocks`
///
/// # Safety
/// As for [`load`], in each of these blocks, and none of them has exited.
#[inline(always)]
pub unsafe fn load_multicast(to: u32, from: *const u8, bytes: u32, barrier: u32, blocks: u16) {
    device!((to, from, bytes, barrier, blocks) => {
        // SAFETY: this function's contract requires valid, aligned addresses.
        unsafe {
            core::arch::asm!(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster \
                 [{0}], [{1}], {2}, [{3}], {4};",
                in(reg32) to,
                in(reg64) from,
                in(reg32) bytes,
                in(reg32) barrier,
                in(reg16) blocks,
                options(nostack, preserves_flags),
            );
        }
    })
}

/// Copies from the block's shared memory to global memory.
///
/// `cp.async.bulk.global.shared::cta.bulk_group [to], [from], bytes`
///
/// # Safety
/// As for [`load`]. The source is not written before [`wait_read`], and earlier stores to it are fenced by
/// [`fence::proxy_async_shared`](super::fence::proxy_async_shared).
#[inline(always)]
pub unsafe fn store(to: *mut u8, from: u32, bytes: u32) {
    device!((to, from, bytes) => {
        // SAFETY: this function's contract requires valid, aligned addresses.
        unsafe {
            core::arch::asm!(
                "cp.async.bulk.global.shared::cta.bulk_group [{0}], [{1}], {2};",
                in(reg64) to,
                in(reg32) from,
                in(reg32) bytes,
                options(nostack, preserves_flags),
            );
        }
    })
}

/// Closes the group of all copies to global memory that this thread has started since the previous call.
///
/// `cp.async.bulk.commit_group`
#[inline(always)]
pub fn commit() {
    // SAFETY: groups the thread's own copies and accesses no memory.
    device!(() => unsafe { core::arch::asm!("cp.async.bulk.commit_group;", options(nostack, preserves_flags)) })
}

/// Waits until at most `PENDING` of this thread's groups, the newest, are still in flight to global memory.
///
/// `cp.async.bulk.wait_group PENDING`
#[inline(always)]
pub fn wait<const PENDING: u32>() {
    device!(() => {
        // SAFETY: only waits for the thread's own copies.
        unsafe {
            core::arch::asm!("cp.async.bulk.wait_group {0};", const PENDING, options(nostack, preserves_flags));
        }
    })
}

/// Waits until at most `PENDING` of this thread's groups, the newest, are still reading shared memory.
///
/// `cp.async.bulk.wait_group.read PENDING`
#[inline(always)]
pub fn wait_read<const PENDING: u32>() {
    device!(() => {
        // SAFETY: only waits for the thread's own copies.
        unsafe {
            core::arch::asm!("cp.async.bulk.wait_group.read {0};", const PENDING, options(nostack, preserves_flags));
        }
    })
}
