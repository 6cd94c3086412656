//! `wgmma`: a warp group, four warps, multiplies 16-bit matrices on the tensor cores and adds in `f32`:
//! D (64 x n) = A (64 x 16) B (16 x n) + D, with factors in shared memory. Hopper.
//!
//! What lane `l` of the group's warp `w` holds of D, with `r = 16 w + l / 4` and `c = 2 * (l % 4)`: `sums[j]` is
//! `(r, 8 j + c)`, `(r, 8 j + c + 1)`, `(r + 8, 8 j + c)`, `(r + 8, 8 j + c + 1)`, as with [`mma`](super::mma). A in registers
//! is as there, too: `(r, c..)`, `(r + 8, c..)`, `(r, c + 8..)`, `(r + 8, c + 8..)`.
//!
//! # One statement
//!
//! The hardware works on the sums while the threads go on, so that nobody may touch their registers before the products
//! are waited for. Rust has no way to say this of values: the compiler may move them anywhere between two statements.
//! Hence each function is whole: `wgmma.fence`, one product or several, `wgmma.commit_group`, `wgmma.wait_group 0`. The
//! tensor cores stay busy with the products of another warp group of the block meanwhile; that takes two of them.
//!
//! The sums stay in registers if every index into them is a constant (see [`unroll`](mod@crate::unroll)).
//!
//! Collectives: all threads of the warp group execute the same one together. What other threads wrote to the factors is
//! behind [`fence::proxy_async_shared`](super::fence::proxy_async_shared) and a barrier; what copies brought is behind their
//! mbarrier.

use super::pattern::TilePattern;

/// How a factor lies in shared memory, for descriptors that tell `wgmma` so.
///
/// A factor is *K-major* if the elements of a row of A, or of a column of B, follow each other, and else *MN-major*. Its
/// smallest parts are 8 x 8 matrices of 8 rows of 16 bytes; a row here is along memory. What `leading` and `stride` are
/// depends on both:
///
/// | | `leading` | `stride` |
/// | --- | --- | --- |
/// | K-major, no pattern | from one matrix to the next along K | along M or N |
/// | MN-major, no pattern | from one to the next along K | along M or N |
/// | K-major, with a pattern | not used | from eight rows of the pattern to the next eight |
/// | MN-major, with a pattern | from one row of the pattern to the next along M or N | from eight of K to the next |
///
/// A factor with a pattern begins at a multiple of eight of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout(u64);

impl MatrixLayout {
    /// K-major rows of 64 elements, which lie as a tensor copy with [`TilePattern::Bytes128`] leaves a tile of 64 elements
    /// a row.
    pub const ROWS_OF_128_BYTES: MatrixLayout = MatrixLayout::new(TilePattern::Bytes128, 16, 1024);

    /// Distances are in bytes, multiples of 16 below 256 KiB.
    pub const fn new(pattern: TilePattern, leading: u32, stride: u32) -> MatrixLayout {
        let code = match pattern {
            TilePattern::Plain => 0,
            TilePattern::Bytes128 => 1,
            TilePattern::Bytes64 => 2,
            TilePattern::Bytes32 => 3,
        };
        MatrixLayout(field(leading) << 16 | field(stride) << 32 | code << 62)
    }

    /// The descriptor of a factor that begins at an offset in shared memory.
    #[inline(always)]
    pub const fn at(self, offset: u32) -> u64 {
        self.0 | field(offset)
    }

    /// The descriptors of eight factors, the first of which begins at an offset in shared memory, and each other one so many bytes
    /// further.
    #[inline(always)]
    pub const fn along(self, offset: u32, bytes: u32) -> [u64; 8] {
        let (high, low, step) = (self.0 >> 32 << 32, self.at(offset) as u32, bytes / 16);
        [
            high | low as u64,
            high | (low + step) as u64,
            high | (low + 2 * step) as u64,
            high | (low + 3 * step) as u64,
            high | (low + 4 * step) as u64,
            high | (low + 5 * step) as u64,
            high | (low + 6 * step) as u64,
            high | (low + 7 * step) as u64,
        ]
    }
}

/// The lower half of the descriptor of a factor of K-major rows of 64 elements ([`MatrixLayout::ROWS_OF_128_BYTES`]), which
/// begins at an offset in shared memory; the upper half is the same for all. A factor that begins so many bytes further has a
/// descriptor that is a 16th of them greater.
#[inline(always)]
pub const fn row_descriptor(offset: u32) -> u32 {
    MatrixLayout::ROWS_OF_128_BYTES.at(offset) as u32
}

/// A place or distance as descriptors have it.
#[inline(always)]
const fn field(bytes: u32) -> u64 {
    ((bytes & 0x3_ffff) >> 4) as u64
}

/// Descriptor bits of 16 elements further along rows of 64 elements.
pub(super) const STEP: u32 = 2;

