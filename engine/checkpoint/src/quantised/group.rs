//! The fields of one group of quantised elements.

use half::f16;
use kernels::eight_bit::{EightBit, Fp8};

use super::QuantType;
use super::tables::half_power;

/// Elements of the largest group.
pub const MAX_GROUP: usize = 256;

/// The integers and scales of one group.
///
/// For GGUF types, an element is `scale * scales[i] * number - min_scale * mins[i]`, where `i` is the index of its part
/// of the group. `number` is `quant - zero`, or the integer that the type's [table](QuantType::table) has for the code
/// `quant`. For MXFP4, the scale is a power of two. For integer types of safetensors files, an element is
/// `wide_scale * (quant - zero)`. For FP8 it is `wide_scale` times the number with the code `quant`.
pub struct Group {
    /// The elements as unsigned integers, or as codes.
    pub quants: [u8; MAX_GROUP],
    /// The factor of every element.
    pub scale: f16,
    /// The factor of the minima. For Q4_1 and Q5_1, which store the number to add, it is its negation.
    pub min_scale: f16,
    /// The factor of every element, for types of safetensors files.
    pub wide_scale: f32,
    /// The integer that represents 0. It is subtracted from every integer.
    pub zero: u8,
    /// The exponent of MXFP4's scale, with a bias of 127.
    pub exponent: u8,
    /// Scales of parts. Groups of one part have 1.
    pub scales: [i8; 16],
    /// Minima of parts. Groups of one part have 1, and types without minima 0.
    pub mins: [u8; 16],
}

impl QuantType {
    /// The integer that represents 0. For 4-bit types whose groups store their own, it is the middle of the range.
    #[inline]
    pub const fn zero(self) -> u8 {
        match self {
            QuantType::Q8_0 => 128,
            QuantType::Q4_0 | QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 8,
            QuantType::Q5_0 => 16,
            QuantType::Q3_K => 4,
            QuantType::Q6_K => 32,
            _ => 0,
        }
    }
}

impl Group {
    /// Creates a group of zeros.
    pub fn zeros(kind: QuantType) -> Self {
        let is_one_part = kind.part() == kind.group();
        Group {
            quants: [0; MAX_GROUP],
            scale: f16::ZERO,
            min_scale: f16::ZERO,
            wide_scale: 0.0,
            zero: kind.zero(),
            exponent: 0,
            scales: [1; 16],
            mins: [u8::from(is_one_part && kind.has_minima()); 16],
        }
    }

    /// Reads one group from [`QuantType::group_bytes`] bytes.
    pub fn read(kind: QuantType, bytes: &[u8]) -> Self {
        let mut group = Self::zeros(kind);
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match *kind.halves() {
            [scale] => group.scale = half(scale),
            [scale, min] => (group.scale, group.min_scale) = (half(scale), half(min)),
            _ => {}
        }
        let after_halves = &bytes[2 * kind.halves().len()..];
        match kind {
            QuantType::Q8_0 => {
                group.quants.iter_mut().zip(after_halves).for_each(|(to, byte)| *to = byte ^ 0x80);
            }
            QuantType::Q4_0 | QuantType::IQ4_NL => group.set_nibbles(after_halves),
            QuantType::Q4_1 => {
                group.min_scale = -group.min_scale;
                group.set_nibbles(after_halves);
            }
            QuantType::Q5_0 => group.set_fifth_bits(after_halves),
            QuantType::Q5_1 => {
                group.min_scale = -group.min_scale;
                group.set_fifth_bits(after_halves);
            }
            QuantType::Q2_K => group.read_q2_k(bytes),
            QuantType::Q3_K => group.read_q3_k(bytes),
            QuantType::Q4_K | QuantType::Q5_K => group.read_q4_or_q5_k(bytes),
            QuantType::Q6_K => group.read_q6_k(bytes),
            QuantType::IQ4_XS => {
                group.set_nibbles(&bytes[8..]);
                let high = u16::from_le_bytes([bytes[2], bytes[3]]);
                for j in 0..8 {
                    let low = bytes[4 + j / 2] >> (j % 2 * 4) & 15;
                    group.scales[j] = (low | ((high >> (2 * j) & 3) as u8) << 4) as i8 - 32;
                }
            }
            QuantType::MXFP4 => {
                group.exponent = bytes[0];
                group.set_nibbles(&bytes[1..]);
            }
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => {
                (group.wide_scale, group.zero) = (leading_f32(bytes), bytes[4]);
                group.set_nibbles(&bytes[5..]);
            }
            QuantType::Fp8G32 | QuantType::Fp8G128 => {
                group.wide_scale = leading_f32(bytes);
                group.quants[..kind.group()].copy_from_slice(&bytes[4..]);
            }
        }
        group
    }

    /// Sets parts of 32 integers from 16 bytes each. The lower halves of the bytes come first.
    fn set_nibbles(&mut self, bytes: &[u8]) {
        for (from, to) in bytes.chunks_exact(16).zip(self.quants.chunks_exact_mut(32)) {
            split_nibbles(from, to);
        }
    }

