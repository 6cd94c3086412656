//! 4-bit weights: integers, the scales and zeros of groups, and the group of each input.

use rayon::prelude::*;

use super::words::{IN_WORD, Packing, Words};
use super::{damaged, extents, little_endian, scales};
use crate::config::GroupSize;
use crate::error::Result;
use crate::load::stored::{Assembly, StoredTensor, StoredType};
use crate::quantised::{QuantType, int4_type, pack_int4};
use crate::tensor::HostTensor;

/// Rows to unpack at a time.
const TILE: usize = 128;

/// The program whose layout of integers, scales and zeros is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Int4Layout {
    Awq,
    /// Zeros may be stored minus one, and inputs may be sorted.
    Gptq {
        less_one: bool,
        sorted: bool,
    },
    /// Zeros are present, absent, or either (`None`). Inputs may be sorted.
    CompressedTensors {
        zeros: Option<bool>,
        sorted: bool,
    },
}

/// The tensors that form a weight. An element is `scale * (quant - zero)` with the scale and zero of its group.
#[derive(Debug)]
pub(super) struct Int4Parts {
    pub layout: Int4Layout,
    pub module: String,
    /// Number of outputs and of inputs.
    pub rows: usize,
    pub cols: usize,
    /// Elements of a row that share a scale. The last group may be smaller.
    pub group: usize,
    pub quants: StoredTensor,
    pub zeros: Option<StoredTensor>,
    pub scales: StoredTensor,
    /// The group of each input.
    pub groups: Option<StoredTensor>,
}

/// A result whose error is a phrase about the weight.
type Checked<T> = std::result::Result<T, String>;

impl Int4Layout {
    fn quants(self) -> Packing {
        match self {
            Int4Layout::Awq => Packing::Awq,
            Int4Layout::Gptq { .. } => Packing::Inputs,
            Int4Layout::CompressedTensors { .. } => Packing::InputsOfRows,
        }
    }

    /// The packing of zeros, with groups in the role of inputs.
    fn zeros(self) -> Packing {
        match self {
            Int4Layout::Awq => Packing::Awq,
            Int4Layout::Gptq { .. } => Packing::Outputs,
            Int4Layout::CompressedTensors { .. } => Packing::OutputsOfRows,
        }
    }

    /// Whether scales are stored group by group instead of row by row.
    fn scales_by_group(self) -> bool {
        !matches!(self, Int4Layout::CompressedTensors { .. })
    }

    /// Whether zeros must be present. `None` if they may be.
    fn has_zeros(self) -> Option<bool> {
        match self {
            Int4Layout::Awq | Int4Layout::Gptq { .. } => Some(true),
            Int4Layout::CompressedTensors { zeros, .. } => zeros,
        }
    }

    /// Whether the file must give the group of each input.
    fn is_sorted(self) -> bool {
        match self {
            Int4Layout::Awq => false,
            Int4Layout::Gptq { sorted, .. } | Int4Layout::CompressedTensors { sorted, .. } => sorted,
        }
    }
}

impl Int4Parts {
    /// Determines the weight's dimensions and checks that the parts agree. `shape` is the tensor in which the file stores the
    /// dimensions, if any.
    pub fn measured(mut self, shape: Option<StoredTensor>, group: GroupSize) -> Checked<Self> {
        if self.layout.has_zeros() == Some(false) {
            // Some programs store meaningless zeros of symmetric weights too.
            self.zeros = None;
        }
        for (what, tensor) in
            [("integers", Some(&self.quants)), ("zeros", self.zeros.as_ref()), ("groups", self.groups.as_ref())]
        {
            if let Some(tensor) = tensor.filter(|tensor| tensor.dtype != StoredType::Other("I32".into())) {
                return Err(format!("has {what} of type {}, not I32", tensor.dtype));
            }
        }
        let StoredType::Float(_) = self.scales.dtype else {
            return Err(format!("has scales of type {}, which is not supported", self.scales.dtype));
        };
        let &[first, second] = self.quants.shape.as_slice() else {
            return Err(format!("has integers of shape {:?}, which is not a matrix", self.quants.shape));
        };
        let wide = |words: usize| words.checked_mul(IN_WORD).ok_or("is too large");
        (self.rows, self.cols) = match self.layout {
            Int4Layout::Awq => (wide(second)?, first),
            Int4Layout::Gptq { .. } => (second, wide(first)?),
            Int4Layout::CompressedTensors { .. } => (first, wide(second)?),
        };
        if let Some(shape) = shape {
            self.cols = extents(shape, self.rows, self.cols, IN_WORD)?;
        }
        if self.rows == 0 || self.cols == 0 {
            return Err("has no elements".into());
        }
        self.measure_groups(group)?;
        let count = self.cols.div_ceil(self.group);
        let expected = self.layout.zeros().shape(self.rows, count);
        match &self.zeros {
            Some(zeros) if zeros.shape != expected => {
                return Err(format!("has zeros of shape {:?}, not {expected:?}", zeros.shape));
            }
            None if self.layout.has_zeros() == Some(true) => return Err("lacks its tensor of zeros".into()),
            _ => {}
        }
        match &self.groups {
            Some(groups) if groups.shape != [self.cols] => {
                Err(format!("has g_idx of shape {:?}, not {:?}", groups.shape, [self.cols]))
            }
            None if self.layout.is_sorted() && count > 1 => Err("lacks the groups of its sorted inputs (g_idx)".into()),
            _ => Ok(self),
        }
    }

