//! Projections with quantised weights: random codes and scales, and what they should give.

use half::f16;
use kernels::eight_bit::{EightBit, Fp8};
use kernels::gemm::plan::{GemmKernel, GemmPlan};
use kernels::gemm::quantised::layout::{CodeForm, PackedShape};
use kernels::gemm::quantised::plan::{PackedOperand, QuantisedPlan};
use launch::Result;

use crate::gpu::Gpu;
use crate::number::{ProblemRng, Type};
use crate::product::{Data, PlacedProduct, ProductProblem};

/// A projection with a quantised weight.
#[derive(Clone, Debug)]
pub struct QuantisedProblem {
    /// How it is launched.
    pub plan: QuantisedPlan,
    /// Activations, bias and output.
    pub rest: ProductProblem,
    ty: Type,
    codes: Vec<u8>,
    scales: Vec<u32>,
    factor: f32,
    /// The weight's elements.
    elements: Vec<f64>,
}

impl QuantisedProblem {
    /// A problem for a plan, be it the best one or not. Where codes have offsets these are whole numbers in `bf16`, and any in
    /// `f16`, of whose sums with codes the elements are.
    pub fn new(plan: QuantisedPlan, data: Data) -> QuantisedProblem {
        let (packed, ty) = (plan.packed(), data.ty);
        let PackedShape { form, n, k, group } = packed;
        let mut random = ProblemRng(data.seed ^ 0x51);
        let factor = 2f32.powi(-4);
        // The codes of what fills the weight up are zero, and so are its scales.
        let mut codes = vec![0u8; packed.code_bytes()];
        let mut scales = vec![0u32; packed.scales()];
        let mut elements = vec![0.0; n as usize * k as usize];
        let largest = match form {
            CodeForm::Int4 => 8.0,
            CodeForm::Int8 => 128.0,
            CodeForm::Fp8 => 100.0,
        };
        for row in 0..n {
            let fragment = (row / 16) as usize;
            let (first_code, first_scale) =
                (fragment * packed.fragment_code_bytes(), fragment * packed.fragment_scales());
            for at in 0..k.div_ceil(group) {
                // Sums are then a few units.
                let scale = 6.0 / f64::from(k).sqrt() / f64::from(factor) / largest * (0.6 + 0.4 * random.unit());
                let scale = f16::from_f64(scale);
                let offset = match form {
                    CodeForm::Int4 => -(random.below(17) as f64),
                    CodeForm::Int8 => -(random.below(5) as f64),
                    CodeForm::Fp8 => 0.0,
                };
                let offset = if ty == Type::F16 && form != CodeForm::Fp8 { offset + 0.3 } else { offset };
                let offset = ty.bits(offset);
                scales[first_scale + packed.scale_place(row, at)] =
                    u32::from(scale.to_bits()) | u32::from(offset) << 16;
                for column in at * group..((at + 1) * group).min(k) {
                    let code = match form {
                        CodeForm::Int4 => random.below(16) as u8,
                        CodeForm::Int8 => random.below(256) as u8,
                        // Not the codes of NaN.
                        CodeForm::Fp8 => (random.below(127) | random.below(2) << 7) as u8,
                    };
                    let (byte, bit) = packed.code_place(row, column);
                    codes[first_code + byte] |= code << bit;
                    let number = match form {
                        CodeForm::Int4 => f64::from(code),
                        CodeForm::Int8 => f64::from(code as i8),
                        CodeForm::Fp8 => Fp8::decode(code).into(),
                    };
                    let sum = ty.number(ty.bits(number + ty.number(offset)));
                    elements[(row * k + column) as usize] = f64::from(factor) * scale.to_f64() * sum;
                }
            }
        }
        let dense = GemmPlan { product: plan.product, kernel: GemmKernel::Prefill(128), splits: 1, blocks: 0 };
        QuantisedProblem { plan, rest: ProductProblem::new(dense, data), ty, codes, scales, factor, elements }
    }

    /// Puts it on a device.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn place(&self, gpu: &mut Gpu) -> Result<PlacedProduct> {
        let (plan, element) = (self.plan, self.ty.element());
        let weight = PackedOperand {
            codes: gpu.upload("codes", &self.codes)?.ptr(),
            scales: gpu.upload("scales", &self.scales)?.ptr(),
            factor: self.factor,
        };
        let call = |operands| plan.call(element, operands, weight);
        self.rest.place_launch(gpu, plan.shape(), (plan.workspace_bytes(), plan.counters()), call)
    }

    /// What the result should be, of the tokens that are compared.
    pub fn truth(&self) -> Vec<f64> {
        self.rest.truth_of(&self.elements)
    }
}
