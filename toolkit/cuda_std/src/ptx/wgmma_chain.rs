//! Chains of [`wgmma`](super::wgmma): four or eight products along K in one statement, for factors of any layout.
//! Hopper.
//!
//! A factor in shared memory is given by one descriptor per product: see
//! [`MatrixLayout::along`](super::wgmma::MatrixLayout::along) and [`row_descriptors`].

#[cfg(target_arch = "nvptx64")]
use super::wgmma::MatrixLayout;
use super::wgmma::STEP;

/// Returns the descriptors of eight factors of 16 elements each, along two tiles with rows of 64 elements. `tiles` are
/// the tiles' [`row_descriptor`](super::wgmma::row_descriptor)s.
#[inline(always)]
pub fn row_descriptors(tiles: [u32; 2]) -> [u64; 8] {
    let [first, second] = tiles;
    [
        whole_row_descriptor(first),
        whole_row_descriptor(first + STEP),
        whole_row_descriptor(first + 2 * STEP),
        whole_row_descriptor(first + 3 * STEP),
        whole_row_descriptor(second),
        whole_row_descriptor(second + STEP),
        whole_row_descriptor(second + 2 * STEP),
        whole_row_descriptor(second + 3 * STEP),
    ]
}

/// Returns the descriptor with the given lower half.
#[inline(always)]
fn whole_row_descriptor(low: u32) -> u64 {
    device!((low) => {
        let descriptor;
        // Explicit assembly, because the compiler would compute the sum and join it with three 64-bit instructions.
        // SAFETY: only joins two registers.
        unsafe {
            core::arch::asm!(
                "mov.b64 {descriptor}, {{{low}, {high}}};",
                descriptor = out(reg64) descriptor,
                low = in(reg32) low,
                high = in(reg32) (MatrixLayout::ROWS_OF_128_BYTES.at(0) >> 32) as u32,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        descriptor
    })
}

/// The text of one product.
#[cfg(target_arch = "nvptx64")]
macro_rules! product {
    ($ty:literal $n:literal [$($list:literal)*] ($a:ident) $b:ident $adds:literal) => {
        concat!(
            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
            "}}, {", stringify!($a), "}, {", stringify!($b), "}, ", $adds, ", 1, 1, 0, 0;"
        )
    };
    ($ty:literal $n:literal [$($list:literal)*] ($a:ident $a1:ident $a2:ident $a3:ident) $b:ident) => {
        concat!(
            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
            "}}, {{{", stringify!($a), "}, {", stringify!($a1), "}, {", stringify!($a2), "}, {", stringify!($a3),
            "}}}, {", stringify!($b), "}, 1, 1, 1, 1;"
        )
    };
}

/// Chains with new sums.
macro_rules! first {
    (
        $ty:literal $n:literal [$($i:literal)*] $list:tt $name:ident $count:literal
        $a0:ident $b0:ident, $([$p:literal $a:ident $b:ident])*
    ) => {
        #[doc = concat!($count, " products of `", $ty, "` with ", $n, " columns, returned as new sums. Both factors are K-major.")]
        ///
        /// # Safety
        /// As for one product.
        #[inline(always)]
        pub unsafe fn $name(a: [u64; $count], b: [u64; $count]) -> [[f32; 4]; $n / 8] {
            device!((a, b) => {
                let mut sums = [[0.0; 4]; $n / 8];
                // SAFETY: this function's contract requires that all threads of the warp group call it with valid
                // factors.
                unsafe {
                    core::arch::asm!(
                        "wgmma.fence.sync.aligned;",
                        product!($ty $n $list ($a0) $b0 "0"),
                        $(product!($ty $n $list ($a) $b "1"),)*
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        $(
                            out(reg32) sums[$i][0], out(reg32) sums[$i][1],
                            out(reg32) sums[$i][2], out(reg32) sums[$i][3],
                        )*
                        $a0 = in(reg64) a[0],
                        $b0 = in(reg64) b[0],
                        $($a = in(reg64) a[$p], $b = in(reg64) b[$p],)*
                        options(nostack, preserves_flags),
                    );
                }
                sums
            })
        }
    };
}

/// Chains that add to the sums.
macro_rules! more {
    ($ty:literal $n:literal [$($i:literal)*] $list:tt $name:ident $([$p:literal $a:ident $b:ident])*) => {
        #[doc = concat!("Eight products of `", $ty, "` with ", $n, " columns, added to the sums. Both factors are K-major.")]
        ///
        /// # Safety
        /// As for one product.
        #[inline(always)]
        pub unsafe fn $name(sums: &mut [[f32; 4]; $n / 8], a: [u64; 8], b: [u64; 8]) {
            device!((sums, a, b) => {
                // SAFETY: this function's contract requires that all threads of the warp group call it with valid
                // factors.
                unsafe {
                    core::arch::asm!(
                        "wgmma.fence.sync.aligned;",
                        $(product!($ty $n $list ($a) $b "1"),)*
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        $(
                            inout(reg32) sums[$i][0], inout(reg32) sums[$i][1],
                            inout(reg32) sums[$i][2], inout(reg32) sums[$i][3],
                        )*
                        $($a = in(reg64) a[$p], $b = in(reg64) b[$p],)*
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    };
}

/// Chains that add to the sums, with A in registers.
macro_rules! from_registers {
    (
        $ty:literal $n:literal [$($i:literal)*] $list:tt $name:ident
        $([$p:literal $a0:ident $a1:ident $a2:ident $a3:ident $b:ident])*
    ) => {
        #[doc = concat!("Eight products of `", $ty, "` with ", $n, " columns, added to the sums. A is in registers, and B is MN-major.")]
        ///
        /// # Safety
        /// As for one product.
        #[inline(always)]
        pub unsafe fn $name(sums: &mut [[f32; 4]; $n / 8], a: [[u32; 4]; 8], b: [u64; 8]) {
            device!((sums, a, b) => {
                // SAFETY: this function's contract requires that all threads of the warp group call it with valid
                // factors.
                unsafe {
                    core::arch::asm!(
                        "wgmma.fence.sync.aligned;",
                        $(product!($ty $n $list ($a0 $a1 $a2 $a3) $b),)*
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        $(
                            inout(reg32) sums[$i][0], inout(reg32) sums[$i][1],
                            inout(reg32) sums[$i][2], inout(reg32) sums[$i][3],
                        )*
                        $(
                            $a0 = in(reg32) a[$p][0], $a1 = in(reg32) a[$p][1],
                            $a2 = in(reg32) a[$p][2], $a3 = in(reg32) a[$p][3],
                            $b = in(reg64) b[$p],
                        )*
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    };
}

macro_rules! from_shared {
    ($ty:literal $n:literal $indices:tt $list:tt $four:ident $eight:ident $more:ident) => {
        first!($ty $n $indices $list $four 4 a0 b0, [1 a1 b1] [2 a2 b2] [3 a3 b3]);
        eight_from_shared!($ty $n $indices $list $eight $more);
    };
}

macro_rules! eight_from_shared {
    ($ty:literal $n:literal $indices:tt $list:tt $eight:ident $more:ident) => {
        first!(
            $ty $n $indices $list $eight 8
            a0 b0, [1 a1 b1] [2 a2 b2] [3 a3 b3] [4 a4 b4] [5 a5 b5] [6 a6 b6] [7 a7 b7]
        );
        more!(
            $ty $n $indices $list $more
            [0 a0 b0] [1 a1 b1] [2 a2 b2] [3 a3 b3] [4 a4 b4] [5 a5 b5] [6 a6 b6] [7 a7 b7]
        );
    };
}

macro_rules! eight_from_registers {
    ($ty:literal $n:literal $indices:tt $list:tt $name:ident) => {
        from_registers!(
            $ty $n $indices $list $name
            [0 a0 a1 a2 a3 b0] [1 a4 a5 a6 a7 b1] [2 a8 a9 a10 a11 b2] [3 a12 a13 a14 a15 b3]
            [4 a16 a17 a18 a19 b4] [5 a20 a21 a22 a23 b5] [6 a24 a25 a26 a27 b6] [7 a28 a29 a30 a31 b7]
        );
    };
}

macro_rules! chains {
    ($($chain:ident $n:literal $indices:tt $list:tt [$($f16:ident)*] [$($bf16:ident)*];)*) => {$(
        $chain!("f16" $n $indices $list $($f16)*);
        $chain!("bf16" $n $indices $list $($bf16)*);
    )*};
}

/// Chains with 128 columns, which share one list of operands.
macro_rules! wide_chains {
    ($($chain:ident [$($f16:ident)*] [$($bf16:ident)*];)*) => {
        chains! {$(
            $chain 128
            [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
            [
                "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, "
                "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, "
                "{32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, "
                "{48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}"
            ]
            [$($f16)*] [$($bf16)*];
        )*}
    };
}

chains! {
    eight_from_registers 64
    [0 1 2 3 4 5 6 7]
    [
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, "
        "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}"
    ]
    [m64n64k128_f16_registers] [m64n64k128_bf16_registers];
    eight_from_shared 8
    [0]
    ["{0}, {1}, {2}, {3}"]
    [m64n8k128_f16_first m64n8k128_f16] [m64n8k128_bf16_first m64n8k128_bf16];
    eight_from_shared 16
    [0 1]
    ["{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}"]
    [m64n16k128_f16_first m64n16k128_f16] [m64n16k128_bf16_first m64n16k128_bf16];
    eight_from_shared 32
    [0 1 2 3]
    ["{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}"]
    [m64n32k128_f16_first m64n32k128_f16] [m64n32k128_bf16_first m64n32k128_bf16];
    eight_from_shared 64
    [0 1 2 3 4 5 6 7]
    [
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, "
        "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}"
    ]
    [m64n64k128_f16_first m64n64k128_f16] [m64n64k128_bf16_first m64n64k128_bf16];
}

wide_chains! {
    from_shared [m64n128k64_f16_first m64n128k128_f16_first m64n128k128_f16]
    [m64n128k64_bf16_first m64n128k128_bf16_first m64n128k128_bf16];
    eight_from_registers [m64n128k128_f16_registers] [m64n128k128_bf16_registers];
}
