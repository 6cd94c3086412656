//! A requested product: its shape, its operands, and its least cost.

use core::fmt;
use cuda_std::vector::Vector;

use cuda_std::launch::{DevicePtr, DevicePtrMut};

use crate::floor::Floor;
use crate::gemm::epilogue::Epilogue;
use crate::layout::VECTOR;
use crate::norm::SumNorm;

/// The shape of a product `x [m][k] . weight [n][k]`, and its epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Tokens.
    pub m: u32,
    /// Rows of the weight, or of both weights if the product is gated.
    pub n: u32,
    /// Length of the rows.
    pub k: u32,
    /// The epilogue, which determines what is stored.
    pub epilogue: Epilogue,
}

/// Limit of tokens and of weight rows, which must be smaller. Kernels count up to 2^16 tiles of 128 of them.
const MOST_ROWS: u32 = 1 << 23;

impl Product {
    /// Refuses shapes that no kernel takes.
    ///
    /// # Errors
    /// [`UnsupportedProduct`], which says why.
    pub(in crate::gemm) const fn check(self) -> Result<(), UnsupportedProduct> {
        let Product { m, n, k, epilogue } = self;
        if m == 0 || n == 0 || k == 0 {
            return Err(UnsupportedProduct::Empty);
        }
        if m >= MOST_ROWS || n >= MOST_ROWS {
            return Err(UnsupportedProduct::Large(m, n));
        }
        if !k.is_multiple_of(VECTOR) {
            return Err(UnsupportedProduct::Ragged(k));
        }
        if matches!(epilogue, Epilogue::Gated(_)) && !n.is_multiple_of(16) {
            return Err(UnsupportedProduct::Gated(n));
        }
        Ok(())
    }

    /// Returns the least that the product costs with any kernel.
    pub const fn floor(self) -> Floor {
        let (m, n, k) = (self.m as u64, self.n as u64, self.k as u64);
        let stored = m * self.epilogue.columns(self.n) as u64 * self.epilogue.size() as u64;
        let loaded = if matches!(self.epilogue, Epilogue::Add) { stored } else { 0 };
        Floor { bytes: 2 * (m * k + n * k) + stored + loaded, flops: 2 * m * n * k }
    }
}

/// Device addresses and strides of a product's matrices.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// `[m][k]`, rows of whole vectors.
    pub x: DevicePtr<u16>,
    /// Elements between rows of `x`, a multiple of 8.
    pub x_stride: u32,
    /// `[n][k]`, rows of whole vectors without gaps.
    pub weight: DevicePtr<u16>,
    /// `[n]`, aligned to 8 bytes, or null.
    pub bias: DevicePtr<u16>,
    /// `[m][columns]`, 16-bit or `f32`, 16-byte aligned. [`Epilogue::columns`] gives the columns.
    pub out: DevicePtrMut<u8>,
    /// Elements between rows of `out`. A multiple of 4 is stored faster.
    pub out_stride: u32,
    /// [`GemmPlan::workspace_bytes`](super::GemmPlan::workspace_bytes) bytes, 16-byte aligned.
    pub workspace: DevicePtrMut<Vector>,
    /// [`GemmPlan::counters`](super::GemmPlan::counters) counters.
    pub counters: DevicePtrMut<u32>,
    /// The norm to apply to the stored rows, which requires
    /// [`GemmPlan::can_normalise`](super::GemmPlan::can_normalise).
    pub norm: NormOperands,
}

/// The norm of a product's rows, computed in the same launch. The output must have no gaps between its rows.
#[derive(Clone, Copy, Debug)]
pub struct NormOperands {
    /// Kind of norm, if any.
    pub norm: SumNorm,
    /// `[n]`, 16-byte aligned, or null for a layer norm without a weight.
    pub weight: DevicePtr<Vector>,
    /// `[n]`, 16-byte aligned, or null without a bias.
    pub bias: DevicePtr<Vector>,
    /// The normalised rows, `[m][n]`, 16-byte aligned.
    pub out: DevicePtrMut<Vector>,
    /// Added to the variance.
    pub eps: f32,
    /// A word that all launches share if they do not overlap. It is zero before the first one, and used for nothing
    /// else.
    pub arrivals: DevicePtrMut<u32>,
}

impl NormOperands {
    /// No norm.
    pub const NONE: NormOperands = NormOperands {
        norm: SumNorm::None,
        weight: DevicePtr::NULL,
        bias: DevicePtr::NULL,
        out: DevicePtrMut::NULL,
        eps: 0.0,
        arrivals: DevicePtrMut::NULL,
    };
}

impl Operands {
    /// Operands with null addresses, for questions about a plan's kernel that do not depend on the matrices.
    pub const NULL: Operands = Operands {
        x: DevicePtr::NULL,
        x_stride: 0,
        weight: DevicePtr::NULL,
        bias: DevicePtr::NULL,
        out: DevicePtrMut::NULL,
        out_stride: 0,
        workspace: DevicePtrMut::NULL,
        counters: DevicePtrMut::NULL,
        norm: NormOperands::NONE,
    };
}

/// The reason why there is no kernel for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedProduct {
    /// A dimension is zero.
    Empty,
    /// Too many tokens or rows of the weight for kernels to count their tiles. Has both numbers.
    Large(u32, u32),
    /// Rows are not whole vectors of 16 bytes. Has their length in elements.
    Ragged(u32),
    /// The rows of a gated weight are not whole groups of gate and up rows. Has the number of rows.
    Gated(u32),
    /// FP4 codes, which only grouped products take.
    Fp4,
    /// A block needs more shared memory than the device has. Has the bytes that it needs.
    Shared(u32),
}

impl fmt::Display for UnsupportedProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a matrix without elements"),
            Self::Large(m, n) => write!(f, "{m} tokens by {n} rows, each of which must be fewer than {MOST_ROWS}"),
            Self::Ragged(k) => write!(f, "rows of {k} elements, not a multiple of {}", VECTOR),
            Self::Gated(n) => write!(f, "a gated weight of {n} rows, not a multiple of 16"),
            Self::Fp4 => write!(f, "FP4 codes outside of experts"),
            Self::Shared(bytes) => write!(f, "a block needs {bytes} bytes of shared memory, more than the GPU has"),
        }
    }
}

impl core::error::Error for UnsupportedProduct {}
