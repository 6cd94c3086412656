//! The 16-bit types that tensors are stored in, as parameters of generic kernels.

use cuda_std::half::{Bf16x2, F16x2, Half2};

use crate::ptx::mma;

/// A 16-bit floating-point type. Kernels move elements as bits, and compute in `f32`.
pub trait Element {
    /// Two elements in a register.
    type Pair: Half2;

    /// D = A B + C on the tensor cores, see [`mma`].
    ///
    /// # Safety
    /// All lanes of the warp come by together.
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
}

/// IEEE half precision: 10 bits of fraction, 5 of exponent.
pub enum F16 {}

/// The upper half of an `f32`: 7 bits of fraction, 8 of exponent.
pub enum Bf16 {}

impl Element for F16 {
    type Pair = F16x2;

    #[inline(always)]
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: the caller's.
        unsafe { mma::m16n8k16_f16(a, b, c) }
    }
}

impl Element for Bf16 {
    type Pair = Bf16x2;

    #[inline(always)]
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: the caller's.
        unsafe { mma::m16n8k16_bf16(a, b, c) }
    }
}
