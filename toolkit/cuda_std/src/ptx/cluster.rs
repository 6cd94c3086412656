//! Clusters: blocks that run at the same time, on neighbouring multiprocessors, and reach each other's shared memory.
//! Hopper.

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.ctarank"]
    fn ctarank() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.nctarank"]
    fn nctarank() -> u32;
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.aligned"]
    fn arrive_aligned();
    #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
    fn wait_aligned();
}

/// The block's number in its cluster. `%cluster_ctarank`
#[inline(always)]
pub fn rank() -> u32 {
    // SAFETY: reads a special register and accesses no memory.
    device!(() => unsafe { ctarank() })
}

/// Blocks in the cluster. `%cluster_nctarank`
#[inline(always)]
pub fn size() -> u32 {
    // SAFETY: reads a special register and accesses no memory.
    device!(() => unsafe { nctarank() })
}

/// Arrives at the cluster's barrier: what this thread wrote before is visible to all who [`wait`] there.
///
/// `barrier.cluster.arrive.aligned`
///
/// # Safety
/// All threads of the cluster's blocks call this, all lanes of a warp together, and then [`wait`], by turns.
#[inline(always)]
pub unsafe fn arrive() {
    // SAFETY: all threads arrive and wait by turns, by this function's contract.
    device!(() => unsafe { arrive_aligned() })
}

/// Waits until all threads of the cluster have arrived. `barrier.cluster.wait.aligned`
///
/// # Safety
/// As for [`arrive`].
#[inline(always)]
pub unsafe fn wait() {
    // SAFETY: all threads arrive and wait by turns, by this function's contract.
    device!(() => unsafe { wait_aligned() })
}

/// [`arrive`] and [`wait`].
///
/// # Safety
/// As for [`arrive`].
#[inline(always)]
pub unsafe fn sync() {
    // SAFETY: this function's contract is the same.
    unsafe {
        arrive();
        wait();
    }
}

/// Where in the cluster an offset of this block's shared memory lies in that of block `rank`.
///
/// `mapa.shared::cluster.u32`
#[inline(always)]
pub fn map(offset: u32, rank: u32) -> u32 {
    device!((offset, rank) => {
        let address: u32;
        // SAFETY: computes an address and accesses no memory.
        unsafe {
            core::arch::asm!(
                "mapa.shared::cluster.u32 {0}, {1}, {2};",
                out(reg32) address,
                in(reg32) offset,
                in(reg32) rank,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        address
    })
}

/// Reads shared memory of any block of the cluster, at an address of [`map`]. `ld.shared::cluster.u32`
///
/// # Safety
/// That block has not ended, and its memory is valid there and aligned.
#[inline(always)]
pub unsafe fn load_u32(address: u32) -> u32 {
    device!((address) => {
        let value: u32;
        // SAFETY: the address is valid, by this function's contract.
        unsafe {
            core::arch::asm!(
                "ld.shared::cluster.u32 {0}, [{1}];",
                out(reg32) value,
                in(reg32) address,
                options(nostack, preserves_flags),
            );
        }
        value
    })
}

/// Writes shared memory of any block of the cluster, at an address of [`map`]. `st.shared::cluster.u32`
///
/// # Safety
/// As for [`load_u32`].
#[inline(always)]
pub unsafe fn store_u32(address: u32, value: u32) {
    device!((address, value) => {
        // SAFETY: the address is valid, by this function's contract.
        unsafe {
            core::arch::asm!(
                "st.shared::cluster.u32 [{0}], {1};",
                in(reg32) address,
                in(reg32) value,
                options(nostack, preserves_flags),
            );
        }
    })
}