macro_rules! products {
    ($ty:literal $n:literal [$($i:literal)*] [$($list:literal)*] $one:ident $four:ident $first:ident $registers:ident) => {
        #[doc = concat!("Multiplies `", $ty, "` by 16 along K; `adds` says whether to add to the sums, or to replace them.")]
        #[doc = concat!("\n\n`wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, "`")]
        ///
        /// `A_MN` and `B_MN` are 1 for a factor that is MN-major, and else 0.
        ///
        /// # Safety
        /// All threads of the warp group call this together; the descriptors are those of factors in shared memory, which
        /// nobody writes meanwhile.
        #[inline(always)]
        pub unsafe fn $one<const A_MN: u32, const B_MN: u32>(
            sums: &mut [[f32; 4]; $n / 8],
            a: u64,
            b: u64,
            adds: bool,
        ) {
            device!((sums, a, b, adds) => {
                // SAFETY: all threads of the warp group are here and the factors are valid, by this function's contract.
                unsafe {
                    core::arch::asm!(
                        "{{",
                        ".reg .pred adds;",
                        "setp.ne.u32 adds, {adds}, 0;",
                        "wgmma.fence.sync.aligned;",
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a}, {b}, adds, 1, 1, {a_mn}, {b_mn};"
                        ),
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        "}}",
                        $(
                            inout(reg32) sums[$i][0], inout(reg32) sums[$i][1],
                            inout(reg32) sums[$i][2], inout(reg32) sums[$i][3],
                        )*
                        a = in(reg64) a,
                        b = in(reg64) b,
                        adds = in(reg32) u32::from(adds),
                        a_mn = const A_MN,
                        b_mn = const B_MN,
                        options(nostack, preserves_flags),
                    );
                }
            })
        }

        #[doc = concat!("Multiplies `", $ty, "` by 64 along K and adds: [`", stringify!($one), "`] four times, along")]
        /// K-major rows of 64 elements, whose places are [`row_descriptor`]s.
        ///
        /// # Safety
        /// As for one.
        #[inline(always)]
        pub unsafe fn $four(sums: &mut [[f32; 4]; $n / 8], a: u32, b: u32) {
            device!((sums, a, b) => {
                // SAFETY: all threads of the warp group are here and the factors are valid, by this function's contract.
                unsafe {
                    core::arch::asm!(
                        "{{",
                        ".reg .b64 a<4>, b<4>;",
                        "mov.b64 a0, {{{a0}, {high}}};",
                        "mov.b64 b0, {{{b0}, {high}}};",
                        "mov.b64 a1, {{{a1}, {high}}};",
                        "mov.b64 b1, {{{b1}, {high}}};",
                        "mov.b64 a2, {{{a2}, {high}}};",
                        "mov.b64 b2, {{{b2}, {high}}};",
                        "mov.b64 a3, {{{a3}, {high}}};",
                        "mov.b64 b3, {{{b3}, {high}}};",
                        "wgmma.fence.sync.aligned;",
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, a0, b0, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, a1, b1, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, a2, b2, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, a3, b3, 1, 1, 1, 0, 0;"
                        ),
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        "}}",
                        $(
                            inout(reg32) sums[$i][0], inout(reg32) sums[$i][1],
                            inout(reg32) sums[$i][2], inout(reg32) sums[$i][3],
                        )*
                        a0 = in(reg32) a,
                        b0 = in(reg32) b,
                        a1 = in(reg32) a + STEP,
                        b1 = in(reg32) b + STEP,
                        a2 = in(reg32) a + 2 * STEP,
                        b2 = in(reg32) b + 2 * STEP,
                        a3 = in(reg32) a + 3 * STEP,
                        b3 = in(reg32) b + 3 * STEP,
                        high = in(reg32) (MatrixLayout::ROWS_OF_128_BYTES.0 >> 32) as u32,
                        options(nostack, preserves_flags),
                    );
                }
            })
        }

        #[doc = concat!("[`", stringify!($four), "`] of new sums.")]
        ///
        /// # Safety
        /// As for one.
        #[inline(always)]
        pub unsafe fn $first(a: u32, b: u32) -> [[f32; 4]; $n / 8] {
            device!((a, b) => {
                let mut sums = [[0.0; 4]; $n / 8];
                // SAFETY: all threads of the warp group are here and the factors are valid, by this function's contract.
                unsafe {
                    core::arch::asm!(
                        "{{",
                        ".reg .b64 a<4>, b<4>;",
                        "mov.b64 a0, {{{a0}, {high}}};",
                        "mov.b64 b0, {{{b0}, {high}}};",
                        "mov.b64 a1, {{{a1}, {high}}};",
                        "mov.b64 b1, {{{b1}, {high}}};",
                        "mov.b64 a2, {{{a2}, {high}}};",
                        "mov.b64 b2, {{{b2}, {high}}};",
                        "mov.b64 a3, {{{a3}, {high}}};",
                        "mov.b64 b3, {{{b3}, {high}}};",
                        "wgmma.fence.sync.aligned;",
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, a0, b0, 0, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, a1, b1, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, a2, b2, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, a3, b3, 1, 1, 1, 0, 0;"
                        ),
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        "}}",
                        $(
                            out(reg32) sums[$i][0], out(reg32) sums[$i][1],
                            out(reg32) sums[$i][2], out(reg32) sums[$i][3],
                        )*
                        a0 = in(reg32) a,
                        b0 = in(reg32) b,
                        a1 = in(reg32) a + STEP,
                        b1 = in(reg32) b + STEP,
                        a2 = in(reg32) a + 2 * STEP,
                        b2 = in(reg32) b + 2 * STEP,
                        a3 = in(reg32) a + 3 * STEP,
                        b3 = in(reg32) b + 3 * STEP,
                        high = in(reg32) (MatrixLayout::ROWS_OF_128_BYTES.0 >> 32) as u32,
                        options(nostack, preserves_flags),
                    );
                }
                sums
            })
        }

        #[doc = concat!("[`", stringify!($one), "`] with A in registers.")]
        ///
        /// # Safety
        /// As for A in shared memory.
        #[inline(always)]
        pub unsafe fn $registers<const B_MN: u32>(
            sums: &mut [[f32; 4]; $n / 8],
            a: [u32; 4],
            b: u64,
            adds: bool,
        ) {
            device!((sums, a, b, adds) => {
                // SAFETY: all threads of the warp group are here and the factor is valid, by this function's contract.
                unsafe {
                    core::arch::asm!(
                        "{{",
                        ".reg .pred adds;",
                        "setp.ne.u32 adds, {adds}, 0;",
                        "wgmma.fence.sync.aligned;",
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, adds, 1, 1, {b_mn};"
                        ),
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        "}}",
                        $(
                            inout(reg32) sums[$i][0], inout(reg32) sums[$i][1],
                            inout(reg32) sums[$i][2], inout(reg32) sums[$i][3],
                        )*
                        a0 = in(reg32) a[0],
                        a1 = in(reg32) a[1],
                        a2 = in(reg32) a[2],
                        a3 = in(reg32) a[3],
                        b = in(reg64) b,
                        adds = in(reg32) u32::from(adds),
                        b_mn = const B_MN,
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    };
}

/// The operands of the sums: the blocks of eight columns, and the registers of each.
macro_rules! both_types {
    ($($n:literal $indices:tt $list:tt $f16:tt $bf16:tt;)*) => {$(
        typed!("f16" $n $indices $list $f16);
        typed!("bf16" $n $indices $list $bf16);
    )*};
}

macro_rules! typed {
    ($ty:literal $n:literal $indices:tt $list:tt [$($names:ident)*]) => { products!($ty $n $indices $list $($names)*); };
}

both_types! {
    8
    [0]
    ["{0}, {1}, {2}, {3}"]
    [m64n8k16_f16 m64n8k64_f16 m64n8k64_f16_first m64n8k16_f16_registers]
    [m64n8k16_bf16 m64n8k64_bf16 m64n8k64_bf16_first m64n8k16_bf16_registers];
    16
    [0 1]
    ["{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}"]
    [m64n16k16_f16 m64n16k64_f16 m64n16k64_f16_first m64n16k16_f16_registers]
    [m64n16k16_bf16 m64n16k64_bf16 m64n16k64_bf16_first m64n16k16_bf16_registers];
    32
    [0 1 2 3]
    ["{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}"]
    [m64n32k16_f16 m64n32k64_f16 m64n32k64_f16_first m64n32k16_f16_registers]
    [m64n32k16_bf16 m64n32k64_bf16 m64n32k64_bf16_first m64n32k16_bf16_registers];
    64
    [0 1 2 3 4 5 6 7]
    [
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, "
        "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}"
    ]
    [m64n64k16_f16 m64n64k64_f16 m64n64k64_f16_first m64n64k16_f16_registers]
    [m64n64k16_bf16 m64n64k64_bf16 m64n64k64_bf16_first m64n64k16_bf16_registers];
    128
    [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
    [
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, "
        "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, "
        "{32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, "
        "{48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}"
    ]
    [m64n128k16_f16 m64n128k64_f16 m64n128k64_f16_first m64n128k16_f16_registers]
    [m64n128k16_bf16 m64n128k64_bf16 m64n128k64_bf16_first m64n128k16_bf16_registers];
    256
    [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]
    [
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, "
        "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, "
        "{32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, "
        "{48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}, "
        "{64}, {65}, {66}, {67}, {68}, {69}, {70}, {71}, {72}, {73}, {74}, {75}, {76}, {77}, {78}, {79}, "
        "{80}, {81}, {82}, {83}, {84}, {85}, {86}, {87}, {88}, {89}, {90}, {91}, {92}, {93}, {94}, {95}, "
        "{96}, {97}, {98}, {99}, {100}, {101}, {102}, {103}, {104}, {105}, {106}, {107}, {108}, {109}, {110}, {111}, "
        "{112}, {113}, {114}, {115}, {116}, {117}, {118}, {119}, {120}, {121}, {122}, {123}, {124}, {125}, {126}, {127}"
    ]
    [m64n256k16_f16 m64n256k64_f16 m64n256k64_f16_first m64n256k16_f16_registers]
    [m64n256k16_bf16 m64n256k64_bf16 m64n256k64_bf16_first m64n256k16_bf16_registers];
}
