//! Tensors of quantised groups.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::{DType, Groups, HostTensor, Storage};
use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::quantised::QuantType;

impl HostTensor {
    /// Creates a tensor from the quantised groups in `map`. The caller must have checked that their number matches the
    /// type and shape, and that rows are a multiple of the group size.
    pub fn mapped_groups(kind: QuantType, shape: Vec<usize>, map: Mapping) -> Self {
        Self::groups(Groups { kind, order: None }, shape, Storage::Mapped(map))
    }

    /// Like [`HostTensor::mapped_groups`], with groups that the tensor owns.
    pub fn owned_groups(kind: QuantType, shape: Vec<usize>, groups: Vec<u8>) -> Self {
        Self::groups(Groups { kind, order: None }, shape, Storage::Groups(groups))
    }

    /// Declares that the columns are stored in a different order: stored column `i` is column `order[i]`. The caller
    /// must have checked that the order contains each column once.
    ///
    /// # Panics
    /// If the tensor is not quantised.
    pub fn with_order(self, order: Vec<u32>) -> Self {
        let Some(groups) = self.quantised else { panic!("only a quantised matrix has an order of its columns") };
        HostTensor { quantised: Some(Groups { order: Some(order.into()), ..groups }), ..self }
    }

    pub(super) fn groups(groups: Groups, shape: Vec<usize>, storage: Storage) -> Self {
        let kind = groups.kind;
        let tensor = HostTensor { dtype: DType::F32, quantised: Some(groups), shape, storage };
        debug_assert_eq!(tensor.bytes().len() * kind.group(), tensor.len() * kind.group_bytes());
        tensor
    }

    /// Returns the tensor in f32 with a function applied to each element.
    pub fn map(self, function: impl Fn(f32) -> f32) -> Self {
        let shape = self.shape.clone();
        let elements = self.to_dtype(DType::F32).elements().to_f32();
        HostTensor::from_f32(shape, elements.into_iter().map(function).collect())
    }

    /// The type of quantisation, or `None` if the bytes are elements.
    pub fn quantised(&self) -> Option<QuantType> {
        self.quantised.as_ref().map(|groups| groups.kind)
    }

    /// The order in which the columns of a quantised matrix are stored, if it is not their own: stored column `i` is
    /// column `order[i]`.
    pub fn order(&self) -> Option<&Arc<[u32]>> {
        self.quantised.as_ref()?.order.as_ref()
    }

    /// Decodes a quantised tensor to f32. Other tensors are returned unchanged.
    pub fn into_elements(self) -> Self {
        if self.quantised.is_some() { self.to_dtype(DType::F32) } else { self }
    }

    /// The total number of elements.
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Decodes the elements to type `to`. Only few elements at a time are held in f32.
    pub(super) fn dequantised(&self, to: DType) -> Self {
        let Some(kind) = self.quantised() else { unreachable!("the caller checked that the tensor is quantised") };
        // If columns are reordered, decode whole rows.
        let some = if self.order().is_some() { self.shape[1].max(1) } else { kind.group() * 64 };
        let mut wide = vec![0.0; some];
        let mut sorted = vec![0.0; if self.order().is_some() { some } else { 0 }];
        let mut narrow = match to {
            DType::F32 => Storage::F32(Vec::with_capacity(self.len())),
            DType::F16 => Storage::F16(Vec::with_capacity(self.len())),
            DType::Bf16 => Storage::Bf16(Vec::with_capacity(self.len())),
        };
        for bytes in self.bytes().chunks(some / kind.group() * kind.group_bytes()) {
            let wide = &mut wide[..bytes.len() / kind.group_bytes() * kind.group()];
            kind.decode(bytes, wide);
            let wide = match self.order() {
                None => wide,
                Some(order) => {
                    wide.iter().zip(&**order).for_each(|(&x, &col)| sorted[col as usize] = x);
                    &mut *sorted
                }
            };
            match &mut narrow {
                Storage::F16(v) => v.extend(wide.iter().map(|&x| f16::from_f32(x))),
                Storage::Bf16(v) => v.extend(wide.iter().map(|&x| bf16::from_f32(x))),
                Storage::F32(v) => v.extend_from_slice(wide),
                _ => unreachable!("the result has elements"),
            }
        }
        HostTensor { dtype: to, quantised: None, shape: self.shape.clone(), storage: narrow }
    }

    /// Returns a copy with the rows of a matrix, or the elements of a vector, reordered. Row `i` of the result is row
    /// `order(i)`.
    pub fn reordered(&self, order: impl Fn(usize) -> usize) -> Self {
        self.gathered((0..self.shape[0]).map(order))
    }

