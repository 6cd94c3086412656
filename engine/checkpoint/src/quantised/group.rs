//! The fields of one group of quantised elements.

use half::f16;
use kernels::eight_bit::{EightBit, Fp8};

use super::QuantType;

/// Elements of the largest group.
pub const MAX_GROUP: usize = 256;

/// The integers and scales of one group.
///
/// For GGUF types, an element is `scale * scales[i] * (quant - zero) - min_scale * mins[j]`, where `i` and `j` are the
/// indices of its part of the group. Groups of 32 have no scales of parts and no minima. For integer types of
/// safetensors files, an element is `wide_scale * (quant - zero)`. For FP8 it is `wide_scale` times the number with the
/// code `quant`.
pub struct Group {
    /// The elements as unsigned integers, or as FP8 codes.
    pub quants: [u8; MAX_GROUP],
    /// The factor of every element.
    pub scale: f16,
    /// The factor of the minima.
    pub min_scale: f16,
    /// The factor of every element, for types of safetensors files.
    pub wide_scale: f32,
    /// The integer that represents 0. It is subtracted from every integer.
    pub zero: u8,
    /// Scales of parts of 32 elements, or of 16 elements in Q6_K.
    pub scales: [i8; 16],
    /// Minima of parts of 32 elements.
    pub mins: [u8; 8],
}

impl QuantType {
    /// The integer that represents 0. For 4-bit types whose groups store their own, it is the middle of the range.
    #[inline]
    pub const fn zero(self) -> u8 {
        match self {
            QuantType::Q8_0 => 128,
            QuantType::Q4_0 | QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 8,
            QuantType::Q4_K | QuantType::Q5_K | QuantType::Fp8G32 | QuantType::Fp8G128 => 0,
            QuantType::Q6_K => 32,
        }
    }
}

impl Group {
    /// Creates a group of zeros.
    pub fn zeros(kind: QuantType) -> Self {
        Group {
            quants: [0; MAX_GROUP],
            scale: f16::ZERO,
            min_scale: f16::ZERO,
            wide_scale: 0.0,
            zero: kind.zero(),
            scales: [1; 16],
            mins: [0; 8],
        }
    }

    /// Reads one group from [`QuantType::group_bytes`] bytes.
    pub fn read(kind: QuantType, bytes: &[u8]) -> Self {
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let wide = || f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let mut group = Self::zeros(kind);
        match kind {
            QuantType::Q8_0 => {
                group.scale = half(0);
                group.quants.iter_mut().zip(&bytes[2..34]).for_each(|(to, byte)| *to = byte ^ 0x80);
            }
            QuantType::Q4_0 => {
                group.scale = half(0);
                split_nibbles(&bytes[2..18], &mut group.quants[..32]);
            }
            QuantType::Q4_K | QuantType::Q5_K => {
                (group.scale, group.min_scale) = (half(0), half(2));
                group.unpack_scales(&bytes[4..16]);
                let nibbles = &bytes[bytes.len() - 128..];
                for (from, to) in nibbles.chunks_exact(32).zip(group.quants.chunks_exact_mut(64)) {
                    split_nibbles(from, to);
                }
                if kind == QuantType::Q5_K {
                    let high = &bytes[16..48];
                    for (part, quants) in group.quants.chunks_exact_mut(32).enumerate() {
                        quants.iter_mut().zip(high).for_each(|(quant, high)| *quant |= (high >> part & 1) << 4);
                    }
                }
            }
            QuantType::Q6_K => {
                group.scale = half(208);
                bytes[192..208].iter().zip(&mut group.scales).for_each(|(byte, to)| *to = *byte as i8);
                let halves = bytes[..128].chunks_exact(64).zip(bytes[128..192].chunks_exact(32));
                for ((low, high), quants) in halves.zip(group.quants.chunks_exact_mut(128)) {
                    split_nibbles(low, quants);
                    for (i, quant) in quants.iter_mut().enumerate() {
                        *quant |= (high[i % 32] >> (i / 32 * 2) & 3) << 4;
                    }
                }
            }
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => {
                (group.wide_scale, group.zero) = (wide(), bytes[4]);
                for (from, to) in bytes[5..].chunks_exact(16).zip(group.quants.chunks_exact_mut(32)) {
                    split_nibbles(from, to);
                }
            }
            QuantType::Fp8G32 | QuantType::Fp8G128 => {
                group.wide_scale = wide();
                group.quants[..kind.group()].copy_from_slice(&bytes[4..]);
            }
        }
        group
    }

    /// Unpacks eight scales and eight minima of 6 bits each from 12 bytes.
    fn unpack_scales(&mut self, bytes: &[u8]) {
        for j in 0..4 {
            self.scales[j] = (bytes[j] & 63) as i8;
            self.mins[j] = bytes[j + 4] & 63;
            self.scales[j + 4] = (bytes[j + 8] & 15 | bytes[j] >> 6 << 4) as i8;
            self.mins[j + 4] = bytes[j + 8] >> 4 | bytes[j + 4] >> 6 << 4;
        }
    }

    /// Returns the factor of all integers of a part, and the minimum to subtract afterwards.
    pub fn scale_and_min(&self, kind: QuantType, part: usize) -> (f32, f32) {
        let scale = self.scale.to_f32() * f32::from(self.scales[part]);
        match kind {
            QuantType::Q8_0 | QuantType::Q4_0 | QuantType::Q6_K => (scale, 0.0),
            QuantType::Q4_K | QuantType::Q5_K => (scale, self.min_scale.to_f32() * f32::from(self.mins[part])),
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => (self.wide_scale, 0.0),
            QuantType::Fp8G32 | QuantType::Fp8G128 => (self.wide_scale, 0.0),
        }
    }

    /// Decodes the elements, multiplying in the same order as the reference implementation.
    pub fn decode(&self, kind: QuantType, to: &mut [f32]) {
        let zero = i32::from(self.zero);
        let parts = to.chunks_mut(kind.part()).zip(self.quants.chunks(kind.part()));
        for (part, (to, quants)) in parts.enumerate() {
            let (scale, min) = self.scale_and_min(kind, part);
            if kind.is_fp8() {
                to.iter_mut().zip(quants).for_each(|(to, &code)| *to = scale * Fp8::decode(code));
            } else {
                let number = |quant: u8| (i32::from(quant) - zero) as f32;
                to.iter_mut().zip(quants).for_each(|(to, &quant)| *to = scale * number(quant) - min);
            }
        }
    }
}

/// Writes the lower halves of all bytes, then the upper halves.
fn split_nibbles(from: &[u8], to: &mut [u8]) {
    let (low, high) = to.split_at_mut(from.len());
    for ((from, low), high) in from.iter().zip(low).zip(high) {
        (*low, *high) = (from & 15, from >> 4);
    }
}
