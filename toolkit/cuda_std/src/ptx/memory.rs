//! Loads and stores of 16 bytes in global memory that say how the caches are to treat them.
//!
//! A plain `*pointer` of [`Vector`] is a 16-byte access already; these are for data with a known future.

use crate::vector::Vector;

macro_rules! loads {
    ($($name:ident = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// The pointer is to global memory, valid and aligned to 16 bytes.
        #[inline(always)]
        pub unsafe fn $name(from: *const Vector) -> Vector {
            device!((from) => {
                let (a, b, c, d): (u32, u32, u32, u32);
                // SAFETY: the pointer is valid and aligned, by this function's contract.
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
        /// The pointer is to global memory, valid and aligned to 16 bytes.
        #[inline(always)]
        pub unsafe fn $name(to: *mut Vector, vector: Vector) {
            device!((to, vector) => {
                let Vector([a, b, c, d]) = vector;
                // SAFETY: the pointer is valid and aligned, by this function's contract.
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
    load_streaming = "ld.global.cs.v4.b32", "Loads what is read once: first to be evicted.";
    load_l2 = "ld.global.cg.v4.b32", "Loads through L2 only: what other blocks wrote in this launch.";
    load_constant = "ld.global.nc.v4.b32", "Loads what nobody writes during the launch.";
}

stores! {
    store_streaming = "st.global.cs.v4.b32", "Stores what is not read soon: first to be evicted.";
    store_l2 = "st.global.cg.v4.b32", "Stores to L2, where other blocks find it.";
}