    /// Determines the group size from the shape of the scales. It must match the configuration.
    fn measure_groups(&mut self, configured: GroupSize) -> Checked<()> {
        let shape = self.scales.shape.as_slice();
        let (rows, count) = match (self.layout.scales_by_group(), shape) {
            (true, &[count, rows]) | (false, &[rows, count]) => (rows, count),
            // One scale for the whole tensor.
            (false, [] | [1]) => (self.rows, 1),
            _ => (0, 0),
        };
        let wrong = || format!("has scales of shape {shape:?} for {} outputs and {} inputs", self.rows, self.cols);
        if rows != self.rows && !(rows == 1 && count == 1 && !self.layout.scales_by_group()) {
            return Err(wrong());
        }
        self.group = match configured {
            GroupSize::Row => self.cols,
            GroupSize::Of(group) => group.min(self.cols),
            GroupSize::Various if count > 0 => self.cols.div_ceil(count),
            GroupSize::Various => return Err(wrong()),
        };
        if self.cols.div_ceil(self.group) != count {
            return Err(format!("{}, not in groups of {}", wrong(), self.group));
        }
        Ok(())
    }

    /// The weight's type in memory, or `None` if no type fits its groups.
    pub fn kind(&self) -> Option<QuantType> {
        int4_type(self.group, self.cols)
    }
}

/// Scales and zeros, row by row.
struct Affine {
    scales: Vec<f32>,
    zeros: Vec<u8>,
}

impl Assembly for Int4Parts {
    fn load(self: Box<Self>) -> Result<HostTensor> {
        let (path, module, kind) = (self.quants.path.clone(), self.module.clone(), self.kind());
        let Int4Parts { layout, rows, cols, group, quants, zeros, scales: stored, groups, .. } = *self;
        let count = cols.div_ceil(group);
        let affine = Affine::load(layout, &module, (rows, count), stored, zeros)?;
        let groups = groups.map(|groups| groups.raw(4)).transpose()?;
        let groups = groups.map(|bytes| group_of_each(&bytes, group, count)).transpose();
        let groups = groups.map_err(|reason| damaged(&path, &module, &reason))?.flatten();
        let bytes = quants.raw(4)?;
        let words = Words { bytes: &bytes, packing: layout.quants(), rows, cols };
        let Some(kind) = kind else {
            let group_of = |col: usize| groups.as_ref().map_or(col / group, |groups| groups[col] as usize);
            return Ok(HostTensor::from_f32(vec![rows, cols], affine.elements(&words, count, group_of)));
        };
        let order = groups.map(|groups| order(&groups, group, count)).transpose();
        let order = order.map_err(|reason| damaged(&path, &module, &reason))?;
        let packed = affine.pack(&words, kind, group, order.as_deref());
        let tensor = HostTensor::owned_groups(kind, vec![rows, cols], packed);
        Ok(match order {
            Some(order) => tensor.with_order(order),
            None => tensor,
        })
    }
}

/// Returns the group of each input, or `None` if groups are in order or unset.
fn group_of_each(bytes: &[u8], group: usize, count: usize) -> Checked<Option<Vec<u32>>> {
    let groups: Vec<u32> = bytes.chunks_exact(4).map(|bytes| little_endian(bytes) as u32).collect();
    if groups.iter().all(|of| *of == u32::MAX) || groups.iter().enumerate().all(|(i, of)| *of as usize == i / group) {
        return Ok(None);
    }
    match groups.iter().find(|of| **of as usize >= count) {
        Some(of) => Err(format!("has an input in group {} of {count} (g_idx)", *of as i32)),
        None => Ok(Some(groups)),
    }
}

