//! The layout of a quantised weight. Sixteen rows are interleaved so that each vector has a few elements of each row.
//!
//! A *band* is sixteen rows. It contains the groups of those rows, each divided into *parts* of 32 columns. A part's
//! integers are stored in *lines* of 64 bytes, four bytes per row. Line `i` of an 8-bit part contains columns `4 i` to
//! `4 i + 3`. With fewer bits, the lower halves of four lines' bytes contain the first sixteen columns and the upper
//! halves the other sixteen. A fifth bit takes one more line, a fifth and a sixth take two. So one load and one
//! multiplication of bytes serve sixteen rows, and no sum crosses a vector's lanes. The layout takes as many bytes as
//! the file, or some 3 % more. FP8 codes are widened one column at a time, so a line stores the sixteen codes of one
//! column contiguously.

use std::sync::Arc;

use super::super::pages::{Line, Lines, Pages};
use super::super::threads::Threads;
use checkpoint::Result;
use checkpoint::quantised::{Group, QuantType};
use checkpoint::tensor::HostTensor;

/// Rows in a band: the number of f32 lanes of the longest vector.
pub(super) const ROWS: usize = 16;
/// Columns in a part.
pub(super) const PART: usize = 32;

/// A quantised matrix, `[N, K]`. The last band is padded with rows of zeros.
pub(crate) struct PackedMatrix {
    kind: QuantType,
    rows: usize,
    cols: usize,
    lines: Lines,
    /// A scale for each row and group, as halves. For types with minima, the scale of the minima follows each.
    scales: Vec<[u16; ROWS]>,
    /// Per group: scales of all its parts for each row, then minima. Types whose groups are one part have none. Integer
    /// types from safetensors files have the group's zero here, the integer that represents 0.
    parts: Vec<[u8; ROWS]>,
    /// A scale in f32 for each row and group, for types from safetensors files.
    wide_scales: Vec<[f32; ROWS]>,
    /// With `Some`, stored column `i` is column `order[i]` of the matrix.
    order: Option<Arc<[u32]>>,
}

/// One band of a matrix.
#[derive(Clone, Copy)]
pub(super) struct PackedBand<'a> {
    pub kind: QuantType,
    pub lines: &'a [Line],
    pub scales: &'a [[u16; ROWS]],
    pub parts: &'a [[u8; ROWS]],
    pub wide_scales: &'a [[f32; ROWS]],
}

/// Numbers of entries in a band for each group of columns.
pub(super) trait Packing {
    /// Lines per part.
    fn lines(self) -> usize;
    /// Entries of `scales` per group.
    fn scales(self) -> usize;
    /// Entries of `parts` per group: scales and minima of parts, or the group's zero.
    fn parts(self) -> usize;
    /// Entries of `wide_scales` per group.
    fn wide_scales(self) -> usize;
}

impl Packing for QuantType {
    #[inline]
    fn lines(self) -> usize {
        match self {
            QuantType::Q8_0 | QuantType::Fp8G32 | QuantType::Fp8G128 => 8,
            QuantType::Q4_0 | QuantType::Q4_K => 4,
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 4,
            QuantType::Q5_K => 5,
            QuantType::Q6_K => 6,
        }
    }

    #[inline]
    fn scales(self) -> usize {
        match self {
            QuantType::Q8_0 | QuantType::Q4_0 | QuantType::Q6_K => 1,
            QuantType::Q4_K | QuantType::Q5_K => 2,
            _ => 0,
        }
    }

    #[inline]
    fn parts(self) -> usize {
        match self {
            QuantType::Q8_0 | QuantType::Q4_0 | QuantType::Fp8G32 | QuantType::Fp8G128 => 0,
            QuantType::Q4_K | QuantType::Q5_K | QuantType::Q6_K => 16,
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => 1,
        }
    }

    #[inline]
    fn wide_scales(self) -> usize {
        if self.scales() == 0 { 1 } else { 0 }
    }
}

