//! Clusters: blocks that run at the same time on neighbouring multiprocessors and can access each other's shared
//! memory. Hopper.

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

/// Returns the block's rank in its cluster. `%cluster_ctarank`
#[inline(always)]
pub fn rank() -> u32 {
    // SAFETY: reads a special register and accesses no memory.
    device!(() => unsafe { ctarank() })
}

/// Returns the number of blocks in the cluster. `%cluster_nctarank`
#[inline(always)]
pub fn size() -> u32 {
    // SAFETY: reads a special register and accesses no memory.
    device!(() => unsafe { nctarank() })
}

/// Arrives at the cluster's barrier. Threads that [`wait`] there see everything that this thread wrote before.
///
/// `barrier.cluster.arrive.aligned`
///
/// # Safety
/// All threads of the cluster's blocks call this and then [`wait`], alternately. All lanes of a warp call it together.
#[inline(always)]
pub unsafe fn arrive() {
    // SAFETY: this function's contract requires that all threads arrive and wait alternately.
    device!(() => unsafe { arrive_aligned() })
}

/// Waits until all threads of the cluster have arrived. `barrier.cluster.wait.aligned`
///
/// # Safety
/// As for [`arrive`].
#[inline(always)]
pub unsafe fn wait() {
    // SAFETY: this function's contract requires that all threads arrive and wait alternately.
    device!(() => unsafe { wait_aligned() })
}

/// Calls [`arrive`] and [`wait`].
///
/// # Safety
/// As for [`arrive`].
#[inline(always)]
pub unsafe fn sync() {
    // SAFETY: this function has the same contract.
    unsafe {
        arrive();
        wait();
    }
}

/// Converts an offset in shared memory to the address of the same offset in block `rank` of the cluster.
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

/// Reads shared memory of any block of the cluster, at an address from [`map`]. `ld.shared::cluster.u32`
///
/// # Safety
/// That block has not exited, and the address is valid and aligned.
#[inline(always)]
pub unsafe fn load_u32(address: u32) -> u32 {
    device!((address) => {
        let value: u32;
        // SAFETY: this function's contract requires a valid address.
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

/// Writes shared memory of any block of the cluster, at an address from [`map`]. `st.shared::cluster.u32`
///
/// # Safety
/// As for [`load_u32`].
#[inline(always)]
pub unsafe fn store_u32(address: u32, value: u32) {
    device!((address, value) => {
        // SAFETY: this function's contract requires a valid address.
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
