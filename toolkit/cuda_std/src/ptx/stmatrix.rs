//! `stmatrix`: a warp stores 8 x 8 matrices of 16-bit elements to shared memory: the reverse of
//! [`ldmatrix`](super::ldmatrix), with the same layout over the lanes. Hopper.
//!
//! The rows' places come from the lanes, as there: offsets in shared memory. Collectives.

macro_rules! stores {
    ($($name:ident($($i:literal)*) = $instruction:literal $list:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// All lanes of the warp call this together; the rows are in shared memory, valid and aligned to 16 bytes.
        #[inline(always)]
        pub unsafe fn $name(row: u32, matrices: [u32; [$($i),*].len()]) {
            device!((row, matrices) => {
                // SAFETY: all lanes are here and the rows are valid, by this function's contract.
                unsafe {
                    core::arch::asm!(
                        concat!($instruction, " [{0}], {{", $list, "}};"),
                        in(reg32) row,
                        $(in(reg32) matrices[$i],)*
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    )*};
}

stores! {
    store_x1(0) = "stmatrix.sync.aligned.m8n8.x1.shared.b16" "{1}", "One matrix; lanes 0 to 7 give its rows.";
    store_x2(0 1) = "stmatrix.sync.aligned.m8n8.x2.shared.b16" "{1}, {2}", "Two matrices; lanes 0 to 15 give their rows.";
    store_x4(0 1 2 3) = "stmatrix.sync.aligned.m8n8.x4.shared.b16" "{1}, {2}, {3}, {4}", "Four matrices; every lane gives a row.";
    store_x4_trans(0 1 2 3) = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16" "{1}, {2}, {3}, {4}",
        "[`store_x4`], each matrix transposed.";
}
