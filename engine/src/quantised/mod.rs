//! Quantised weights as GGUF files hold them: each row is cut into groups of 32 or 256 elements, and a group holds small
//! integers with the scales that they are multiplied by.

mod encode;
mod group;

use std::fmt;

pub use encode::encode;
pub(crate) use group::{Group, MAX_GROUP};

/// The forms of quantised weights that can be computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the names that the format's users know
pub enum QuantType {
    /// 32 elements of 8 bits and a scale.
    Q8_0,
    /// 32 elements of 4 bits and a scale.
    Q4_0,
    /// 256 elements of 4 bits; a scale and a minimum for every 32, which are themselves integers of 6 bits.
    Q4_K,
    /// As [`QuantType::Q4_K`], with elements of 5 bits.
    Q5_K,
    /// 256 elements of 6 bits; a scale for every 16, which is itself an integer of 8 bits.
    Q6_K,
}

impl QuantType {
    /// All of them.
    pub const ALL: [QuantType; 5] =
        [QuantType::Q8_0, QuantType::Q4_0, QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K];

    /// Elements of a group. A row has a whole number of groups.
    pub const fn group(self) -> usize {
        match self {
            QuantType::Q8_0 | QuantType::Q4_0 => 32,
            QuantType::Q4_K | QuantType::Q5_K | QuantType::Q6_K => MAX_GROUP,
        }
    }

    /// Bytes of a group.
    pub const fn group_bytes(self) -> usize {
        match self {
            QuantType::Q8_0 => 2 + 32,
            QuantType::Q4_0 => 2 + 16,
            QuantType::Q4_K => 4 + 12 + 128,
            QuantType::Q5_K => 4 + 12 + 32 + 128,
            QuantType::Q6_K => 128 + 64 + 16 + 2,
        }
    }

    /// Bytes of a row of `cols` elements; nothing if it is not a whole number of groups, or too long.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        cols.is_multiple_of(self.group()).then(|| (cols / self.group()).checked_mul(self.group_bytes())).flatten()
    }

    /// The elements of whole groups in f32, as GGUF's reference implementation computes them.
    ///
    /// # Panics
    /// If `to` does not have as many elements as `bytes` has.
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
        })
    }
}
