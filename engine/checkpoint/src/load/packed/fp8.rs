//! FP8 e4m3 weights with one scale per tensor, output or block. A stack of experts has separate scales for each expert.

use kernels::eight_bit::{EightBit, Fp8};
use rayon::prelude::*;

use super::{damaged, scales};
use crate::config::Fp8Scales;
use crate::error::Result;
use crate::load::stored::{Assembly, StoredTensor, StoredType};
use crate::quantised::{QuantType, fp8_type, pack_fp8};
use crate::tensor::HostTensor;

/// The tensors that form a weight. An element is the number of its code times the scale of its block.
#[derive(Debug)]
pub(super) struct Fp8Parts {
    module: String,
    /// The weight's shape: outputs and inputs, and before them the experts of a stack.
    pub shape: Vec<usize>,
    /// Number of outputs and of inputs.
    rows: usize,
    cols: usize,
    /// Outputs and inputs that share a scale. The last blocks may be smaller.
    block: [usize; 2],
    codes: StoredTensor,
    scales: StoredTensor,
}

impl Fp8Parts {
    /// Checks the parts of a weight.
    ///
    /// # Errors
    /// A phrase that names the fault, if the parts do not match each other.
    pub fn new(
        module: String,
        codes: StoredTensor,
        scales: StoredTensor,
        configured: Fp8Scales,
    ) -> std::result::Result<Self, String> {
        let shape = codes.shape.clone();
        let ([.., rows, cols], 2..=3) = (&*shape, shape.len()) else {
            return Err(format!("has the shape {shape:?}, which is neither a matrix nor a stack of matrices"));
        };
        let (rows, cols, outer) = (*rows, *cols, &shape[..shape.len() - 2]);
        if shape.contains(&0) {
            return Err("has no elements".into());
        }
        let StoredType::Float(_) = scales.dtype else {
            return Err(format!("has scales of type {}, which is not supported", scales.dtype));
        };
        let of_each = scales.shape.strip_prefix(outer);
        let block = match (configured, of_each) {
            (Fp8Scales::Outputs, Some([] | [1] | [1, 1])) => [rows, cols],
            (Fp8Scales::Outputs, Some([outputs] | [outputs, 1])) if *outputs == rows => [1, cols],
            (Fp8Scales::Blocks(block), Some(&[down, across]))
                if [down, across] == [rows.div_ceil(block[0]), cols.div_ceil(block[1])] =>
            {
                block
            }
            (Fp8Scales::Blocks([down, across]), _) => {
                let found = &scales.shape;
                return Err(format!("has scales of shape {found:?} for {shape:?} in blocks of {down} x {across}"));
            }
            _ => return Err(format!("has scales of shape {:?} for a weight of shape {shape:?}", scales.shape)),
        };
        Ok(Fp8Parts { module, rows, cols, shape, block, codes, scales })
    }

    /// The weight's type in memory, or `None` if no type fits its blocks.
    pub fn kind(&self) -> Option<QuantType> {
        let [_, across] = self.block;
        // A block with all columns can be divided into groups of any size that divides the columns.
        fp8_type(if across >= self.cols { self.cols } else { across }, self.cols)
    }
}

impl Assembly for Fp8Parts {
    fn load(self: Box<Self>) -> Result<HostTensor> {
        let kind = self.kind();
        let Fp8Parts { module, shape, rows, cols, block, codes, scales: stored } = *self;
        let path = codes.path.clone();
        let scales = scales(&module, stored)?;
        let codes = codes.raw(1)?;
        if codes.par_iter().any(|code| code & 0x7f == 0x7f) {
            return Err(damaged(&path, &module, "has an element that is NaN"));
        }
        let [down, across] = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
        // Rows of all experts are counted together. Blocks end with the rows of an expert.
        let scale =
            |row: usize, col: usize| scales[(row / rows * down + row % rows / block[0]) * across + col / block[1]];
        let Some(kind) = kind else {
            let elements = codes.iter().enumerate().map(|(i, code)| scale(i / cols, i % cols) * Fp8::decode(*code));
            return Ok(HostTensor::from_f32(shape, elements.collect()));
        };
        let group = kind.group();
        let row_bytes = cols / group * kind.group_bytes();
        let mut packed = vec![0; codes.len() / cols * row_bytes];
        packed.par_chunks_mut(row_bytes).zip(codes.par_chunks(cols)).enumerate().for_each(|(row, (packed, codes))| {
            let groups = packed.chunks_exact_mut(kind.group_bytes()).zip(codes.chunks_exact(group));
            groups.enumerate().for_each(|(i, (packed, codes))| pack_fp8(scale(row, i * group), codes, packed));
        });
        Ok(HostTensor::owned_groups(kind, shape, packed))
    }
}
