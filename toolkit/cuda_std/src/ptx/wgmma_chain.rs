//! Chains of [`wgmma`](super::wgmma): four products along K in one statement, with factors that lie anyhow. Hopper.
//!
//! Each factor in shared memory is given by four descriptors, see [`MatrixLayout::along`](super::wgmma::MatrixLayout::along).

macro_rules! chains {
    ($ty:literal $n:literal [$($i:literal)*] [$($list:literal)*] shared $first:ident $add:ident) => {
        #[doc = concat!("Four products of `", $ty, "` with ", $n, " columns, whose sum begins anew: both factors are K-major.")]
        ///
        /// # Safety
        /// As for one product.
        #[inline(always)]
        pub unsafe fn $first(a: [u64; 4], b: [u64; 4]) -> [[f32; 4]; $n / 8] {
            device!((a, b) => {
                let mut sums = [[0.0; 4]; $n / 8];
                // SAFETY: all threads of the warp group are here and the factors are valid, by this function's contract.
                unsafe {
                    core::arch::asm!(
                        "wgmma.fence.sync.aligned;",
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a0}, {b0}, 0, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a1}, {b1}, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a2}, {b2}, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a3}, {b3}, 1, 1, 1, 0, 0;"
                        ),
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        $(
                            out(reg32) sums[$i][0], out(reg32) sums[$i][1],
                            out(reg32) sums[$i][2], out(reg32) sums[$i][3],
                        )*
                        a0 = in(reg64) a[0], a1 = in(reg64) a[1], a2 = in(reg64) a[2], a3 = in(reg64) a[3],
                        b0 = in(reg64) b[0], b1 = in(reg64) b[1], b2 = in(reg64) b[2], b3 = in(reg64) b[3],
                        options(nostack, preserves_flags),
                    );
                }
                sums
            })
        }

        #[doc = concat!("[`", stringify!($first), "`], added to the sums.")]
        ///
        /// # Safety
        /// As for one product.
        #[inline(always)]
        pub unsafe fn $add(sums: &mut [[f32; 4]; $n / 8], a: [u64; 4], b: [u64; 4]) {
            device!((sums, a, b) => {
                // SAFETY: all threads of the warp group are here and the factors are valid, by this function's contract.
                unsafe {
                    core::arch::asm!(
                        "wgmma.fence.sync.aligned;",
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a0}, {b0}, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a1}, {b1}, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a2}, {b2}, 1, 1, 1, 0, 0;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {a3}, {b3}, 1, 1, 1, 0, 0;"
                        ),
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        $(
                            inout(reg32) sums[$i][0], inout(reg32) sums[$i][1],
                            inout(reg32) sums[$i][2], inout(reg32) sums[$i][3],
                        )*
                        a0 = in(reg64) a[0], a1 = in(reg64) a[1], a2 = in(reg64) a[2], a3 = in(reg64) a[3],
                        b0 = in(reg64) b[0], b1 = in(reg64) b[1], b2 = in(reg64) b[2], b3 = in(reg64) b[3],
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    };
    ($ty:literal $n:literal [$($i:literal)*] [$($list:literal)*] registers $registers:ident) => {
        #[doc = concat!("Four products of `", $ty, "` with ", $n, " columns, added to the sums: A in registers, B MN-major.")]
        ///
        /// # Safety
        /// As for one product.
        #[inline(always)]
        pub unsafe fn $registers(sums: &mut [[f32; 4]; $n / 8], a: [[u32; 4]; 4], b: [u64; 4]) {
            device!((sums, a, b) => {
                // SAFETY: all threads of the warp group are here and the factors are valid, by this function's contract.
                unsafe {
                    core::arch::asm!(
                        "wgmma.fence.sync.aligned;",
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b0}, 1, 1, 1, 1;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {{{a4}, {a5}, {a6}, {a7}}}, {b1}, 1, 1, 1, 1;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {{{a8}, {a9}, {a10}, {a11}}}, {b2}, 1, 1, 1, 1;"
                        ),
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{", $($list,)*
                            "}}, {{{a12}, {a13}, {a14}, {a15}}}, {b3}, 1, 1, 1, 1;"
                        ),
                        "wgmma.commit_group.sync.aligned;",
                        "wgmma.wait_group.sync.aligned 0;",
                        $(
                            inout(reg32) sums[$i][0], inout(reg32) sums[$i][1],
                            inout(reg32) sums[$i][2], inout(reg32) sums[$i][3],
                        )*
                        a0 = in(reg32) a[0][0], a1 = in(reg32) a[0][1], a2 = in(reg32) a[0][2], a3 = in(reg32) a[0][3],
                        a4 = in(reg32) a[1][0], a5 = in(reg32) a[1][1], a6 = in(reg32) a[1][2], a7 = in(reg32) a[1][3],
                        a8 = in(reg32) a[2][0], a9 = in(reg32) a[2][1], a10 = in(reg32) a[2][2], a11 = in(reg32) a[2][3],
                        a12 = in(reg32) a[3][0], a13 = in(reg32) a[3][1], a14 = in(reg32) a[3][2], a15 = in(reg32) a[3][3],
                        b0 = in(reg64) b[0], b1 = in(reg64) b[1], b2 = in(reg64) b[2], b3 = in(reg64) b[3],
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    };
}

macro_rules! both_types {
    ($n:literal $indices:tt $list:tt $([$kind:ident [$($f16:ident)*] [$($bf16:ident)*]])*) => {$(
        chains!("f16" $n $indices $list $kind $($f16)*);
        chains!("bf16" $n $indices $list $kind $($bf16)*);
    )*};
}

both_types! {
    64
    [0 1 2 3 4 5 6 7]
    [
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, "
        "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}"
    ]
    [registers [m64n64_f16_registers] [m64n64_bf16_registers]]
}

both_types! {
    128
    [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
    [
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, "
        "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, "
        "{32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, "
        "{48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}"
    ]
    [shared [m64n128_f16_first m64n128_f16] [m64n128_bf16_first m64n128_bf16]]
    [registers [m64n128_f16_registers] [m64n128_bf16_registers]]
}
