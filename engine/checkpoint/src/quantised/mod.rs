//! Quantised weights. Each row is divided into groups of 32 to 256 elements. A group contains small integers and the
//! scales to multiply them by. Thirteen types have the layout of GGUF files, byte for byte. Quantised tensors of
//! safetensors files are converted to the other types when they are loaded, and gpt-oss's experts to MXFP4.

mod encode;
mod group;
mod pack;
mod search;
mod tables;

use std::fmt;

pub use encode::encode;
pub use group::{Group, MAX_GROUP};
pub(crate) use pack::{fp8_type, int4_type, pack_fp8, pack_int4, pack_mxfp4};
pub use tables::{E2M1, IQ4, half_power};

/// The supported types of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the names that the format's users know
pub enum QuantType {
    /// 32 elements of 8 bits and a scale.
    Q8_0,
    /// 32 elements of 4 bits and a scale.
    Q4_0,
    /// 32 elements of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 elements of 5 bits and a scale.
    Q5_0,
    /// 32 elements of 5 bits, a scale and a minimum.
    Q5_1,
    /// 256 elements of 2 bits. Every 16 have a scale and a minimum, which are 4-bit integers.
    Q2_K,
    /// 256 elements of 3 bits. Every 16 have a scale, which is a 6-bit integer.
    Q3_K,
    /// 256 elements of 4 bits. Every 32 have a scale and a minimum, which are 6-bit integers.
    Q4_K,
    /// Like [`QuantType::Q4_K`], with elements of 5 bits.
    Q5_K,
    /// 256 elements of 6 bits. Every 16 have a scale, which is an 8-bit integer.
    Q6_K,
    /// 32 codes of 4 bits for the integers of a [table](IQ4), and a scale.
    IQ4_NL,
    /// 256 codes of 4 bits for the same integers. Every 32 have a scale, which is a 6-bit integer.
    IQ4_XS,
    /// 32 elements of FP4 (e2m1) and a scale that is a power of two.
    MXFP4,
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
    pub const GGUF: [QuantType; 13] = [
        QuantType::Q8_0,
        QuantType::Q4_0,
        QuantType::Q4_1,
        QuantType::Q5_0,
        QuantType::Q5_1,
        QuantType::Q2_K,
        QuantType::Q3_K,
        QuantType::Q4_K,
        QuantType::Q5_K,
        QuantType::Q6_K,
        QuantType::IQ4_NL,
        QuantType::IQ4_XS,
        QuantType::MXFP4,
    ];

    /// The types that only tensors of safetensors files are converted to.
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
            QuantType::Q8_0 | QuantType::Q4_0 | QuantType::Q4_1 | QuantType::Q5_0 | QuantType::Q5_1 => 32,
            QuantType::IQ4_NL | QuantType::MXFP4 | QuantType::Int4G32 | QuantType::Fp8G32 => 32,
            QuantType::Int4G64 => 64,
            QuantType::Int4G128 | QuantType::Fp8G128 => 128,
            QuantType::Q2_K | QuantType::Q3_K | QuantType::Q4_K | QuantType::Q5_K | QuantType::Q6_K => MAX_GROUP,
            QuantType::IQ4_XS => MAX_GROUP,
        }
    }

    /// Elements that share a scale: a group, or a part of one.
    #[inline]
    pub const fn part(self) -> usize {
        match self {
            QuantType::Q2_K | QuantType::Q3_K | QuantType::Q6_K => 16,
            QuantType::Q4_K | QuantType::Q5_K | QuantType::IQ4_XS => 32,
            _ => self.group(),
        }
    }

    /// Whether elements are FP8 codes instead of integers.
    #[inline]
    pub const fn is_fp8(self) -> bool {
        matches!(self, QuantType::Fp8G32 | QuantType::Fp8G128)
    }

    /// Whether a minimum is subtracted from the elements of each part.
    #[inline]
    pub const fn has_minima(self) -> bool {
        matches!(self, QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q2_K | QuantType::Q4_K | QuantType::Q5_K)
    }

    /// The integers that the codes of this type represent. `None` if elements are stored as integers.
    #[inline]
    pub const fn table(self) -> Option<&'static [i8; 16]> {
        match self {
            QuantType::IQ4_NL | QuantType::IQ4_XS => Some(&IQ4),
            QuantType::MXFP4 => Some(&E2M1),
            _ => None,
        }
    }

    /// Bytes per group.
    #[inline]
    pub const fn group_bytes(self) -> usize {
        match self {
            QuantType::Q8_0 => 2 + 32,
            QuantType::Q4_0 | QuantType::IQ4_NL => 2 + 16,
            QuantType::Q4_1 => 4 + 16,
            QuantType::Q5_0 => 2 + 4 + 16,
            QuantType::Q5_1 => 4 + 4 + 16,
            QuantType::Q2_K => 16 + 64 + 4,
            QuantType::Q3_K => 32 + 64 + 12 + 2,
            QuantType::Q4_K => 4 + 12 + 128,
            QuantType::Q5_K => 4 + 12 + 32 + 128,
            QuantType::Q6_K => 128 + 64 + 16 + 2,
            QuantType::IQ4_XS => 2 + 2 + 4 + 128,
            QuantType::MXFP4 => 1 + 16,
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 4 + 1 + self.group() / 2,
            QuantType::Fp8G32 | QuantType::Fp8G128 => 4 + self.group(),
        }
    }

    /// The offsets of a group's f16 numbers: its scale, then the scale of its minima or its minimum.
    pub const fn halves(self) -> &'static [usize] {
        match self {
            QuantType::Q8_0 | QuantType::Q4_0 | QuantType::Q5_0 | QuantType::IQ4_NL | QuantType::IQ4_XS => &[0],
            QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
            QuantType::Q2_K => &[80, 82],
            QuantType::Q3_K => &[108],
            QuantType::Q6_K => &[208],
            QuantType::MXFP4 => &[],
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => &[],
            QuantType::Fp8G32 | QuantType::Fp8G128 => &[],
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
            QuantType::Q4_1 => "q4_1",
            QuantType::Q5_0 => "q5_0",
            QuantType::Q5_1 => "q5_1",
            QuantType::Q2_K => "q2_k",
            QuantType::Q3_K => "q3_k",
            QuantType::Q4_K => "q4_k",
            QuantType::Q5_K => "q5_k",
            QuantType::Q6_K => "q6_k",
            QuantType::IQ4_NL => "iq4_nl",
            QuantType::IQ4_XS => "iq4_xs",
            QuantType::MXFP4 => "mxfp4",
            QuantType::Int4G32 => "int4-g32",
            QuantType::Int4G64 => "int4-g64",
            QuantType::Int4G128 => "int4-g128",
            QuantType::Fp8G32 => "fp8-g32",
            QuantType::Fp8G128 => "fp8-g128",
        })
    }
}
