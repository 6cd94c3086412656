//! The layout of a quantised weight. Sixteen rows are interleaved so that each vector has a few elements of each row.
//!
//! A *band* is sixteen rows. It contains the groups of those rows, each divided into *parts* of 32 columns. A part's
//! integers are stored in *lines* of 64 bytes, four bytes per row. A part is eight *chunks* of four columns. With 8
//! bits, a line contains a chunk. With 4 to 6 bits, the lower halves of four lines' bytes contain the first four chunks
//! and the upper halves the others. A fifth bit takes one more line, a fifth and a sixth take two. With 2 or 3 bits, a
//! line contains the lower two bits of four chunks, and the third bits take one more line. So one load and one
//! multiplication of bytes serve sixteen rows, and no sum crosses a vector's lanes. The layout takes as many bytes as
//! the file, or at most 4 % more. FP8 codes are widened one column at a time, so a line stores the sixteen codes of one
//! column contiguously.

use super::super::pages::Line;
use checkpoint::quantised::{Group, QuantType};

/// Rows in a band: the number of f32 lanes of the longest vector.
pub(super) const ROWS: usize = 16;
/// Columns in a part.
pub(super) const PART: usize = 32;

/// Numbers of entries in a band for each group of columns.
pub(super) trait Packing {
    /// Lines per part. An element has as many bits.
    fn lines(self) -> usize;
    /// Entries of `scales` per group.
    fn scales(self) -> usize;
    /// Entries of `parts` per group.
    fn parts(self) -> usize;
    /// Entries of `wide_scales` per group.
    fn wide_scales(self) -> usize;
}

impl Packing for QuantType {
    #[inline]
    fn lines(self) -> usize {
        match self {
            QuantType::Q8_0 | QuantType::Fp8G32 | QuantType::Fp8G128 => 8,
            QuantType::Q2_K => 2,
            QuantType::Q3_K => 3,
            QuantType::Q4_0 | QuantType::Q4_1 | QuantType::Q4_K => 4,
            QuantType::IQ4_NL | QuantType::IQ4_XS | QuantType::MXFP4 => 4,
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 4,
            QuantType::Q5_0 | QuantType::Q5_1 | QuantType::Q5_K => 5,
            QuantType::Q6_K => 6,
        }
    }

    #[inline]
    fn scales(self) -> usize {
        self.halves().len()
    }

    #[inline]
    fn parts(self) -> usize {
        match self {
            QuantType::Q8_0 | QuantType::Q4_0 | QuantType::Q4_1 | QuantType::Q5_0 | QuantType::Q5_1 => 0,
            QuantType::IQ4_NL | QuantType::Fp8G32 | QuantType::Fp8G128 => 0,
            QuantType::MXFP4 | QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 1,
            QuantType::IQ4_XS => 8,
            QuantType::Q2_K | QuantType::Q3_K | QuantType::Q4_K | QuantType::Q5_K | QuantType::Q6_K => 16,
        }
    }

    #[inline]
    fn wide_scales(self) -> usize {
        match self {
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 1,
            QuantType::Fp8G32 | QuantType::Fp8G128 => 1,
            _ => 0,
        }
    }
}

/// Returns the small numbers of a group: [`Packing::parts`] bytes and padding.
pub(super) fn small(kind: QuantType, group: &Group) -> [u8; 16] {
    let scales = group.scales.map(|scale| scale as u8);
    match kind {
        QuantType::MXFP4 => [group.exponent; 16],
        QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => [group.zero; 16],
        // Eight scales, then eight minima.
        QuantType::Q4_K | QuantType::Q5_K => std::array::from_fn(|i| if i < 8 { scales[i] } else { group.mins[i - 8] }),
        QuantType::Q2_K => std::array::from_fn(|i| scales[i] | group.mins[i] << 4),
        _ => scales,
    }
}

