//! The 16-bit types of tensors, as type parameters of generic kernels.

use core::fmt;

use cuda_std::half::{Bf16x2, F16x2, Half2};

use cuda_std::ptx::wgmma_chain::{self, row_descriptors};
use cuda_std::ptx::{mma, wgmma};

/// A 16-bit floating-point type. Kernels move elements as bits, and compute in `f32`.
pub trait Element {
    /// Two elements in a register.
    type Pair: Half2;

    /// Whether the type's range is much smaller than the range of `f32`.
    const IS_NARROW: bool;

    /// Computes D = A B + C on the tensor cores, see [`mma`].
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];

    /// Adds a product of 64 rows to `sums` on Hopper's tensor cores.
    ///
    /// `a` and `b` are [descriptors](wgmma::row_descriptor) of operand tiles that are 64 elements long along K. With
    /// 256 `COLUMNS` the product uses only the first descriptor of each and fills `sums`. With 128 it uses both, so it
    /// is 128 long along K, and accumulates into the first half of `sums`.
    ///
    /// # Safety
    /// All threads of the warp group call this together. No thread writes the operands until the product has completed.
    unsafe fn multiply<const COLUMNS: u32>(sums: &mut [[f32; 4]; 32], a: [u32; 2], b: [u32; 2]);

    /// Computes the same product as [`multiply`](Self::multiply) without adding to previous sums.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    unsafe fn multiply_first<const COLUMNS: u32>(a: [u32; 2], b: [u32; 2]) -> [[f32; 4]; 32];
}

/// Returns the first half of the sums.
#[inline(always)]
fn half(sums: &mut [[f32; 4]; 32]) -> &mut [[f32; 4]; 16] {
    // SAFETY: the first elements of a longer array form a valid shorter array.
    unsafe { &mut *core::ptr::from_mut(sums).cast() }
}

/// IEEE half precision: 10 fraction bits, 5 exponent bits.
pub enum F16 {}

/// The upper half of an `f32`: 7 fraction bits, 8 exponent bits.
pub enum Bf16 {}

/// An element type chosen at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// [`F16`].
    F16,
    /// [`Bf16`].
    Bf16,
}

impl ElementType {
    /// Both types.
    pub const ALL: [ElementType; 2] = [ElementType::F16, ElementType::Bf16];

    /// Returns the type's name in kernel names and labels.
    pub const fn label(self) -> &'static str {
        match self {
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// `with_element!(element, T => expression)` evaluates the expression with `T` as the type that `element`, an
/// [`ElementType`], selects.
#[macro_export]
macro_rules! with_element {
    ($element:expr, $T:ident => $expression:expr) => {
        match $element {
            $crate::element::ElementType::F16 => {
                type $T = $crate::element::F16;
                $expression
            }
            $crate::element::ElementType::Bf16 => {
                type $T = $crate::element::Bf16;
                $expression
            }
        }
    };
}

impl Element for F16 {
    type Pair = F16x2;
    const IS_NARROW: bool = true;

    #[inline(always)]
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: all lanes of the warp are here together, by this function's contract.
        unsafe { mma::m16n8k16_f16(a, b, c) }
    }

    #[inline(always)]
    unsafe fn multiply<const COLUMNS: u32>(sums: &mut [[f32; 4]; 32], a: [u32; 2], b: [u32; 2]) {
        // SAFETY: by this function's contract, all threads of the warp group are here and the operands stay unchanged.
        unsafe {
            if COLUMNS == 256 {
                wgmma::m64n256k64_f16(sums, a[0], b[0]);
            } else {
                wgmma_chain::m64n128k128_f16(half(sums), row_descriptors(a), row_descriptors(b));
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_first<const COLUMNS: u32>(a: [u32; 2], b: [u32; 2]) -> [[f32; 4]; 32] {
        // SAFETY: by this function's contract, all threads of the warp group are here and the operands stay unchanged.
        unsafe {
            if COLUMNS == 256 {
                return wgmma::m64n256k64_f16_first(a[0], b[0]);
            }
            let mut sums = [[0.0; 4]; 32];
            *half(&mut sums) = wgmma_chain::m64n128k128_f16_first(row_descriptors(a), row_descriptors(b));
            sums
        }
    }
}

impl Element for Bf16 {
    type Pair = Bf16x2;
    const IS_NARROW: bool = false;

    #[inline(always)]
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: all lanes of the warp are here together, by this function's contract.
        unsafe { mma::m16n8k16_bf16(a, b, c) }
    }

    #[inline(always)]
    unsafe fn multiply<const COLUMNS: u32>(sums: &mut [[f32; 4]; 32], a: [u32; 2], b: [u32; 2]) {
        // SAFETY: by this function's contract, all threads of the warp group are here and the operands stay unchanged.
        unsafe {
            if COLUMNS == 256 {
                wgmma::m64n256k64_bf16(sums, a[0], b[0]);
            } else {
                wgmma_chain::m64n128k128_bf16(half(sums), row_descriptors(a), row_descriptors(b));
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_first<const COLUMNS: u32>(a: [u32; 2], b: [u32; 2]) -> [[f32; 4]; 32] {
        // SAFETY: by this function's contract, all threads of the warp group are here and the operands stay unchanged.
        unsafe {
            if COLUMNS == 256 {
                return wgmma::m64n256k64_bf16_first(a[0], b[0]);
            }
            let mut sums = [[0.0; 4]; 32];
            *half(&mut sums) = wgmma_chain::m64n128k128_bf16_first(row_descriptors(a), row_descriptors(b));
            sums
        }
    }
}
