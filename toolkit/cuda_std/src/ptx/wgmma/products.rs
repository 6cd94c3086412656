//! The products of `wgmma`. The table at the end lists the functions that exist, by width: 8 to 256 columns.

#[cfg(target_arch = "nvptx64")]
use super::{MatrixLayout, STEP};

/// The statement of a product by 64 along K. `$adds` is 1 for sums that are read and written (`inout`), and 0 for new
/// sums (`out`).
#[cfg(target_arch = "nvptx64")]
macro_rules! by_64 {
    (
        $ty:literal $n:literal [$($i:literal)*] [$($list:literal)*] $class:ident $adds:literal, $sums:ident, $a:ident, $b:ident
    ) => {
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
                "}}, a0, b0, ", $adds, ", 1, 1, 0, 0;"
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
                $class(reg32) $sums[$i][0], $class(reg32) $sums[$i][1],
                $class(reg32) $sums[$i][2], $class(reg32) $sums[$i][3],
            )*
            a0 = in(reg32) $a,
            b0 = in(reg32) $b,
            a1 = in(reg32) $a + STEP,
            b1 = in(reg32) $b + STEP,
            a2 = in(reg32) $a + 2 * STEP,
            b2 = in(reg32) $b + 2 * STEP,
            a3 = in(reg32) $a + 3 * STEP,
            b3 = in(reg32) $b + 3 * STEP,
            high = in(reg32) (MatrixLayout::ROWS_OF_128_BYTES.0 >> 32) as u32,
            options(nostack, preserves_flags),
        )
    };
}