/// Returns the inputs in the order of their groups, which must all have the same size.
fn order(groups: &[u32], group: usize, count: usize) -> Checked<Vec<u32>> {
    let mut sizes = vec![0usize; count];
    groups.iter().for_each(|of| sizes[*of as usize] += 1);
    if let Some(of) = sizes.iter().position(|size| *size != group) {
        return Err(format!("has {} inputs in group {of}, not {group} (g_idx)", sizes[of]));
    }
    let mut order: Vec<u32> = (0..groups.len() as u32).collect();
    order.sort_by_key(|input| groups[*input as usize]);
    Ok(order)
}

impl Affine {
    fn load(
        layout: Int4Layout,
        module: &str,
        (rows, count): (usize, usize),
        stored: StoredTensor,
        zeros: Option<StoredTensor>,
    ) -> Result<Self> {
        let mut all = scales(module, stored)?;
        if all.len() == 1 {
            all = vec![all[0]; rows];
        } else if layout.scales_by_group() {
            all = (0..rows)
                .flat_map(|row| (0..count).map(move |of| (row, of)))
                .map(|(row, of)| all[of * rows + row])
                .collect();
        }
        let Some(zeros) = zeros else { return Ok(Affine { scales: all, zeros: vec![8; rows * count] }) };
        let mut bytes = zeros.raw(4)?.to_vec();
        if matches!(layout, Int4Layout::Gptq { less_one: true, .. }) {
            // Adds one to all eight zeros of a word at once. A zero of 0 was stored by borrowing from its neighbour,
            // and this addition carries back. GPTQModel converts its first version to the second in the same way.
            for word in bytes.as_chunks_mut::<4>().0 {
                *word = u32::from_le_bytes(*word).wrapping_add(0x1111_1111).to_le_bytes();
            }
        }
        let words = Words { bytes: &bytes, packing: layout.zeros(), rows, cols: count };
        let mut zeros = vec![0; rows * count];
        words.unpack(0..rows, &mut zeros);
        Ok(Affine { scales: all, zeros })
    }

    /// Packs integers into groups of type `kind`. `order`, if given, reorders the inputs.
    fn pack(&self, words: &Words<'_>, kind: QuantType, group: usize, order: Option<&[u32]>) -> Vec<u8> {
        let Words { rows, cols, .. } = *words;
        let (count, row_bytes) = (cols / group, cols / kind.group() * kind.group_bytes());
        let mut packed = vec![0; rows * row_bytes];
        packed.par_chunks_mut(TILE * row_bytes).enumerate().for_each(|(tile, packed)| {
            let first = tile * TILE;
            let mut quants = vec![0; packed.len() / row_bytes * cols];
            words.unpack(first..first + packed.len() / row_bytes, &mut quants);
            let mut sorted = vec![0; cols];
            for ((row, packed), quants) in packed.chunks_exact_mut(row_bytes).enumerate().zip(quants.chunks_exact(cols))
            {
                let quants = match order {
                    None => quants,
                    Some(order) => {
                        sorted.iter_mut().zip(order).for_each(|(to, input)| *to = quants[*input as usize]);
                        &sorted
                    }
                };
                let groups = packed.chunks_exact_mut(kind.group_bytes()).zip(quants.chunks_exact(kind.group()));
                for (i, (packed, quants)) in groups.enumerate() {
                    let at = (first + row) * count + i * kind.group() / group;
                    pack_int4(self.scales[at], self.zeros[at], quants, packed);
                }
            }
        });
        packed
    }

    /// Computes the elements. `group_of` returns the group of a column.
    fn elements(&self, words: &Words<'_>, count: usize, group_of: impl Fn(usize) -> usize) -> Vec<f32> {
        let Words { rows, cols, .. } = *words;
        let mut elements = Vec::with_capacity(rows * cols);
        let mut quants = vec![0; TILE.min(rows) * cols];
        for first in (0..rows).step_by(TILE) {
            let tile = first..(first + TILE).min(rows);
            words.unpack(tile.clone(), &mut quants[..tile.len() * cols]);
            for (row, quants) in tile.zip(quants.chunks_exact(cols)) {
                elements.extend(quants.iter().enumerate().map(|(col, quant)| {
                    let at = row * count + group_of(col);
                    self.scales[at] * (i32::from(*quant) - i32::from(self.zeros[at])) as f32
                }));
            }
        }
        elements
    }
}