/// Sets the small numbers of a group from the bytes of [`small`].
pub(super) fn set_small(kind: QuantType, group: &mut Group, bytes: [u8; 16]) {
    let signed = bytes.map(|byte| byte as i8);
    match kind {
        QuantType::MXFP4 => group.exponent = bytes[0],
        QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => group.zero = bytes[0],
        QuantType::Q4_K | QuantType::Q5_K => {
            group.scales = signed;
            group.mins[..8].copy_from_slice(&bytes[8..]);
        }
        QuantType::Q2_K => {
            group.scales = signed.map(|byte| byte & 15);
            group.mins = bytes.map(|byte| byte >> 4);
        }
        _ if kind.parts() > 0 => group.scales = signed,
        _ => {}
    }
}

/// Writes a row's integers of one group into the lines of its parts. The row's bytes there must be zero before.
pub(super) fn pack(kind: QuantType, group: &Group, row: usize, lines: &mut [Line]) {
    let parts = group.quants[..kind.group()].as_chunks::<PART>().0;
    for (lines, quants) in lines.chunks_exact_mut(kind.lines()).zip(parts) {
        let fours = quants.as_chunks::<4>().0;
        if kind.is_fp8() {
            for (line, four) in lines.iter_mut().zip(fours) {
                line.0.as_chunks_mut::<ROWS>().0.iter_mut().zip(four).for_each(|(col, code)| col[row] = *code);
            }
            continue;
        }
        match kind.lines() {
            8 => lines.iter_mut().zip(fours).for_each(|(line, four)| *at(line, row) = *four),
            2 | 3 => pack_pairs(fours, row, lines),
            _ => pack_nibbles(fours, row, lines),
        }
    }
}

/// The bytes of a row in a line.
fn at(line: &mut Line, row: usize) -> &mut [u8; 4] {
    &mut line.0.as_chunks_mut::<4>().0[row]
}

/// Packs a part's integers of 4 to 6 bits. The number of lines is the number of bits.
fn pack_nibbles(fours: &[[u8; 4]], row: usize, lines: &mut [Line]) {
    for chunk in 0..4 {
        let (low, high) = (fours[chunk], fours[chunk + 4]);
        *at(&mut lines[chunk], row) = std::array::from_fn(|i| low[i] & 15 | high[i] << 4);
        for i in 0..4 {
            match lines.len() {
                5 => at(&mut lines[4], row)[i] |= (low[i] >> 4) << chunk | (high[i] >> 4) << (chunk + 4),
                6 => {
                    at(&mut lines[4], row)[i] |= (low[i] >> 4) << (2 * chunk);
                    at(&mut lines[5], row)[i] |= (high[i] >> 4) << (2 * chunk);
                }
                _ => {}
            }
        }
    }
}

/// Packs a part's integers of 2 or 3 bits.
fn pack_pairs(fours: &[[u8; 4]], row: usize, lines: &mut [Line]) {
    for (chunk, four) in fours.iter().enumerate() {
        for (i, quant) in four.iter().enumerate() {
            at(&mut lines[chunk / 4], row)[i] |= (quant & 3) << (chunk % 4 * 2);
            if lines.len() == 3 {
                at(&mut lines[2], row)[i] |= (quant >> 2) << chunk;
            }
        }
    }
}

/// Extracts the integer of one element of a part.
pub(super) fn unpack(kind: QuantType, lines: &[Line], row: usize, col: usize) -> u8 {
    let (chunk, at) = (col / 4, row * 4 + col % 4);
    if kind.is_fp8() {
        return lines[chunk].0[col % 4 * ROWS + row];
    }
    let pair = || lines[chunk / 4].0[at] >> (chunk % 4 * 2) & 3;
    let nibble = || lines[chunk % 4].0[at] >> (chunk / 4 * 4) & 15;
    match kind.lines() {
        8 => lines[chunk].0[at],
        2 => pair(),
        3 => pair() | (lines[2].0[at] >> chunk & 1) << 2,
        5 => nibble() | (lines[4].0[at] >> chunk & 1) << 4,
        6 => nibble() | (lines[4 + chunk / 4].0[at] >> (2 * (chunk % 4)) & 3) << 4,
        _ => nibble(),
    }
}