impl PackedMatrix {
    /// Packs a quantised matrix.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::error::Error::Memory) if the system has no memory for it.
    ///
    /// # Panics
    /// If `tensor` is not quantised or not a matrix.
    pub fn new(tensor: &HostTensor, threads: &Threads, pages: &Pages) -> Result<Self> {
        let (Some(kind), &[rows, cols]) = (tensor.quantised(), tensor.shape()) else {
            panic!("only a quantised matrix can be packed");
        };
        let (bands, groups) = (rows.div_ceil(ROWS), cols / kind.group());
        let per_band = per_band(kind, cols);
        let mut packed = PackedMatrix {
            kind,
            rows,
            cols,
            lines: pages.lines(bands * per_band[0])?,
            scales: vec![[0; ROWS]; bands * per_band[1]],
            parts: vec![[0; ROWS]; bands * per_band[2]],
            wide_scales: vec![[0.0; ROWS]; bands * per_band[3]],
            order: tensor.order().cloned(),
        };
        if groups == 0 {
            return Ok(packed);
        }
        let lines = packed.lines.chunks_mut(per_band[0]);
        let mut scales = packed.scales.chunks_mut(per_band[1].max(1));
        let mut parts = packed.parts.chunks_mut(per_band[2].max(1));
        let mut wide_scales = packed.wide_scales.chunks_mut(per_band[3].max(1));
        let mut band = |lines| BandMut {
            lines,
            scales: scales.next().unwrap_or_default(),
            parts: parts.next().unwrap_or_default(),
            wide_scales: wide_scales.next().unwrap_or_default(),
        };
        let bands: Vec<_> = lines.map(&mut band).collect();
        let row_bytes = groups * kind.group_bytes();
        let rows = tensor.bytes().chunks(ROWS * row_bytes);
        threads.each(bands.into_iter().zip(rows), |(mut band, bytes)| {
            for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
                for (i, bytes) in bytes.chunks_exact(kind.group_bytes()).enumerate() {
                    band.set(kind, row, i, &Group::read(kind, bytes));
                }
            }
        });
        Ok(packed)
    }

    /// The stored order of columns, or `None` if it is the matrix's own order.
    pub fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    /// The type of quantisation.
    pub fn kind(&self) -> QuantType {
        self.kind
    }

    /// `N`
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// `K`
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn band(&self, band: usize) -> PackedBand<'_> {
        let [lines, scales, parts, wide_scales] = per_band(self.kind, self.cols);
        PackedBand {
            kind: self.kind,
            lines: &self.lines[band * lines..][..lines],
            scales: &self.scales[band * scales..][..scales],
            parts: &self.parts[band * parts..][..parts],
            wide_scales: &self.wide_scales[band * wide_scales..][..wide_scales],
        }
    }

    /// Decodes a row to f32. The elements equal those of the file's groups to the bit.
    pub fn decode_row(&self, row: usize, to: &mut [f32]) {
        let (kind, band, row) = (self.kind, self.band(row / ROWS), row % ROWS);
        let mut stored = vec![0.0; if self.order.is_some() { to.len() } else { 0 }];
        let elements = if self.order.is_some() { &mut *stored } else { &mut *to };
        for (i, elements) in elements.chunks_exact_mut(kind.group()).enumerate() {
            band.group(i, row).decode(kind, elements);
        }
        if let Some(order) = &self.order {
            stored.iter().zip(&**order).for_each(|(&x, &col)| to[col as usize] = x);
        }
    }
}

impl PackedBand<'_> {
    /// Gathers group `i` of a row.
    fn group(&self, i: usize, row: usize) -> Group {
        let kind = self.kind;
        let mut group = Group::zeros(kind);
        let half = |at: usize| half::f16::from_bits(self.scales[at][row]);
        if kind.scales() > 0 {
            group.scale = half(i * kind.scales());
        }
        if kind.scales() == 2 {
            group.min_scale = half(i * 2 + 1);
        }
        let parts = &self.parts[i * kind.parts()..][..kind.parts()];
        if kind.wide_scales() > 0 {
            group.wide_scale = self.wide_scales[i][row];
            parts.iter().for_each(|zero| group.zero = zero[row]);
        } else {
            let (scales, mins) = parts.split_at(kind.parts() / kind.scales());
            group.scales.iter_mut().zip(scales).for_each(|(to, from)| *to = from[row] as i8);
            group.mins.iter_mut().zip(mins).for_each(|(to, from)| *to = from[row]);
        }
        let lines = &self.lines[i * kind.group() / PART * kind.lines()..];
        let parts = lines.chunks(kind.lines()).zip(group.quants[..kind.group()].chunks_exact_mut(PART));
        for (lines, quants) in parts {
            for (col, quant) in quants.iter_mut().enumerate() {
                *quant = unpack(kind, lines, row, col);
            }
        }
        group
    }
}

