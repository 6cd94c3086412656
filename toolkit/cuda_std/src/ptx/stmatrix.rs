//! `stmatrix`: a warp stores 8 x 8 matrices of 16-bit elements to shared memory. This is the reverse of
//! [`ldmatrix`](super::ldmatrix), with the same layout over the lanes. Hopper.
//!
//! The lanes pass the rows' addresses in the same way, as offsets in shared memory. All functions are collectives.

macro_rules! stores {
    ($($name:ident($($i:literal)*) = $instruction:literal $list:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// All lanes of the warp call this together. The rows are in shared memory, valid and aligned to 16 bytes.
        #[inline(always)]
        pub unsafe fn $name(row: u32, matrices: [u32; [$($i),*].len()]) {
            device!((row, matrices) => {
                // SAFETY: this function's contract requires that all lanes call it together with valid rows.
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
    store_x1(0) = "stmatrix.sync.aligned.m8n8.x1.shared.b16" "{1}", "Stores one matrix. Lanes 0 to 7 pass its rows.";
    store_x2(0 1) = "stmatrix.sync.aligned.m8n8.x2.shared.b16" "{1}, {2}", "Stores two matrices. Lanes 0 to 15 pass their rows.";
    store_x4(0 1 2 3) = "stmatrix.sync.aligned.m8n8.x4.shared.b16" "{1}, {2}, {3}, {4}", "Stores four matrices. Every lane passes a row.";
    store_x4_trans(0 1 2 3) = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16" "{1}, {2}, {3}, {4}",
        "[`store_x4`], each matrix transposed.";
}
