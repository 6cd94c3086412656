//! Quantised matrices, converted to one of three forms of codes, in the order of the GPU kernel's reads.
//!
//! | types | codes | rounding |
//! | --- | --- | --- |
//! | Q4_0, int4 | 4 bits | none for Q4_0; scales of int4, f32 in memory, to f16 (most files store them in 16 bits) |
//! | Q8_0, Q5_0, IQ4_NL | 8 bits | none |
//! | Q4_1, Q4_K | 4 bits | scales and offsets (minimum / scale) to f16; then code minus offset to f16 |
//! | Q5_1, Q2_K, Q3_K, Q5_K, Q6_K, IQ4_XS | 8 bits | like Q4_K |
//! | FP8 | FP8 | scales to f16 |
//! | MXFP4 | FP4 | none |
//!
//! Only experts have kernels for FP4, and they have none for FP8. Other such projections become 16-bit elements.
//!
//! A rounded scale causes an error of at most `2^-11` of an element's code times its scale. With a minimum, `2^-11` of
//! the minimum and of the element itself are added. Scales are stored divided by a common power of two. So the range of
//! f16 only affects scales below `2^-28` of the matrix's largest scale. If projections of one input have different
//! types, all use 8 bits.

use half::{bf16, f16};
use kernels::element::ElementType;
use kernels::gemm::quantised::layout::{CodeForm, FRAGMENT_ROWS, PackedShape};
use rayon::prelude::*;

use crate::quantised::{Group, QuantType};
use crate::tensor::HostTensor;

/// The form of a projection's coded matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodePacking {
    form: CodeForm,
    /// Columns per group.
    group: u32,
}

/// The kernels that read a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Kernels for one projection.
    Dense,
    /// Kernels for the projections of all experts.
    Grouped,
}

/// A row of a quantised matrix with its groups one after the other, or `None` for a row of zeros.
pub type QuantisedRow<'a> = Option<(QuantType, &'a [u8])>;

/// A matrix in the kernel's form.
pub struct CodedMatrix {
    /// Its shape.
    pub shape: PackedShape,
    /// The factor of all elements, a power of two.
    pub factor: f32,
    /// The codes, [`PackedShape::code_bytes`] bytes.
    pub codes: Vec<u8>,
    /// The words of all groups, [`PackedShape::scales`] of them.
    pub scales: Vec<u32>,
}

/// The scale of a group, and the amount subtracted from its elements or codes.
#[derive(Clone, Copy, Default)]
struct GroupScale {
    scale: f32,
    /// Subtracted from elements.
    min: f32,
    /// Subtracted from codes.
    zero: f32,
}

/// If a minimum exceeds this many scales, adding it in f16 would lose the codes. The group is then stored as a
/// constant.
const LARGEST_OFFSET: f32 = 30_000.0;

impl CodePacking {
    /// Selects a form for projections with these weights and this type of activations. Returns `None` if they need
    /// 16-bit elements: if a weight is not quantised or has reordered columns, or the types cannot be combined.
    pub fn for_weights(weights: &[&HostTensor], element: ElementType, usage: Use) -> Option<CodePacking> {
        let one = |tensor: &&HostTensor| {
            let is_matrix = matches!(*tensor.shape(), [rows, cols] if rows > 0 && cols > 0);
            let kind = tensor.quantised().filter(|_| is_matrix && tensor.order().is_none())?;
            let form = match kind {
                // Minima are not multiples of the scales, and bf16 has too few bits for the offsets.
                kind if kind.has_minima() && element == ElementType::Bf16 => return None,
                QuantType::Q8_0 | QuantType::Q5_0 | QuantType::Q5_1 | QuantType::IQ4_NL => CodeForm::Int8,
                QuantType::Q2_K | QuantType::Q3_K | QuantType::Q5_K | QuantType::Q6_K => CodeForm::Int8,
                QuantType::IQ4_XS => CodeForm::Int8,
                QuantType::Q4_0 | QuantType::Q4_1 | QuantType::Q4_K => CodeForm::Int4,
                QuantType::MXFP4 if usage == Use::Dense => return None,
                QuantType::MXFP4 => CodeForm::Fp4,
                QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => CodeForm::Int4,
                QuantType::Fp8G32 | QuantType::Fp8G128 if usage == Use::Grouped => return None,
                QuantType::Fp8G32 | QuantType::Fp8G128 => CodeForm::Fp8,
            };
            Some(CodePacking { form, group: kind.part() as u32 })
        };
        let all = weights.iter().map(one).collect::<Option<Vec<_>>>()?;
        let both = |a: CodePacking, b: CodePacking| {
            let form = match (a.form, b.form) {
                (a, b) if a == b => a,
                (CodeForm::Fp8 | CodeForm::Fp4, _) | (_, CodeForm::Fp8 | CodeForm::Fp4) => return None,
                _ => CodeForm::Int8,
            };
            Some(CodePacking { form, group: a.group.min(b.group) })
        };
        let (first, rest) = all.split_first()?;
        rest.iter().try_fold(*first, |a, &b| both(a, b))
    }

