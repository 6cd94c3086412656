//! `cp.async.bulk.tensor` (TMA): copies of tensor tiles between global and shared memory that a single thread starts.
//! Hopper.
//!
//! A [`CuTensorMap`] describes the tensor, the size of its tiles and their order in shared memory. A copy takes the
//! start of its tile, in elements along each dimension, innermost first. Elements of a tile outside the tensor are zero
//! after a load, and are not stored. Threads wait for these copies as for [`bulk`](super::bulk) copies. A tile in
//! shared memory is aligned to 128 bytes. If it has a pattern, it is aligned to eight rows of the pattern.

/// A tensor and the shape of its tiles: the driver's `CUtensorMap`.
///
/// A kernel takes it as a parameter `&CuTensorMap`. On the host the argument is a
/// [`TensorTile`](crate::launch::TensorTile), and the launch asks the driver to create the map. The map is passed among
/// the launch's parameters, so the caller need not keep or copy it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CuTensorMap([u64; 16]);

/// The bytes of a map as a PTX entry declares them. The builder sets their alignment, which the compiler does not know.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
#[repr(C, align(16))]
pub struct TensorParam([u64; 16]);

macro_rules! copies {
    ($($rank:literal $load:ident $multicast:ident $store:ident [$($i:literal)*] $list:literal
        $barrier:literal $blocks:literal;)*) => {$(
        #[doc = concat!("Loads a tile of a tensor of rank ", $rank, ", and reports all its bytes to an mbarrier of this block.")]
        #[doc = concat!(
            "\n\n`cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes`"
        )]
        ///
        /// # Safety
        /// `to` and `barrier` are aligned offsets in shared memory, and `to` has space for a tile. The map has this
        /// rank, and its tensor is valid. The tile is neither read nor written before the mbarrier's phase ends.
        #[inline(always)]
        pub unsafe fn $load(to: u32, map: &CuTensorMap, at: [i32; $rank], barrier: u32) {
            device!((to, map, at, barrier) => {
                // SAFETY: this function's contract requires a valid tensor, tile and mbarrier.
                unsafe {
                    core::arch::asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes ",
                            "[{0}], [{1}, ", $list, "], [", $barrier, "];"
                        ),
                        in(reg32) to,
                        in(reg64) core::ptr::from_ref(map),
                        $(in(reg32) at[$i],)*
                        in(reg32) barrier,
                        options(nostack, preserves_flags),
                    );
                }
            })
        }

        #[doc = concat!("[`", stringify!($load), "`] to the same offset in several blocks of the cluster, selected by the bits of")]
        /// `blocks`. The copy reports to each block's own mbarrier, also at the same offset.
        #[doc = concat!(
            "\n\n`cp.async.bulk.tensor.", $rank,
            "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster`"
        )]
        ///
        /// # Safety
        /// As for one block, in each of them, and none of them has exited.
        #[inline(always)]
        pub unsafe fn $multicast(to: u32, map: &CuTensorMap, at: [i32; $rank], barrier: u32, blocks: u16) {
            device!((to, map, at, barrier, blocks) => {
                // SAFETY: this function's contract requires a valid tensor, tiles and mbarriers.
                unsafe {
                    core::arch::asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $rank,
                            "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster ",
                            "[{0}], [{1}, ", $list, "], [", $barrier, "], ", $blocks, ";"
                        ),
                        in(reg32) to,
                        in(reg64) core::ptr::from_ref(map),
                        $(in(reg32) at[$i],)*
                        in(reg32) barrier,
                        in(reg16) blocks,
                        options(nostack, preserves_flags),
                    );
                }
            })
        }

        #[doc = concat!("Stores a tile of a tensor of rank ", $rank, ", in a bulk group of this thread.")]
        #[doc = concat!("\n\n`cp.async.bulk.tensor.", $rank, "d.global.shared::cta.tile.bulk_group`")]
        ///
        /// # Safety
        /// As for loads. The tile is not written before [`bulk::wait_read`](super::bulk::wait_read), and earlier stores
        /// to it are fenced by [`fence::proxy_async_shared`](super::fence::proxy_async_shared).
        #[inline(always)]
        pub unsafe fn $store(map: &CuTensorMap, at: [i32; $rank], from: u32) {
            device!((map, at, from) => {
                // SAFETY: this function's contract requires a valid tensor and tile.
                unsafe {
                    core::arch::asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $rank, "d.global.shared::cta.tile.bulk_group ",
                            "[{1}, ", $list, "], [{0}];"
                        ),
                        in(reg32) from,
                        in(reg64) core::ptr::from_ref(map),
                        $(in(reg32) at[$i],)*
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    )*};
}

copies! {
    1 load_1d load_1d_multicast store_1d [0] "{{{2}}}" "{3}" "{4}";
    2 load_2d load_2d_multicast store_2d [0 1] "{{{2}, {3}}}" "{4}" "{5}";
    3 load_3d load_3d_multicast store_3d [0 1 2] "{{{2}, {3}, {4}}}" "{5}" "{6}";
    4 load_4d load_4d_multicast store_4d [0 1 2 3] "{{{2}, {3}, {4}, {5}}}" "{6}" "{7}";
    5 load_5d load_5d_multicast store_5d [0 1 2 3 4] "{{{2}, {3}, {4}, {5}, {6}}}" "{7}" "{8}";
}
