//! Quantised matrices as the kernel for them reads them: brought to one of three forms of codes, in its order.
//!
//! | types | codes | what is rounded |
//! | --- | --- | --- |
//! | Q4_0, int4 | 4 bits | nothing; of int4 the scales, which are in f32 in memory, to f16 (most files have them in 16 bits) |
//! | Q8_0 | 8 bits | nothing |
//! | Q4_K | 4 bits | scales, and minima over scales, to f16; then the codes less these |
//! | Q5_K, Q6_K | 8 bits | the same |
//! | FP8 | FP8 | scales to f16 |
//!
//! So an element is off by `2^-11` of its code's number times its scale at most, for a rounded scale; with a minimum by `2^-11` of
//! that and of itself besides. Scales are stored over a power of two of the whole matrix, so that the range of f16 costs nothing but those
//! of `2^-28` of the largest. Projections of one input that differ in type are all in 8 bits.

use half::{bf16, f16};
use kernels::element::ElementType;
use kernels::gemm::quantised::layout::{CodeForm, FRAGMENT_ROWS, PackedShape};
use rayon::prelude::*;

use crate::quantised::{Group, QuantType};
use crate::tensor::HostTensor;

/// How the matrices of a projection are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodePacking {
    form: CodeForm,
    /// Columns of a group.
    group: u32,
}

/// A row of a quantised matrix, its groups one after the other; none for a row of zeros.
pub type QuantisedRow<'a> = Option<(QuantType, &'a [u8])>;

/// A matrix in the kernel's form.
pub struct CodedMatrix {
    /// Its shape.
    pub shape: PackedShape,
    /// What all elements are multiplied by: a power of two.
    pub factor: f32,
    /// [`PackedShape::code_bytes`].
    pub codes: Vec<u8>,
    /// [`PackedShape::scales`].
    pub scales: Vec<u32>,
}

/// The scale of a group, and what is taken off its numbers.
#[derive(Clone, Copy, Default)]
struct GroupScale {
    scale: f32,
    /// What is taken off, in elements.
    min: f32,
    /// What is taken off, in codes.
    zero: f32,
}

/// Beyond so many scales a minimum hides what codes say, in f16.
const LARGEST_OFFSET: f32 = 30_000.0;

impl CodePacking {
    /// How projections with these weights, and activations of this type, can be computed without elements of 16 bits; `None` if
    /// they cannot: they are not quantised, not in forms that go together, or have their columns in an order of their own.
    pub fn of(weights: &[&HostTensor], element: ElementType) -> Option<CodePacking> {
        let one = |tensor: &&HostTensor| {
            let is_matrix = matches!(*tensor.shape(), [rows, cols] if rows > 0 && cols > 0);
            let kind = tensor.quantised().filter(|_| is_matrix && tensor.order().is_none())?;
            let form = match kind {
                // Minima are no whole number of scales, and bf16 has too few bits for them.
                QuantType::Q4_K | QuantType::Q5_K if element == ElementType::Bf16 => return None,
                QuantType::Q8_0 | QuantType::Q5_K | QuantType::Q6_K => CodeForm::Int8,
                QuantType::Q4_0 | QuantType::Q4_K => CodeForm::Int4,
                QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => CodeForm::Int4,
                QuantType::Fp8G32 | QuantType::Fp8G128 => CodeForm::Fp8,
            };
            Some(CodePacking { form, group: kind.part() as u32 })
        };
        let all = weights.iter().map(one).collect::<Option<Vec<_>>>()?;
        let both = |a: CodePacking, b: CodePacking| {
            let form = match (a.form, b.form) {
                (a, b) if a == b => a,
                (CodeForm::Fp8, _) | (_, CodeForm::Fp8) => return None,
                _ => CodeForm::Int8,
            };
            Some(CodePacking { form, group: a.group.min(b.group) })
        };
        let (first, rest) = all.split_first()?;
        rest.iter().try_fold(*first, |a, &b| both(a, b))
    }

