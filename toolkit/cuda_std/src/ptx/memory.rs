//! 16-byte loads and stores of global memory with cache hints.
//!
//! A plain `*pointer` access of a [`Vector`] is already a 16-byte access. Use these functions if you know how the data
//! will be used next.

use crate::vector::Vector;

macro_rules! loads {
    ($($name:ident = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// The pointer is valid, in global memory, and aligned to 16 bytes.
        #[inline(always)]
        pub unsafe fn $name(from: *const Vector) -> Vector {
            device!((from) => {
                let (a, b, c, d): (u32, u32, u32, u32);
                // SAFETY: this function's contract requires a valid, aligned pointer.
                unsafe {
                    core::arch::asm!(
                        concat!($instruction, " {{{0}, {1}, {2}, {3}}}, [{4}];"),
                        out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
                        in(reg64) from,
                        options(readonly, nostack, preserves_flags),
                    );
                }
                Vector([a, b, c, d])
            })
        }
    )*};
}

macro_rules! stores {
    ($($name:ident = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// The pointer is valid, in global memory, and aligned to 16 bytes.
        #[inline(always)]
        pub unsafe fn $name(to: *mut Vector, vector: Vector) {
            device!((to, vector) => {
                let Vector([a, b, c, d]) = vector;
                // SAFETY: this function's contract requires a valid, aligned pointer.
                unsafe {
                    core::arch::asm!(
                        concat!($instruction, " [{4}], {{{0}, {1}, {2}, {3}}};"),
                        in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
                        in(reg64) to,
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    )*};
}

loads! {
    load_streaming = "ld.global.cs.v4.b32", "Loads data that is read only once. The cache evicts it first.";
    load_l2 = "ld.global.cg.v4.b32", "Loads through L2 only, for data that other blocks wrote in this launch.";
    load_constant = "ld.global.nc.v4.b32", "Loads data that no thread writes during the launch.";
}

stores! {
    store_streaming = "st.global.cs.v4.b32", "Stores data that is not read again soon. The cache evicts it first.";
    store_l2 = "st.global.cg.v4.b32", "Stores to L2, where other blocks can read it.";
}
