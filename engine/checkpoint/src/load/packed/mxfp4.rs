//! MXFP4 weights: FP4 (e2m1) codes with a power of two for every 32 columns. gpt-oss stores its experts in this form.
//!
//! A weight `X` consists of `X_blocks`, u8 `[experts, rows, cols / 32, 16]`, and `X_scales`, u8
//! `[experts, rows, cols / 32]`. A byte has the codes of two neighbouring columns, the first in the lower half. A scale
//! is an exponent with a bias of 127. In memory the weight is a stack of matrices, `[experts, rows, cols]`, in the
//! groups of GGUF files. Rows are outputs, whereas the unquantised `X` has outputs as columns.

use super::damaged;
use crate::error::Result;
use crate::load::stored::{Assembly, StoredTensor};
use crate::quantised::{QuantType, pack_mxfp4};
use crate::tensor::HostTensor;

/// Columns that share a scale.
const GROUP: usize = QuantType::MXFP4.group();
/// The exponent that means NaN.
const NAN: u8 = 0xff;

/// Creates a matrix of type MXFP4 from one expert's codes and exponents, in the order of safetensors files. To read an
/// expert of a file, pass its part of `X_blocks` and `X_scales`.
///
/// # Errors
/// A phrase that names the fault, if the numbers of bytes do not match the shape, `cols` is not a multiple of 32, or
/// a scale is NaN.
pub fn mxfp4_matrix(blocks: &[u8], scales: &[u8], rows: usize, cols: usize) -> std::result::Result<HostTensor, String> {
    Ok(HostTensor::owned_groups(QuantType::MXFP4, vec![rows, cols], groups(blocks, scales, &[rows, cols])?))
}

/// Packs the groups of a tensor of this shape.
fn groups(blocks: &[u8], scales: &[u8], shape: &[usize]) -> std::result::Result<Vec<u8>, String> {
    let cols = shape.last().copied().unwrap_or(0);
    if !cols.is_multiple_of(GROUP) {
        return Err(format!("has {cols} columns, which is not a multiple of {GROUP}"));
    }
    let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent)).map(|count| count / GROUP);
    let (pairs, rest) = blocks.as_chunks::<{ GROUP / 2 }>();
    if count != Some(scales.len()) || pairs.len() != scales.len() || !rest.is_empty() {
        let (blocks, scales) = (blocks.len(), scales.len());
        return Err(format!("has {blocks} bytes of codes and {scales} scales for the shape {shape:?}"));
    }
    if scales.contains(&NAN) {
        return Err("has a scale that is NaN".into());
    }
    let mut groups = vec![0; scales.len() * QuantType::MXFP4.group_bytes()];
    let packed = groups.chunks_exact_mut(QuantType::MXFP4.group_bytes());
    packed.zip(pairs.iter().zip(scales)).for_each(|(to, (pairs, &exponent))| pack_mxfp4(exponent, pairs, to));
    Ok(groups)
}

/// The tensors that form a stack of experts' matrices.
#[derive(Debug)]
pub(super) struct Mxfp4Parts {
    module: String,
    /// Experts, rows and columns. Other leading dimensions are possible.
    pub shape: Vec<usize>,
    blocks: StoredTensor,
    scales: StoredTensor,
}

impl Mxfp4Parts {
    /// Checks the parts of a weight.
    ///
    /// # Errors
    /// A phrase that names the fault, if the parts do not match each other.
    pub fn new(module: String, blocks: StoredTensor, scales: StoredTensor) -> std::result::Result<Self, String> {
        for (tensor, what) in [(&blocks, "codes"), (&scales, "scales")] {
            if tensor.dtype.to_string() != "U8" {
                return Err(format!("has {what} of type {}, not U8", tensor.dtype));
            }
        }
        let matches = matches!(blocks.shape.as_slice(), [groups @ .., 16] if *groups == *scales.shape);
        let shape = match scales.shape.as_slice() {
            [outer @ .., across] if matches && !outer.is_empty() && !scales.shape.contains(&0) => {
                across.checked_mul(GROUP).map(|cols| [outer, &[cols]].concat())
            }
            _ => None,
        };
        let Some(shape) = shape else {
            return Err(format!("has codes of shape {:?} and scales of shape {:?}", blocks.shape, scales.shape));
        };
        Ok(Mxfp4Parts { module, shape, blocks, scales })
    }
}

impl Assembly for Mxfp4Parts {
    fn load(self: Box<Self>) -> Result<HostTensor> {
        let Mxfp4Parts { module, shape, blocks, scales } = *self;
        let path = blocks.path.clone();
        let (blocks, scales) = (blocks.raw(1)?, scales.raw(1)?);
        let groups = groups(&blocks, &scales, &shape).map_err(|reason| damaged(&path, &module, &reason))?;
        Ok(HostTensor::owned_groups(QuantType::MXFP4, shape, groups))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use crate::tensor::DType;

    /// The numbers of e2m1, as transformers lists them.
    const NUMBERS: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

    /// Computes the elements like transformers' `convert_moe_packed_tensors`: a byte's lower half comes first, and each
    /// number is multiplied by two to the power of the scale less 127.
    fn converted(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
        let of_byte = |byte: u8| [NUMBERS[usize::from(byte & 15)], NUMBERS[usize::from(byte >> 4)]];
        let elements = blocks.chunks(16).zip(scales).flat_map(|(bytes, &scale)| {
            let power = 2f64.powi(i32::from(scale) - 127);
            bytes.iter().flat_map(move |&byte| of_byte(byte)).map(move |x| (f64::from(x) * power) as f32)
        });
        elements.collect()
    }

    #[test]
    fn elements_equal_those_of_transformers() {
        let (rows, cols) = (6, 96);
        let blocks: Vec<u8> = (0..rows * cols / 2).map(|i| (i * 167 % 256) as u8).collect();
        // Includes subnormal scales and the largest one.
        let scales: Vec<u8> = (0..18).map(|i| [0, 1, 2, 127, 120, 130, 251, 254, 126][i % 9]).collect();
        let tensor = mxfp4_matrix(&blocks, &scales, rows, cols).unwrap();
        assert_eq!((tensor.quantised(), tensor.shape()), (Some(QuantType::MXFP4), &[rows, cols][..]));
        assert_eq!(tensor.to_dtype(DType::F32).elements().to_f32(), converted(&blocks, &scales));
    }

    #[test]
    fn wrong_sizes_and_nan_are_refused() {
        let refused = |blocks: usize, scales: &[u8], rows: usize, cols: usize| {
            mxfp4_matrix(&vec![0; blocks], scales, rows, cols).err().unwrap()
        };
        assert!(refused(32, &[1, 2], 1, 48).contains("48 columns"));
        assert!(refused(32, &[1], 1, 64).contains("32 bytes of codes and 1 scales"));
        assert!(refused(31, &[1, 2], 1, 64).contains("31 bytes"));
        assert!(refused(32, &[1, 2], 2, 64).contains("[2, 64]"));
        assert!(refused(32, &[1, 2], usize::MAX, 64).contains("scales for the shape"));
        assert!(refused(32, &[1, 255], 1, 64).contains("NaN"));
        assert_eq!(mxfp4_matrix(&[], &[], 0, 64).unwrap().shape(), [0, 64]);
    }
}
