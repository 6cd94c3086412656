//! Projections with quantised weights: random codes and scales, and their reference results.

use half::f16;
use kernels::eight_bit::{EightBit, Fp8};
use kernels::gemm::plan::{GemmKernel, GemmPlan};
use kernels::gemm::quantised::layout::{CodeForm, PackedShape};
use kernels::gemm::quantised::plan::{PackedOperand, QuantisedPlan};
use launch::Result;

use crate::gpu::Gpu;
use crate::number::{ProblemRng, Type};
use crate::product::{Data, PlacedProduct, ProductProblem};

/// The numbers of FP4 codes.
const E2M1: [f64; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A projection with a quantised weight.
#[derive(Clone, Debug)]
pub struct QuantisedProblem {
    /// The plan of the launch.
    pub plan: QuantisedPlan,
    /// Activations, bias and output.
    pub rest: ProductProblem,
    ty: Type,
    codes: Vec<u8>,
    scales: Vec<u32>,
    factor: f32,
    /// The dequantised elements of the weight.
    pub(crate) elements: Vec<f64>,
}

impl QuantisedProblem {
    /// Creates a problem for any plan, whether it is the best one or not. An element is the scaled sum of its code and
    /// an offset. Offsets are integers in `bf16` and fractions in `f16`. FP8 codes have no offsets.
    pub fn new(plan: QuantisedPlan, data: Data) -> QuantisedProblem {
        let (packed, ty) = (plan.packed(), data.ty);
        let PackedShape { form, n, k, group } = packed;
        let mut random = ProblemRng(data.seed ^ 0x51);
        let factor = 2f32.powi(-4);
        // Padding of the weight has zero codes and zero scales.
        let mut codes = vec![0u8; packed.code_bytes()];
        let mut scales = vec![0u32; packed.scales()];
        let mut elements = vec![0.0; n as usize * k as usize];
        let largest = match form {
            CodeForm::Int4 => 8.0,
            CodeForm::Int8 => 128.0,
            CodeForm::Fp8 => 100.0,
            CodeForm::Fp4 => 6.0,
        };
        for row in 0..n {
            let fragment = (row / 16) as usize;
            let (first_code, first_scale) =
                (fragment * packed.fragment_code_bytes(), fragment * packed.fragment_scales());
            for at in 0..k.div_ceil(group) {
                // This scale makes sums a few units large.
                let scale = 6.0 / f64::from(k).sqrt() / f64::from(factor) / largest * (0.6 + 0.4 * random.unit());
                let scale = f16::from_f64(scale);
                let offset = match form {
                    CodeForm::Int4 => -(random.below(17) as f64),
                    CodeForm::Int8 => -(random.below(5) as f64),
                    CodeForm::Fp8 | CodeForm::Fp4 => 0.0,
                };
                let offset = if ty == Type::F16 && !matches!(form, CodeForm::Fp8 | CodeForm::Fp4) {
                    offset + 0.3
                } else {
                    offset
                };
                let offset = ty.bits(offset);
                scales[first_scale + packed.scale_place(row, at)] =
                    u32::from(scale.to_bits()) | u32::from(offset) << 16;
                for column in at * group..((at + 1) * group).min(k) {
                    let code = match form {
                        CodeForm::Int4 | CodeForm::Fp4 => random.below(16) as u8,
                        CodeForm::Int8 => random.below(256) as u8,
                        // Avoid the codes of NaN.
                        CodeForm::Fp8 => (random.below(127) | random.below(2) << 7) as u8,
                    };
                    let (byte, bit) = packed.code_place(row, column);
                    codes[first_code + byte] |= code << bit;
                    let number = match form {
                        CodeForm::Int4 => f64::from(code),
                        CodeForm::Int8 => f64::from(code as i8),
                        CodeForm::Fp8 => Fp8::decode(code).into(),
                        CodeForm::Fp4 => E2M1[usize::from(code)],
                    };
                    let sum = ty.number(ty.bits(number + ty.number(offset)));
                    elements[(row * k + column) as usize] = f64::from(factor) * scale.to_f64() * sum;
                }
            }
        }
        let dense = GemmPlan { product: plan.product, kernel: GemmKernel::Prefill(128), splits: 1, blocks: 0 };
        QuantisedProblem { plan, rest: ProductProblem::new(dense, data), ty, codes, scales, factor, elements }
    }

    /// Uploads the problem to a device.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn place(&self, gpu: &mut Gpu) -> Result<PlacedProduct> {
        let (plan, element, weight) = (self.plan, self.ty.element(), self.place_weight(gpu)?);
        let call = |operands| plan.call(element, operands, weight);
        self.rest.place_launch(gpu, plan.shape(), (plan.workspace_bytes(), plan.counters()), call)
    }

    /// Uploads the weight to a device.
    pub(crate) fn place_weight(&self, gpu: &mut Gpu) -> Result<PackedOperand> {
        Ok(PackedOperand {
            codes: gpu.upload("codes", &self.codes)?.ptr(),
            scales: gpu.upload("scales", &self.scales)?.ptr(),
            factor: self.factor,
        })
    }

    /// Computes the reference for the compared tokens.
    pub fn truth(&self) -> Vec<f64> {
        self.rest.truth_of(&self.elements)
    }
}
