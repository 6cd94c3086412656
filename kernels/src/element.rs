//! The 16-bit types that tensors are stored in, as parameters of generic kernels.

use core::fmt;

use cuda_std::half::{Bf16x2, F16x2, Half2};

use cuda_std::ptx::wgmma_chain::{self, row_descriptors};
use cuda_std::ptx::{mma, wgmma};

/// A 16-bit floating-point type. Kernels move elements as bits, and compute in `f32`.
pub trait Element {
    /// Two elements in a register.
    type Pair: Half2;

    /// D = A B + C on the tensor cores, see [`mma`].
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];

    /// Multiplies 64 rows by 256 columns, 64 elements along K, and adds, with factors of these [descriptors](wgmma::row_descriptor),
    /// of which the first are used; or by 128 columns with both, 128 along K, of whose sums the first half is used. Hopper.
    ///
    /// # Safety
    /// All threads of the warp group call this together; nobody writes the factors meanwhile.
    unsafe fn multiply<const COLUMNS: u32>(sums: &mut [[f32; 4]; 32], a: [u32; 2], b: [u32; 2]);

    /// [`multiply`](Self::multiply) of new sums.
    ///
    /// # Safety
    /// As for that.
    unsafe fn multiply_first<const COLUMNS: u32>(a: [u32; 2], b: [u32; 2]) -> [[f32; 4]; 32];
}

/// The first half of all sums.
#[inline(always)]
fn half(sums: &mut [[f32; 4]; 32]) -> &mut [[f32; 4]; 16] {
    // SAFETY: the first elements of a longer array.
    unsafe { &mut *core::ptr::from_mut(sums).cast() }
}

/// IEEE half precision: 10 bits of fraction, 5 of exponent.
pub enum F16 {}

/// The upper half of an `f32`: 7 bits of fraction, 8 of exponent.
pub enum Bf16 {}

/// Which of the types it is, where that is known when the program runs.
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

    /// Its name in the labels and names of kernels.
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

/// `with_element!(element, T => expression)`: the expression with `T` as the type that an [`ElementType`] stands for.
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

    #[inline(always)]
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: all lanes of the warp are here together, by this function's contract.
        unsafe { mma::m16n8k16_f16(a, b, c) }
    }

    #[inline(always)]
    unsafe fn multiply<const COLUMNS: u32>(sums: &mut [[f32; 4]; 32], a: [u32; 2], b: [u32; 2]) {
        // SAFETY: all threads of the warp group are here, and the factors stay, by this function's contract.
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
        // SAFETY: all threads of the warp group are here, and the factors stay, by this function's contract.
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

    #[inline(always)]
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: all lanes of the warp are here together, by this function's contract.
        unsafe { mma::m16n8k16_bf16(a, b, c) }
    }

    #[inline(always)]
    unsafe fn multiply<const COLUMNS: u32>(sums: &mut [[f32; 4]; 32], a: [u32; 2], b: [u32; 2]) {
        // SAFETY: all threads of the warp group are here, and the factors stay, by this function's contract.
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
        // SAFETY: all threads of the warp group are here, and the factors stay, by this function's contract.
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
