//! `mma.sync`: a warp multiplies 16-bit matrices on the tensor cores and accumulates in `f32`:
//! D (16 x 8) = A (16 x 16) B (16 x 8) + C.
//!
//! The elements in lane `l`, with `r = l / 4` and `c = 2 * (l % 4)`. A pair is two neighbours in a row of A or a column
//! of B:
//!
//! | operand | registers |
//! | --- | --- |
//! | A, four pairs | `(r, c..)`, `(r + 8, c..)`, `(r, c + 8..)`, `(r + 8, c + 8..)` |
//! | B, two pairs | rows `c..` and `c + 8..` of column `r` |
//! | C and D, four `f32` | `(r, c)`, `(r, c + 1)`, `(r + 8, c)`, `(r + 8, c + 1)` |
//!
//! The functions are collectives: all lanes of the warp execute the same call together.

macro_rules! mma {
    ($($name:ident = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// All lanes of the warp call this together.
        #[inline(always)]
        pub unsafe fn $name(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
            device!((a, b, c) => {
                let [mut d0, mut d1, mut d2, mut d3] = c;
                // SAFETY: this function's contract requires that all lanes of the warp call it together. The assembly
                // is volatile and never `pure`, for the reason given in the documentation of `ptx`.
                unsafe {
                    core::arch::asm!(
                        concat!(
                            $instruction,
                            " {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};"
                        ),
                        inout(reg32) d0, inout(reg32) d1, inout(reg32) d2, inout(reg32) d3,
                        in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
                        in(reg32) b[0], in(reg32) b[1],
                        options(nomem, nostack, preserves_flags),
                    );
                }
                [d0, d1, d2, d3]
            })
        }
    )*};
}

mma! {
    m16n8k16_f16 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "Multiplies `f16` matrices and returns D.";
    m16n8k16_bf16 = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "Multiplies `bf16` matrices and returns D.";
}
