//! Thread indices, and barriers and fences of a block.

#[cfg(target_arch = "nvptx64")]
use core::arch::nvptx as arch;

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn barrier_count(id: u32, threads: u32);
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    fn barrier_arrive(id: u32, threads: u32);
    #[link_name = "llvm.nvvm.membar.cta"]
    fn membar_cta();
    #[link_name = "llvm.nvvm.membar.gl"]
    fn membar_gl();
    #[link_name = "llvm.nvvm.membar.sys"]
    fn membar_sys();
}

macro_rules! indices {
    ($($name:ident = $intrinsic:ident, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[inline(always)]
        pub fn $name() -> u32 {
            // SAFETY: reads a special register and accesses no memory.
            device!(() => unsafe { arch::$intrinsic() as u32 })
        }
    )*};
}

indices! {
    thread_idx_x = _thread_idx_x, "The thread's index in its block, x.";
    thread_idx_y = _thread_idx_y, "The thread's index in its block, y.";
    thread_idx_z = _thread_idx_z, "The thread's index in its block, z.";
    block_idx_x = _block_idx_x, "The block's index in the grid, x.";
    block_idx_y = _block_idx_y, "The block's index in the grid, y.";
    block_idx_z = _block_idx_z, "The block's index in the grid, z.";
    block_dim_x = _block_dim_x, "Threads per block, x.";
    block_dim_y = _block_dim_y, "Threads per block, y.";
    block_dim_z = _block_dim_z, "Threads per block, z.";
    grid_dim_x = _grid_dim_x, "Blocks in the grid, x.";
    grid_dim_y = _grid_dim_y, "Blocks in the grid, y.";
    grid_dim_z = _grid_dim_z, "Blocks in the grid, z.";
}

/// Returns the thread's index in a one-dimensional grid.
#[inline(always)]
pub fn index_1d() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

/// Returns the thread's (x, y) index in a two-dimensional grid.
#[inline(always)]
pub fn index_2d() -> [u32; 2] {
    [index_1d(), block_idx_y() * block_dim_y() + thread_idx_y()]
}

/// Returns the thread's index in its block, over all three dimensions.
#[inline(always)]
pub fn thread_idx() -> u32 {
    (thread_idx_z() * block_dim_y() + thread_idx_y()) * block_dim_x() + thread_idx_x()
}

/// Waits until all threads of the block have arrived, and makes their earlier writes to shared and global memory
/// visible to each other. Every thread of the block must reach it, through the same call.
#[inline(always)]
pub fn sync_threads() {
    // SAFETY: a barrier accesses no memory. The kernel that calls this ensures that all threads reach it.
    device!(() => unsafe { arch::_syncthreads() })
}

/// [`sync_threads`] for `threads` threads of the block, at barrier `id`. `id` is 1 to 15, because [`sync_threads`] uses
/// 0.
///
/// # Safety
/// `threads` is a multiple of the warp size, and exactly that many threads call this or [`arrive_named`] for the
/// barrier.
#[inline(always)]
pub unsafe fn sync_named(id: u32, threads: u32) {
    // SAFETY: this function's contract requires that exactly `threads` threads, in whole warps, use the barrier.
    device!((id, threads) => unsafe { barrier_count(id, threads) })
}

/// Arrives at barrier `id` without waiting.
///
/// # Safety
/// As for [`sync_named`].
#[inline(always)]
pub unsafe fn arrive_named(id: u32, threads: u32) {
    // SAFETY: this function's contract requires that exactly `threads` threads, in whole warps, use the barrier.
    device!((id, threads) => unsafe { barrier_arrive(id, threads) })
}

/// Orders this thread's memory accesses before the fence and after it, as seen by the block's threads.
#[inline(always)]
pub fn block_fence() {
    // SAFETY: a fence orders memory accesses and makes none.
    device!(() => unsafe { membar_cta() })
}

/// Like [`block_fence`], as seen by the whole device.
#[inline(always)]
pub fn device_fence() {
    // SAFETY: a fence orders memory accesses and makes none.
    device!(() => unsafe { membar_gl() })
}

/// Like [`block_fence`], as seen by the whole device, other devices and the host.
#[inline(always)]
pub fn system_fence() {
    // SAFETY: a fence orders memory accesses and makes none.
    device!(() => unsafe { membar_sys() })
}
