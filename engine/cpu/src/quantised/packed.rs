//! Quantised matrices in the layout of `layout`.

use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};

use super::super::pages::{Line, Lines, Pages};
use super::super::threads::Threads;
pub(super) use super::layout::ROWS;
use super::layout::{PART, Packing, pack, set_small, small, unpack};
use checkpoint::Result;
use checkpoint::quantised::{Group, QuantType};
use checkpoint::tensor::HostTensor;

/// A quantised matrix, `[N, K]`. The last band is padded with rows of zeros.
pub(crate) struct PackedMatrix {
    kind: QuantType,
    rows: usize,
    cols: usize,
    lines: Lines,
    /// A scale for each row and group, as halves. For types with minima, the scale of the minima follows each.
    scales: Lines,
    /// The small numbers of each group, as [`small`] returns them for a row.
    parts: Lines,
    /// A scale in f32 for each row and group, for types from safetensors files.
    wide_scales: Lines,
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
            scales: pages.lines((bands * per_band[1]).div_ceil(2))?,
            parts: pages.lines((bands * per_band[2]).div_ceil(4))?,
            wide_scales: pages.lines(bands * per_band[3])?,
            order: tensor.order().cloned(),
        };
        if groups == 0 {
            return Ok(packed);
        }
        let lines = packed.lines.chunks_mut(per_band[0]);
        let mut scales = cast_slice_mut::<_, [u16; ROWS]>(&mut packed.scales).chunks_mut(per_band[1].max(1));
        let mut parts = cast_slice_mut::<_, [u8; ROWS]>(&mut packed.parts).chunks_mut(per_band[2].max(1));
        let mut wide_scales = cast_slice_mut::<_, [f32; ROWS]>(&mut packed.wide_scales).chunks_mut(per_band[3].max(1));
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
            scales: &cast_slice(&self.scales)[band * scales..][..scales],
            parts: &cast_slice(&self.parts)[band * parts..][..parts],
            wide_scales: &cast_slice(&self.wide_scales)[band * wide_scales..][..wide_scales],
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
        if kind.wide_scales() > 0 {
            group.wide_scale = self.wide_scales[i][row];
        }
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(&self.parts[i * kind.parts()..][..kind.parts()]).for_each(|(to, from)| *to = from[row]);
        set_small(kind, &mut group, bytes);
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
        if kind.scales() > 0 {
            self.scales[i * kind.scales()][row] = group.scale.to_bits();
        }
        if kind.scales() == 2 {
            self.scales[i * 2 + 1][row] = group.min_scale.to_bits();
        }
        if kind.wide_scales() > 0 {
            self.wide_scales[i][row] = group.wide_scale;
        }
        let parts = &mut self.parts[i * kind.parts()..][..kind.parts()];
        parts.iter_mut().zip(small(kind, group)).for_each(|(to, from)| to[row] = from);
    }
}

/// Numbers of lines, scales, parts and wide scales in a band of `cols` columns, which must be a multiple of the group
/// size.
fn per_band(kind: QuantType, cols: usize) -> [usize; 4] {
    let groups = cols / kind.group();
    [cols / PART * kind.lines(), groups * kind.scales(), groups * kind.parts(), groups * kind.wide_scales()]
}
