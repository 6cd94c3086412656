//! 8-bit integer weights of compressed-tensors checkpoints, with one scale per tensor, output or group of inputs.
//!
//! They are stored as bytes, or four in a 32-bit word with 128 added to each. In memory they are of type Q8_0, whose
//! scales are f16. If that would change a scale, the weight becomes f32 elements instead.

use half::f16;
use rayon::prelude::*;

use super::{extents, scales};
use crate::config::GroupSize;
use crate::error::Result;
use crate::load::stored::{Assembly, StoredTensor, StoredType};
use crate::quantised::QuantType;
use crate::tensor::HostTensor;

const KIND: QuantType = QuantType::Q8_0;

/// The tensors that form a weight. An element is an integer times the scale of its group.
#[derive(Debug)]
pub(super) struct Int8Parts {
    module: String,
    /// Number of outputs and of inputs.
    pub rows: usize,
    pub cols: usize,
    /// Elements of a row that share a scale.
    group: usize,
    /// Whether integers are packed into words.
    is_packed: bool,
    quants: StoredTensor,
    scales: StoredTensor,
}

impl Int8Parts {
    /// Checks the parts of a weight. `shape` is the file's tensor with the dimensions of packed integers.
    ///
    /// # Errors
    /// A phrase that names the fault, if the parts do not match each other.
    pub fn new(
        module: String,
        quants: StoredTensor,
        scales: StoredTensor,
        shape: Option<StoredTensor>,
        configured: GroupSize,
    ) -> std::result::Result<Self, String> {
        let is_packed = quants.dtype == StoredType::Other("I32".into());
        let &[rows, width] = quants.shape.as_slice() else {
            return Err(format!("has integers of shape {:?}, which is not a matrix", quants.shape));
        };
        let mut cols = if is_packed { width.checked_mul(4).ok_or("is too large")? } else { width };
        if let Some(shape) = shape {
            cols = extents(shape, rows, cols, 4)?;
        }
        if rows == 0 || cols == 0 {
            return Err("has no elements".into());
        }
        let StoredType::Float(_) = scales.dtype else {
            return Err(format!("has scales of type {}, which is not supported", scales.dtype));
        };
        let wrong = || format!("has scales of shape {:?} for {rows} outputs and {cols} inputs", scales.shape);
        let count = match *scales.shape.as_slice() {
            [] | [1] => 1,
            [outputs] if outputs == rows => 1,
            [outputs, count] if count > 0 && (outputs == rows || (outputs, count) == (1, 1)) => count,
            _ => return Err(wrong()),
        };
        let group = match configured {
            GroupSize::Row => cols,
            GroupSize::Of(group) => group.min(cols),
            GroupSize::Various => cols.div_ceil(count),
        };
        if cols.div_ceil(group) != count {
            return Err(format!("{}, not in groups of {group}", wrong()));
        }
        Ok(Int8Parts { module, rows, cols, group, is_packed, quants, scales })
    }

    /// The weight's type in memory, or `None` if its groups do not fit.
    pub fn kind(&self) -> Option<QuantType> {
        let fits = [self.group, self.cols].iter().all(|size| size.is_multiple_of(KIND.group()));
        fits.then_some(KIND)
    }
}

impl Assembly for Int8Parts {
    fn load(self: Box<Self>) -> Result<HostTensor> {
        let is_grouped = self.kind().is_some();
        let Int8Parts { module, rows, cols, group, is_packed, quants, scales: stored } = *self;
        let (count, scales) = (cols.div_ceil(group), scales(&module, stored)?);
        let scale =
            |row: usize, col: usize| if scales.len() == 1 { scales[0] } else { scales[row * count + col / group] };
        let bytes = quants.raw(if is_packed { 4 } else { 1 })?;
        let stride = bytes.len() / rows;
        let quant = |byte: u8| if is_packed { byte ^ 0x80 } else { byte };
        if !is_grouped || scales.iter().any(|&scale| f16::from_f32(scale).to_f32() != scale) {
            let row = |(row, bytes)| {
                let bytes: &[u8] = bytes;
                let element = move |(col, &byte)| scale(row, col) * f32::from(quant(byte) as i8);
                bytes[..cols].iter().enumerate().map(element)
            };
            return Ok(HostTensor::from_f32(
                vec![rows, cols],
                bytes.chunks(stride).enumerate().flat_map(row).collect(),
            ));
        }
        let row_bytes = cols / KIND.group() * KIND.group_bytes();
        let mut packed = vec![0; rows * row_bytes];
        packed.par_chunks_mut(row_bytes).zip(bytes.par_chunks(stride)).enumerate().for_each(|(row, (to, bytes))| {
            let groups = to.chunks_exact_mut(KIND.group_bytes()).zip(bytes.chunks_exact(KIND.group()));
            for (i, (to, bytes)) in groups.enumerate() {
                to[..2].copy_from_slice(&f16::from_f32(scale(row, i * KIND.group())).to_le_bytes());
                to[2..].iter_mut().zip(bytes).for_each(|(to, &byte)| *to = quant(byte));
            }
        });
        Ok(HostTensor::owned_groups(KIND, vec![rows, cols], packed))
    }
}