    /// Returns a copy of some rows of a matrix, or elements of a vector, in the given order.
    pub fn gathered(&self, rows: impl IntoIterator<Item = usize>) -> Self {
        let (row, mut shape, mut bytes) = (self.row_bytes(), self.shape.clone(), Vec::new());
        shape[0] = 0;
        for i in rows {
            bytes.extend_from_slice(&self.bytes()[i * row..][..row]);
            shape[0] += 1;
        }
        self.like(shape, &bytes)
    }

    /// Returns the range of a row's bytes that contains some of its columns.
    pub(super) fn col_bytes(&self, range: &Range<usize>) -> Result<Range<usize>> {
        let Some(kind) = self.quantised() else {
            return Ok(range.start * self.dtype.size()..range.end * self.dtype.size());
        };
        let group = kind.group();
        if self.order().is_some() {
            return Err(Error::Option(format!(
                "tensor-parallel-size: a matrix in {kind} stores its columns in a different order (desc_act), so it cannot be \
                 divided among workers"
            )));
        }
        if !range.start.is_multiple_of(group) || !range.end.is_multiple_of(group) {
            return Err(Error::Option(format!(
                "tensor-parallel-size: a worker would have {} columns of a matrix in {kind}, which is not a multiple of \
                 the group size {group}",
                range.len()
            )));
        }
        Ok(range.start / group * kind.group_bytes()..range.end / group * kind.group_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    fn tensor(kind: QuantType, rows: usize, cols: usize) -> HostTensor {
        let bytes = kind.row_bytes(cols).unwrap() * rows;
        // These bytes give no group a NaN scale.
        let groups = (0..bytes).map(|i| (i * 41 % 59) as u8).collect();
        HostTensor::owned_groups(kind, vec![rows, cols], groups)
    }

    fn f32s(tensor: HostTensor) -> Vec<f32> {
        tensor.to_dtype(DType::F32).elements().to_f32()
    }

    #[test]
    fn parts_have_the_elements_of_the_whole() {
        for kind in QuantType::all() {
            let (rows, cols, group) = (5, 3 * kind.group(), kind.group());
            let whole = f32s(tensor(kind, rows, cols));
            assert!(whole.iter().all(|x| x.is_finite()) && whole.iter().any(|&x| x != 0.0), "{kind}");
            assert_eq!(f32s(tensor(kind, rows, cols).into_rows(1..3)), whole[cols..3 * cols], "{kind}");
            assert_eq!(f32s(tensor(kind, rows, cols).rows(4..5)), whole[4 * cols..], "{kind}");
            let part = f32s(tensor(kind, rows, cols).into_cols(group..3 * group).unwrap());
            let want: Vec<f32> = whole.chunks(cols).flat_map(|row| &row[group..]).copied().collect();
            assert_eq!(part, want, "{kind}");
            let reversed = f32s(tensor(kind, rows, cols).reordered(|i| rows - 1 - i));
            assert_eq!(reversed[..cols], whole[4 * cols..], "{kind}");
            let cut = tensor(kind, rows, cols).into_cols(16..group).err().unwrap().to_string();
            assert!(cut.contains(&kind.to_string()) && cut.contains(&group.to_string()), "{cut}");
        }
    }

    #[test]
    fn reordered_columns_are_decoded_in_the_original_order() {
        let (kind, rows, cols) = (QuantType::Int4G32, 3, 64);
        let order: Vec<u32> = (0..cols as u32).map(|i| i * 29 % 64).collect();
        let stored = f32s(tensor(kind, rows, cols));
        let mut want = vec![f32::NAN; rows * cols];
        for (i, x) in stored.iter().enumerate() {
            want[i / cols * cols + order[i % cols] as usize] = *x;
        }
        let ordered = || tensor(kind, rows, cols).with_order(order.clone());
        assert_eq!(f32s(ordered()), want);
        assert_eq!(f32s(ordered().into_rows(1..3)), want[cols..]);
        assert_eq!(f32s(ordered().rows(2..3)), want[2 * cols..]);
        let refused = ordered().into_cols(0..32).err().unwrap().to_string();
        assert!(refused.contains("desc_act"), "{refused}");
        assert_eq!(ordered().into_cols(0..64).unwrap().shape(), [rows, cols]);
    }

    #[test]
    fn elements_are_rounded_to_the_requested_type() {
        let exact = f32s(tensor(QuantType::Q4_K, 3, 512));
        let rounded: Vec<f32> = exact.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        assert_eq!(tensor(QuantType::Q4_K, 3, 512).to_dtype(DType::F16).elements().to_f32(), rounded);
    }
}