/// A product by 16 along K.
macro_rules! by_16 {
    ($ty:literal $n:literal [$($i:literal)*] [$($list:literal)*] $one:ident) => {
        #[doc = concat!("Multiplies `", $ty, "` by 16 along K. If `adds` is true, adds to the sums; otherwise replaces them.")]
        #[doc = concat!("\n\n`wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, "`")]
        ///
        /// `A_MN` and `B_MN` are 1 if the factor is MN-major, and 0 otherwise.
        ///
        /// # Safety
        /// All threads of the warp group call this together. The descriptors are those of valid factors in shared
        /// memory, which no thread writes until this returns.
        #[inline(always)]
        pub unsafe fn $one<const A_MN: u32, const B_MN: u32>(
            sums: &mut [[f32; 4]; $n / 8],
            a: u64,
            b: u64,
            adds: bool,
        ) {
            device!((sums, a, b, adds) => {
                // SAFETY: this function's contract requires that all threads of the warp group call it with valid
                // factors.
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
    };
}

/// Products by 64 along K: one that adds to the sums, and one that returns new sums.
macro_rules! rows_of_64 {
    ($ty:literal $n:literal [$($i:literal)*] [$($list:literal)*] $four:ident $first:ident) => {
        #[doc = concat!("Multiplies `", $ty, "` by 64 along K-major rows of 64 elements, and adds to the sums.")]
        ///
        /// `a` and `b` are [`row_descriptor`](super::row_descriptor)s.
        ///
        /// # Safety
        /// As for one.
        #[inline(always)]
        pub unsafe fn $four(sums: &mut [[f32; 4]; $n / 8], a: u32, b: u32) {
            device!((sums, a, b) => {
                // SAFETY: this function's contract requires that all threads of the warp group call it with valid
                // factors.
                unsafe {
                    by_64!($ty $n [$($i)*] [$($list)*] inout 1, sums, a, b);
                }
            })
        }

        #[doc = concat!("[`", stringify!($four), "`], but returns new sums.")]
        ///
        /// # Safety
        /// As for one.
        #[inline(always)]
        pub unsafe fn $first(a: u32, b: u32) -> [[f32; 4]; $n / 8] {
            device!((a, b) => {
                let mut sums = [[0.0; 4]; $n / 8];
                // SAFETY: this function's contract requires that all threads of the warp group call it with valid
                // factors.
                unsafe {
                    by_64!($ty $n [$($i)*] [$($list)*] out 0, sums, a, b);
                }
                sums
            })
        }
    };
}

/// A product by 16 along K with A in registers.
macro_rules! from_registers {
    ($ty:literal $n:literal [$($i:literal)*] [$($list:literal)*] $registers:ident) => {
        #[doc = concat!("Multiplies `", $ty, "` by 16 along K, with A in registers. If `adds` is true, adds to the sums; otherwise replaces them.")]
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
                // SAFETY: this function's contract requires that all threads of the warp group call it with valid
                // factors.
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

/// The functions of each width. Each width uses the sums of the previous width and eight more columns.
macro_rules! widths {
    ([$($i:literal)*] [$($list:literal)*]) => {};
    (
        [$($i:literal)*] [$($list:literal)*]
        $n:literal $column:literal $registers:literal $([$kind:ident $ty:literal $($function:ident)*])*;
        $($others:tt)*
    ) => {
        widths!(@functions $n [$($i)* $column] [$($list)* $registers] $([$kind $ty $($function)*])*);
        widths!([$($i)* $column] [$($list)* $registers] $($others)*);
    };
    (@functions $n:literal $indices:tt $list:tt) => {};
    (@functions $n:literal $indices:tt $list:tt [$kind:ident $ty:literal $($function:ident)*] $($others:tt)*) => {
        $kind!($ty $n $indices $list $($function)*);
        widths!(@functions $n $indices $list $($others)*);
    };
}

// Only functions that Quire's kernels or the emulator's tests use exist. To add one, name it in its width's row.
widths! {
    [] []
    8 0 "{0}, {1}, {2}, {3}"
        [rows_of_64 "f16" m64n8k64_f16 m64n8k64_f16_first]
        [rows_of_64 "bf16" m64n8k64_bf16 m64n8k64_bf16_first];
    16 1 ", {4}, {5}, {6}, {7}"
        [rows_of_64 "f16" m64n16k64_f16 m64n16k64_f16_first]
        [rows_of_64 "bf16" m64n16k64_bf16 m64n16k64_bf16_first];
    24 2 ", {8}, {9}, {10}, {11}"
        [rows_of_64 "f16" m64n24k64_f16 m64n24k64_f16_first]
        [rows_of_64 "bf16" m64n24k64_bf16 m64n24k64_bf16_first];
    32 3 ", {12}, {13}, {14}, {15}"
        [rows_of_64 "f16" m64n32k64_f16 m64n32k64_f16_first]
        [rows_of_64 "bf16" m64n32k64_bf16 m64n32k64_bf16_first];
    40 4 ", {16}, {17}, {18}, {19}";
    48 5 ", {20}, {21}, {22}, {23}";
    56 6 ", {24}, {25}, {26}, {27}";
    64 7 ", {28}, {29}, {30}, {31}"
        [rows_of_64 "f16" m64n64k64_f16 m64n64k64_f16_first]
        [rows_of_64 "bf16" m64n64k64_bf16 m64n64k64_bf16_first]
        [by_16 "f16" m64n64k16_f16]
        [by_16 "bf16" m64n64k16_bf16]
        [from_registers "f16" m64n64k16_f16_registers]
        [from_registers "bf16" m64n64k16_bf16_registers];
    72 8 ", {32}, {33}, {34}, {35}";
    80 9 ", {36}, {37}, {38}, {39}";
    88 10 ", {40}, {41}, {42}, {43}";
    96 11 ", {44}, {45}, {46}, {47}";
    104 12 ", {48}, {49}, {50}, {51}";
    112 13 ", {52}, {53}, {54}, {55}";
    120 14 ", {56}, {57}, {58}, {59}";
    128 15 ", {60}, {61}, {62}, {63}"
        [rows_of_64 "f16" m64n128k64_f16 m64n128k64_f16_first]
        [rows_of_64 "bf16" m64n128k64_bf16 m64n128k64_bf16_first];
    136 16 ", {64}, {65}, {66}, {67}";
    144 17 ", {68}, {69}, {70}, {71}";
    152 18 ", {72}, {73}, {74}, {75}";
    160 19 ", {76}, {77}, {78}, {79}";
    168 20 ", {80}, {81}, {82}, {83}";
    176 21 ", {84}, {85}, {86}, {87}";
    184 22 ", {88}, {89}, {90}, {91}";
    192 23 ", {92}, {93}, {94}, {95}"
        [rows_of_64 "f16" m64n192k64_f16 m64n192k64_f16_first]
        [rows_of_64 "bf16" m64n192k64_bf16 m64n192k64_bf16_first];
    200 24 ", {96}, {97}, {98}, {99}";
    208 25 ", {100}, {101}, {102}, {103}";
    216 26 ", {104}, {105}, {106}, {107}";
    224 27 ", {108}, {109}, {110}, {111}";
    232 28 ", {112}, {113}, {114}, {115}";
    240 29 ", {116}, {117}, {118}, {119}";
    248 30 ", {120}, {121}, {122}, {123}";
    256 31 ", {124}, {125}, {126}, {127}"
        [rows_of_64 "f16" m64n256k64_f16 m64n256k64_f16_first]
        [rows_of_64 "bf16" m64n256k64_bf16 m64n256k64_bf16_first];
}
