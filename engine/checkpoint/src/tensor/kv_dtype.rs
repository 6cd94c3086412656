//! The element type of a KV cache.

use std::fmt;

use kernels::layout::KvFormat;

use super::DType;

/// The element type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// A type that activations and weights can have too.
    Float(DType),
    /// 8-bit integers, with a scale for each head of a token.
    Int8,
    /// FP8 e4m3, with a scale for each head of a token.
    Fp8,
}

impl KvDtype {
    /// Bytes of the keys or values of one head of one token: `head_dim` elements, and their scale if the type has
    /// scales.
    pub const fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            KvDtype::Float(dtype) => head_dim * dtype.size(),
            // The scale is an f16.
            KvDtype::Int8 | KvDtype::Fp8 => head_dim + 2,
        }
    }

    /// The storage format for the GPU's kernels. A float type must be the type of the activations.
    pub const fn format(self) -> KvFormat {
        match self {
            KvDtype::Float(_) => KvFormat::Plain,
            KvDtype::Int8 => KvFormat::Int8,
            KvDtype::Fp8 => KvFormat::Fp8,
        }
    }
}

impl From<DType> for KvDtype {
    fn from(dtype: DType) -> Self {
        KvDtype::Float(dtype)
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvDtype::Float(dtype) => dtype.fmt(f),
            KvDtype::Int8 => f.write_str("int8"),
            KvDtype::Fp8 => f.write_str("fp8"),
        }
    }
}
