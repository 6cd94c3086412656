//! Quantised weights. Each row is divided into groups of 32 to 256 elements. A group contains small integers and the
//! scales to multiply them by. Five types equal those of GGUF files, byte for byte. Quantised tensors of safetensors
//! files are converted to the other types when they are loaded.

mod encode;
mod group;
mod pack;

use std::fmt;

pub use encode::encode;
pub use group::{Group, MAX_GROUP};
pub(crate) use pack::{fp8_type, int4_type, pack_fp8, pack_int4};

/// The supported types of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the names that the format's users know
pub enum QuantType {
    /// 32 elements of 8 bits and a scale.
    Q8_0,
    /// 32 elements of 4 bits and a scale.
    Q4_0,
    /// 256 elements of 4 bits. Every 32 have a scale and a minimum, which are 6-bit integers.
    Q4_K,
    /// Like [`QuantType::Q4_K`], with elements of 5 bits.
    Q5_K,
    /// 256 elements of 6 bits. Every 16 have a scale, which is an 8-bit integer.
    Q6_K,
    /// 32 elements of 4 bits, the integer that represents 0, and an f32 scale.
    Int4G32,
    /// Like [`QuantType::Int4G32`], with 64 elements.
    Int4G64,
    /// Like [`QuantType::Int4G32`], with 128 elements.
    Int4G128,
    /// 32 elements of FP8 e4m3 and an f32 scale.
    Fp8G32,
    /// Like [`QuantType::Fp8G32`], with 128 elements.
    Fp8G128,
}

impl QuantType {
    /// The types that occur in GGUF files.
    pub const GGUF: [QuantType; 5] =
        [QuantType::Q8_0, QuantType::Q4_0, QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K];

    /// The types that tensors of safetensors files are converted to.
    pub const SAFETENSORS: [QuantType; 5] =
        [QuantType::Int4G32, QuantType::Int4G64, QuantType::Int4G128, QuantType::Fp8G32, QuantType::Fp8G128];

    /// Returns all types.
    pub fn all() -> impl Iterator<Item = QuantType> {
        Self::GGUF.into_iter().chain(Self::SAFETENSORS)
    }

    /// Elements per group. A row is a multiple of this.
    #[inline]
    pub const fn group(self) -> usize {
        match self {
            QuantType::Q8_0 | QuantType::Q4_0 | QuantType::Int4G32 | QuantType::Fp8G32 => 32,
            QuantType::Int4G64 => 64,
            QuantType::Int4G128 | QuantType::Fp8G128 => 128,
            QuantType::Q4_K | QuantType::Q5_K | QuantType::Q6_K => MAX_GROUP,
        }
    }

    /// Elements that share a scale: a group, or a part of one.
    #[inline]
    pub const fn part(self) -> usize {
        match self {
            QuantType::Q6_K => 16,
            QuantType::Q4_K | QuantType::Q5_K => 32,
            _ => self.group(),
        }
    }

    /// Whether elements are FP8 codes instead of integers.
    #[inline]
    pub const fn is_fp8(self) -> bool {
        matches!(self, QuantType::Fp8G32 | QuantType::Fp8G128)
    }

    /// Bytes per group.
    #[inline]
    pub const fn group_bytes(self) -> usize {
        match self {
            QuantType::Q8_0 => 2 + 32,
            QuantType::Q4_0 => 2 + 16,
            QuantType::Q4_K => 4 + 12 + 128,
            QuantType::Q5_K => 4 + 12 + 32 + 128,
            QuantType::Q6_K => 128 + 64 + 16 + 2,
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 4 + 1 + self.group() / 2,
            QuantType::Fp8G32 | QuantType::Fp8G128 => 4 + self.group(),
        }
    }

    /// Bytes of a row of `cols` elements. `None` if it is not a multiple of the group size, or too long.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        cols.is_multiple_of(self.group()).then(|| (cols / self.group()).checked_mul(self.group_bytes())).flatten()
    }

    /// Decodes whole groups to f32, in the same way as the reference implementations.
    ///
    /// # Panics
    /// If `to` and `bytes` have different numbers of elements.
    pub fn decode(self, bytes: &[u8], to: &mut [f32]) {
        assert_eq!(to.len() * self.group_bytes(), bytes.len() * self.group(), "elements of quantised groups");
        for (bytes, to) in bytes.chunks_exact(self.group_bytes()).zip(to.chunks_exact_mut(self.group())) {
            Group::read(self, bytes).decode(self, to);
        }
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuantType::Q8_0 => "q8_0",
            QuantType::Q4_0 => "q4_0",
            QuantType::Q4_K => "q4_k",
            QuantType::Q5_K => "q5_k",
            QuantType::Q6_K => "q6_k",
            QuantType::Int4G32 => "int4-g32",
            QuantType::Int4G64 => "int4-g64",
            QuantType::Int4G128 => "int4-g128",
            QuantType::Fp8G32 => "fp8-g32",
            QuantType::Fp8G128 => "fp8-g128",
        })
    }
}