    /// Sets 32 integers of 5 bits from a word with the fifth bits, and 16 bytes with the others.
    fn set_fifth_bits(&mut self, bytes: &[u8]) {
        let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        self.set_nibbles(&bytes[4..]);
        self.quants[..32].iter_mut().enumerate().for_each(|(i, quant)| *quant |= ((high >> i & 1) as u8) << 4);
    }

    /// Sets 256 integers of 2 bits from 64 bytes. Each half of the group has 32 bytes.
    fn set_two_bits(&mut self, bytes: &[u8]) {
        for (from, to) in bytes.chunks_exact(32).zip(self.quants.chunks_exact_mut(128)) {
            to.iter_mut().enumerate().for_each(|(i, quant)| *quant = from[i % 32] >> (i / 32 * 2) & 3);
        }
    }

    fn read_q2_k(&mut self, bytes: &[u8]) {
        for (j, byte) in bytes[..16].iter().enumerate() {
            (self.scales[j], self.mins[j]) = ((byte & 15) as i8, byte >> 4);
        }
        self.set_two_bits(&bytes[16..80]);
    }

    fn read_q3_k(&mut self, bytes: &[u8]) {
        self.set_two_bits(&bytes[32..96]);
        for (i, quant) in self.quants.iter_mut().enumerate() {
            *quant |= (bytes[i % 32] >> (i / 32) & 1) << 2;
        }
        let (low, high) = bytes[96..108].split_at(8);
        for (j, scale) in self.scales.iter_mut().enumerate() {
            let low = low[j % 8] >> (j / 8 * 4) & 15;
            *scale = (low | (high[j % 4] >> (j / 4 * 2) & 3) << 4) as i8 - 32;
        }
    }

    fn read_q4_or_q5_k(&mut self, bytes: &[u8]) {
        self.unpack_scales(&bytes[4..16]);
        let (high, nibbles) = bytes[16..].split_at(bytes.len() - 16 - 128);
        for (from, to) in nibbles.chunks_exact(32).zip(self.quants.chunks_exact_mut(64)) {
            split_nibbles(from, to);
        }
        // Q4_K has no fifth bits.
        for (part, quants) in self.quants.chunks_exact_mut(32).enumerate() {
            quants.iter_mut().zip(high).for_each(|(quant, high)| *quant |= (high >> part & 1) << 4);
        }
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

    fn read_q6_k(&mut self, bytes: &[u8]) {
        bytes[192..208].iter().zip(&mut self.scales).for_each(|(byte, to)| *to = *byte as i8);
        let halves = bytes[..128].chunks_exact(64).zip(bytes[128..192].chunks_exact(32));
        for ((low, high), quants) in halves.zip(self.quants.chunks_exact_mut(128)) {
            split_nibbles(low, quants);
            for (i, quant) in quants.iter_mut().enumerate() {
                *quant |= (high[i % 32] >> (i / 32 * 2) & 3) << 4;
            }
        }
    }

    /// Returns the factor of all integers of a part, and the minimum to subtract afterwards.
    pub fn scale_and_min(&self, kind: QuantType, part: usize) -> (f32, f32) {
        match kind {
            QuantType::MXFP4 => (half_power(self.exponent), 0.0),
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => (self.wide_scale, 0.0),
            QuantType::Fp8G32 | QuantType::Fp8G128 => (self.wide_scale, 0.0),
            _ => {
                let scale = self.scale.to_f32() * f32::from(self.scales[part]);
                let min = self.min_scale.to_f32() * f32::from(self.mins[part]);
                (scale, if kind.has_minima() { min } else { 0.0 })
            }
        }
    }

    /// Returns the integer that an unsigned integer or code of this group represents.
    #[inline]
    pub fn number(&self, kind: QuantType, quant: u8) -> i32 {
        match kind.table() {
            Some(table) => i32::from(table[usize::from(quant & 15)]),
            None => i32::from(quant) - i32::from(self.zero),
        }
    }

    /// Decodes the elements, multiplying in the same order as the reference implementation.
    pub fn decode(&self, kind: QuantType, to: &mut [f32]) {
        let parts = to.chunks_mut(kind.part()).zip(self.quants.chunks(kind.part()));
        for (part, (to, quants)) in parts.enumerate() {
            let (scale, min) = self.scale_and_min(kind, part);
            if kind.is_fp8() {
                to.iter_mut().zip(quants).for_each(|(to, &code)| *to = scale * Fp8::decode(code));
            } else {
                let number = |quant: u8| self.number(kind, quant) as f32;
                to.iter_mut().zip(quants).for_each(|(to, &quant)| *to = scale * number(quant) - min);
            }
        }
    }
}

fn leading_f32(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Writes the lower halves of all bytes, then the upper halves.
fn split_nibbles(from: &[u8], to: &mut [u8]) {
    let (low, high) = to.split_at_mut(from.len());
    for ((from, low), high) in from.iter().zip(low).zip(high) {
        (*low, *high) = (from & 15, from >> 4);
    }
}
