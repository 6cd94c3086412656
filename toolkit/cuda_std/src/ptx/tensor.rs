//! `cp.async.bulk.tensor` (TMA): copies of tiles of tensors between global and shared memory, which a single thread
//! starts. Hopper.
//!
//! A [`CuTensorMap`] says what the tensor is, how large the tiles are and in what order they lie in shared memory. A copy is
//! told where its tile begins, in elements along each dimension, innermost first. What of a tile lies outside of the
//! tensor is zero when it is loaded, and is not stored. Waiting is as for [`bulk`](super::bulk) copies; a tile in shared
//! memory is aligned to 128 bytes, and if its order has a pattern to eight rows of that.

/// A tensor and the shape of its tiles: the driver's `CUtensorMap`.
///
/// A kernel has it as a parameter `&CuTensorMap`; on the host that is a [`TensorTile`](crate::launch::TensorTile), from which
/// the launch has the driver make a map. It lies among the launch's parameters, so that nothing has to be kept or copied.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CuTensorMap([u64; 16]);

/// The bytes of a map as an entry declares them. The builder sees to their alignment, which the compiler does not know.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
#[repr(C, align(16))]
pub struct TensorParam([u64; 16]);

macro_rules! copies {
    ($($rank:literal $load:ident $multicast:ident $store:ident [$($i:literal)*] $list:literal
        $barrier:literal $blocks:literal;)*) => {$(
        #[doc = concat!("Loads a tile of a tensor of rank ", $rank, ", and tells an mbarrier of this block of all its bytes.")]
        #[doc = concat!(
            "\n\n`cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes`"
        )]
        ///
        /// # Safety
        /// `to` and `barrier` are offsets in shared memory, with room for a tile and aligned; the map is for this rank, and its
        /// tensor is there. The tile is neither read nor written before the mbarrier's phase is over.
        #[inline(always)]
        pub unsafe fn $load(to: u32, map: &CuTensorMap, at: [i32; $rank], barrier: u32) {
            device!((to, map, at, barrier) => {
                // SAFETY: tensor, tile and mbarrier are as the instruction needs them, by this function's contract.
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

        #[doc = concat!("[`", stringify!($load), "`] to the same place in those blocks of the cluster whose bits are set in")]
        /// `blocks`; each block's own mbarrier is told, at the same offset.
        #[doc = concat!(
            "\n\n`cp.async.bulk.tensor.", $rank,
            "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster`"
        )]
        ///
        /// # Safety
        /// As for one block, in each of them, none of which has ended.
        #[inline(always)]
        pub unsafe fn $multicast(to: u32, map: &CuTensorMap, at: [i32; $rank], barrier: u32, blocks: u16) {
            device!((to, map, at, barrier, blocks) => {
                // SAFETY: tensor, tile and mbarriers are as the instruction needs them, by this function's contract.
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

        #[doc = concat!("Stores a tile of a tensor of rank ", $rank, ", in a group of this thread's.")]
        #[doc = concat!("\n\n`cp.async.bulk.tensor.", $rank, "d.global.shared::cta.tile.bulk_group`")]
        ///
        /// # Safety
        /// As for loads; the tile is not written before [`bulk::wait_read`](super::bulk::wait_read), and what threads stored
        /// there is fenced by [`fence::proxy_async_shared`](super::fence::proxy_async_shared).
        #[inline(always)]
        pub unsafe fn $store(map: &CuTensorMap, at: [i32; $rank], from: u32) {
            device!((map, at, from) => {
                // SAFETY: tensor and tile are as the instruction needs them, by this function's contract.
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