    /// A matrix of these rows, of `cols` columns each. `None` if a scale is no number.
    pub fn pack(self, rows: &[QuantisedRow<'_>], cols: usize, element: ElementType) -> Option<CodedMatrix> {
        let shape = PackedShape { form: self.form, n: rows.len() as u32, k: cols as u32, group: self.group };
        let mut codes = vec![0; shape.code_bytes()];
        let mut groups = vec![GroupScale::default(); shape.scales()];
        let fragments = codes.par_chunks_mut(shape.fragment_code_bytes());
        let fragments = fragments.zip(groups.par_chunks_mut(shape.fragment_scales()));
        fragments.zip(rows.par_chunks(FRAGMENT_ROWS as usize)).for_each(|((codes, groups), rows)| {
            for (row, of_row) in (0..).zip(rows) {
                if let Some((kind, bytes)) = of_row {
                    put_row(shape, row, *kind, bytes, codes, groups);
                }
            }
        });
        let size = |group: &GroupScale| group.scale.abs();
        let is_finite = groups.par_iter().all(|group| group.scale.is_finite() && group.min.is_finite());
        let largest = groups.par_iter().map(size).reduce(|| 0.0, f32::max);
        let factor = factor_of(largest).filter(|_| is_finite)?;
        let scales = groups.par_iter().map(|group| group.word(factor, element)).collect();
        Some(CodedMatrix { shape, factor, codes, scales })
    }
}

/// The power of two over which the largest scale is near the largest that f16 has.
fn factor_of(largest: f32) -> Option<f32> {
    if largest == 0.0 {
        return Some(1.0);
    }
    let exponent = largest.log2().floor() as i32 - 14;
    // A power of two that is no subnormal number, nor its inverse.
    (-126..=126).contains(&exponent).then(|| 2f32.powi(exponent))
}

/// Puts a row of quantised groups into its fragment.
fn put_row(shape: PackedShape, row: u32, kind: QuantType, bytes: &[u8], codes: &mut [u8], groups: &mut [GroupScale]) {
    let mut column = 0;
    for bytes in bytes.chunks_exact(kind.group_bytes()) {
        let group = Group::read(kind, bytes);
        for (part, quants) in group.quants[..kind.group()].chunks_exact(kind.part()).enumerate() {
            let (scale, min) = group.scale_and_min(kind, part);
            // Signed codes are counted from their zero already.
            let zero = if shape.form == CodeForm::Int4 { f32::from(group.zero) } else { 0.0 };
            let is_constant = min.abs() > LARGEST_OFFSET * scale.abs();
            let scale = if is_constant {
                GroupScale { scale: min, min: 0.0, zero: 1.0 }
            } else {
                GroupScale { scale, min, zero }
            };
            for first in (0..kind.part() as u32).step_by(shape.group as usize) {
                groups[shape.scale_place(row, (column + first) / shape.group)] = scale;
            }
            if !is_constant {
                for (at, &quant) in (column..).zip(quants) {
                    let (byte, bit) = shape.code_place(row, at);
                    codes[byte] |= match shape.form {
                        CodeForm::Int4 => quant << bit,
                        CodeForm::Int8 => quant.wrapping_sub(group.zero),
                        CodeForm::Fp8 => quant,
                    };
                }
            }
            column += kind.part() as u32;
        }
    }
}

impl GroupScale {
    /// The group's word, see [`kernels::gemm::quantised::layout`].
    fn word(self, factor: f32, element: ElementType) -> u32 {
        let scale = f16::from_f32(self.scale / factor);
        let rounded = scale.to_f32() * factor;
        // Over the rounded scale, so that the minimum is what it was.
        let over = if rounded == 0.0 { self.scale } else { rounded };
        let offset = -self.zero - if self.min == 0.0 { 0.0 } else { self.min / over };
        let offset = match element {
            ElementType::F16 => f16::from_f32(offset).to_bits(),
            ElementType::Bf16 => bf16::from_f32(offset).to_bits(),
        };
        u32::from(scale.to_bits()) | u32::from(offset) << 16
    }
}

#[cfg(test)]
#[path = "packed/tests.rs"]
mod tests;