    /// Packs a matrix of these rows with `cols` columns. Returns `None` if a scale is not finite, or too large or
    /// small.
    pub fn pack(self, rows: &[QuantisedRow<'_>], cols: usize, element: ElementType) -> Option<CodedMatrix> {
        let shape = PackedShape { form: self.form, n: rows.len() as u32, k: cols as u32, group: self.group };
        let mut codes = vec![0; shape.code_bytes()];
        let mut groups = vec![GroupScale::default(); shape.scales()];
        let fragments = codes.par_chunks_mut(shape.fragment_code_bytes());
        let fragments = fragments.zip(groups.par_chunks_mut(shape.fragment_scales()));
        fragments.zip(rows.par_chunks(FRAGMENT_ROWS as usize)).for_each(|((codes, groups), rows)| {
            for (row, groups_of_row) in (0..).zip(rows) {
                if let Some((kind, bytes)) = groups_of_row {
                    put_row(shape, row, *kind, bytes, codes, groups);
                }
            }
        });
        let size = |group: &GroupScale| group.scale.abs();
        let is_finite = groups.par_iter().all(|group| group.scale.is_finite() && group.min.is_finite());
        let largest = groups.par_iter().map(size).reduce(|| 0.0, f32::max);
        let factor = common_factor(largest).filter(|_| is_finite)?;
        let scales = groups.par_iter().map(|group| group.word(factor, element)).collect();
        Some(CodedMatrix { shape, factor, codes, scales })
    }
}

/// Returns the power of two that scales the largest scale close to the maximum of f16.
fn common_factor(largest: f32) -> Option<f32> {
    if largest == 0.0 {
        return Some(1.0);
    }
    let exponent = largest.log2().floor() as i32 - 14;
    // Neither the power of two nor its inverse may be subnormal.
    (-126..=126).contains(&exponent).then(|| 2f32.powi(exponent))
}

/// Packs a row of quantised groups into its fragment.
fn put_row(shape: PackedShape, row: u32, kind: QuantType, bytes: &[u8], codes: &mut [u8], groups: &mut [GroupScale]) {
    let mut column = 0;
    for bytes in bytes.chunks_exact(kind.group_bytes()) {
        let group = Group::read(kind, bytes);
        for (part, quants) in group.quants[..kind.group()].chunks_exact(kind.part()).enumerate() {
            let (scale, min) = group.scale_and_min(kind, part);
            // Codes of 8 bits are signed, so their zero is already subtracted.
            let zero = if shape.form == CodeForm::Int4 { f32::from(group.zero) } else { 0.0 };
            // The numbers of FP4 codes are half of the integers that scales multiply.
            let scale = if shape.form == CodeForm::Fp4 { 2.0 * scale } else { scale };
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
                        CodeForm::Int4 | CodeForm::Fp4 => quant << bit,
                        CodeForm::Int8 => group.number(kind, quant) as u8,
                        CodeForm::Fp8 => quant,
                    };
                }
            }
            column += kind.part() as u32;
        }
    }
}

impl GroupScale {
    /// Returns the group's word (see [`kernels::gemm::quantised::layout`]).
    fn word(self, factor: f32, element: ElementType) -> u32 {
        let scale = f16::from_f32(self.scale / factor);
        let rounded = scale.to_f32() * factor;
        // Divided by the rounded scale, so that the kernel reproduces the original minimum.
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