/// A band that is being packed (see [`PackedMatrix`]).
struct BandMut<'a> {
    lines: &'a mut [Line],
    scales: &'a mut [[u16; ROWS]],
    parts: &'a mut [[u8; ROWS]],
    wide_scales: &'a mut [[f32; ROWS]],
}

impl BandMut<'_> {
    /// Writes group `i` of a row. Its entries must be zero before.
    fn set(&mut self, kind: QuantType, row: usize, i: usize, group: &Group) {
        pack(kind, group, row, &mut self.lines[i * kind.group() / PART * kind.lines()..]);
        let parts = &mut self.parts[i * kind.parts()..][..kind.parts()];
        if kind.wide_scales() > 0 {
            self.wide_scales[i][row] = group.wide_scale;
            parts.iter_mut().for_each(|zero| zero[row] = group.zero);
            return;
        }
        self.scales[i * kind.scales()][row] = group.scale.to_bits();
        if kind.scales() == 2 {
            self.scales[i * 2 + 1][row] = group.min_scale.to_bits();
        }
        let small = group.scales.iter().map(|&scale| scale as u8).take(kind.parts() / kind.scales());
        let small = small.chain(group.mins.iter().copied());
        parts.iter_mut().zip(small).for_each(|(to, from)| to[row] = from);
    }
}

/// Numbers of lines, scales, parts and wide scales in a band of `cols` columns, which must be a multiple of the group
/// size.
fn per_band(kind: QuantType, cols: usize) -> [usize; 4] {
    let groups = cols / kind.group();
    [cols / PART * kind.lines(), groups * kind.scales(), groups * kind.parts(), groups * kind.wide_scales()]
}

/// Writes a row's integers of one group into the lines of its parts. The row's bytes there must be zero before.
fn pack(kind: QuantType, group: &Group, row: usize, lines: &mut [Line]) {
    let parts = group.quants[..kind.group()].as_chunks::<PART>().0;
    for (lines, quants) in lines.chunks_exact_mut(kind.lines()).zip(parts) {
        fn at(line: &mut Line, row: usize) -> &mut [u8; 4] {
            &mut line.0.as_chunks_mut::<4>().0[row]
        }
        let fours = quants.as_chunks::<4>().0;
        if kind.is_fp8() {
            for (line, four) in lines.iter_mut().zip(fours) {
                line.0.as_chunks_mut::<ROWS>().0.iter_mut().zip(four).for_each(|(col, code)| col[row] = *code);
            }
            continue;
        }
        if kind == QuantType::Q8_0 {
            lines.iter_mut().zip(fours).for_each(|(line, four)| *at(line, row) = *four);
            continue;
        }
        for chunk in 0..4 {
            let (low, high) = (fours[chunk], fours[chunk + 4]);
            *at(&mut lines[chunk], row) = std::array::from_fn(|i| low[i] & 15 | high[i] << 4);
            for i in 0..4 {
                if kind == QuantType::Q5_K {
                    at(&mut lines[4], row)[i] |= (low[i] >> 4) << chunk | (high[i] >> 4) << (chunk + 4);
                }
                if kind == QuantType::Q6_K {
                    at(&mut lines[4], row)[i] |= (low[i] >> 4) << (2 * chunk);
                    at(&mut lines[5], row)[i] |= (high[i] >> 4) << (2 * chunk);
                }
            }
        }
    }
}

/// Extracts the integer of one element of a part.
fn unpack(kind: QuantType, lines: &[Line], row: usize, col: usize) -> u8 {
    let (chunk, at) = (col / 4, row * 4 + col % 4);
    if kind.is_fp8() {
        return lines[chunk].0[col % 4 * ROWS + row];
    }
    if kind == QuantType::Q8_0 {
        return lines[chunk].0[at];
    }
    let nibble = lines[chunk % 4].0[at] >> (chunk / 4 * 4) & 15;
    match kind {
        QuantType::Q5_K => nibble | (lines[4].0[at] >> chunk & 1) << 4,
        QuantType::Q6_K => nibble | (lines[4 + chunk / 4].0[at] >> (2 * (chunk % 4)) & 3) << 4,
        _ => nibble,
    }
}
