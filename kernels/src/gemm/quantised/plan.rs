//! How a product with a quantised weight is launched.

use cuda_std::launch::{DevicePtr, KernelCall, LaunchShape};
use cuda_std::vector::Vector;

use super::layout::{CodeForm, PackedShape};
use super::{THREADS, gemm_quantised, rows, shared_bytes};
use crate::element::ElementType;
use crate::floor::Floor;
use crate::gemm::operand::DEPTH;
use crate::gemm::plan::{GpuLimits, Operands, Product, UnsupportedProduct};
use crate::with_element;

/// A product with a quantised weight, and its launch. A plan depends only on shapes and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedPlan {
    /// The product that is computed. Its `n` may be less than the weight's rows.
    pub product: Product,
    /// How the weight is coded.
    pub form: CodeForm,
    /// Columns of the weight's groups.
    pub group: u32,
    /// Tokens of a tile, one of [`TOKENS`](super::TOKENS).
    pub tokens: u32,
    /// Blocks for each tile. Each computes a part of `k`.
    pub splits: u32,
}

/// Device addresses of a quantised weight.
#[derive(Clone, Copy, Debug)]
pub struct PackedOperand {
    /// [`PackedShape::code_bytes`] bytes, aligned to 16 bytes.
    pub codes: DevicePtr<Vector>,
    /// [`PackedShape::scales`] words, aligned to 16 bytes.
    pub scales: DevicePtr<Vector>,
    /// Factor of all elements.
    pub factor: f32,
}

impl PackedOperand {
    /// An operand with null addresses, for questions about a plan that do not depend on it.
    pub const NULL: PackedOperand = PackedOperand { codes: DevicePtr::NULL, scales: DevicePtr::NULL, factor: 1.0 };
}

impl QuantisedPlan {
    /// Returns the plan for a product with a weight whose groups have `group` columns.
    ///
    /// # Errors
    /// [`UnsupportedProduct`], for the same reasons as with 16-bit weights.
    pub const fn new(
        product: Product,
        form: CodeForm,
        group: u32,
        gpu: GpuLimits,
    ) -> Result<QuantisedPlan, UnsupportedProduct> {
        if let Err(why) = product.check() {
            return Err(why);
        }
        if let CodeForm::Fp4 = form {
            return Err(UnsupportedProduct::Fp4);
        }
        let Product { m, k, .. } = product;
        let tokens = match m {
            0..=8 => 8,
            9..=16 => 16,
            17..=32 => 32,
            _ => 64,
        };
        let plan = QuantisedPlan { product, form, group, tokens, splits: 1 };
        if plan.shared_bytes() > gpu.shared_bytes {
            return Err(UnsupportedProduct::Shared(plan.shared_bytes()));
        }
        // As many blocks as run at once. But partial sums take at most an eighth of the weight's bytes, and a block has
        // at least four tiles unless the product is not split.
        let blocks = gpu.multiprocessors * if tokens <= 16 { 4 } else { 2 };
        let parts = least(k * form.bits() / (256 * tokens), k.div_ceil(DEPTH) / 4);
        let splits = least(blocks / plan.tiles(), parts);
        Ok(QuantisedPlan { splits: if splits > 1 { splits } else { 1 }, ..plan })
    }

    /// Returns the shape of the rows of the weight that the product uses, which are its first rows.
    pub const fn packed(self) -> PackedShape {
        PackedShape { form: self.form, n: self.product.n, k: self.product.k, group: self.group }
    }

    /// Returns the least that the product costs with any kernel.
    pub const fn floor(self) -> Floor {
        let dense = self.product.floor();
        let weight = self.product.n as u64 * self.product.k as u64;
        Floor { bytes: dense.bytes - 2 * weight + self.weight_bytes(), flops: dense.flops }
    }

    /// Bytes of the codes and scales of the rows that are used.
    pub const fn weight_bytes(self) -> u64 {
        (self.packed().code_bytes() + 4 * self.packed().scales()) as u64
    }

    /// Tiles of the product.
    const fn tiles(self) -> u32 {
        self.product.n.div_ceil(rows(self.tokens)) * self.product.m.div_ceil(self.tokens)
    }

    /// The shape of the kernel's launch.
    pub const fn shape(self) -> LaunchShape {
        LaunchShape::new([self.tiles(), self.splits, 1], THREADS).with_shared(self.shared_bytes())
    }

    /// Dynamic shared memory of a block, in bytes.
    pub const fn shared_bytes(self) -> u32 {
        shared_bytes(self.form, self.tokens)
    }

    /// Counters in the workspace, as [`GemmPlan::counters`](crate::gemm::plan::GemmPlan::counters).
    pub const fn counters(self) -> u32 {
        if self.splits == 1 { 0 } else { self.tiles() }
    }

    /// Bytes of the workspace for partial sums. It need not be initialised.
    pub const fn workspace_bytes(self) -> u64 {
        self.counters() as u64 * self.splits as u64 * (rows(self.tokens) * self.tokens) as u64 * 4
    }

    /// Returns the kernel with its arguments, for activations of type `element`. The weight in `operands` is unused.
    pub fn call(self, element: ElementType, operands: Operands, weight: PackedOperand) -> KernelCall {
        let Operands { x, x_stride, bias, out, out_stride, workspace, counters, .. } = operands;
        let PackedOperand { codes, scales, factor } = weight;
        let Product { m, n, k, epilogue } = self.product;
        let (epilogue, group_shift) = (epilogue.bits(), self.group.trailing_zeros());
        with_element!(element, T => {
            let factor = factor * self.form.factor::<T>();
            let args = gemm_quantised {
                x, codes, scales, bias, out, workspace, counters, x_stride, out_stride, m, n, k, group_shift, factor, epilogue,
            };
            match (self.form, self.tokens) {
                (CodeForm::Int4, 8) => args.instance::<T, 0, 8>(),
                (CodeForm::Int4, 16) => args.instance::<T, 0, 16>(),
                (CodeForm::Int4, 32) => args.instance::<T, 0, 32>(),
                (CodeForm::Int4, _) => args.instance::<T, 0, 64>(),
                (CodeForm::Int8, 8) => args.instance::<T, 1, 8>(),
                (CodeForm::Int8, 16) => args.instance::<T, 1, 16>(),
                (CodeForm::Int8, 32) => args.instance::<T, 1, 32>(),
                (CodeForm::Int8, _) => args.instance::<T, 1, 64>(),
                (CodeForm::Fp8, 8) => args.instance::<T, 2, 8>(),
                (CodeForm::Fp8, 16) => args.instance::<T, 2, 16>(),
                (CodeForm::Fp8, 32) => args.instance::<T, 2, 32>(),
                (CodeForm::Fp8, _) => args.instance::<T, 2, 64>(),
                (CodeForm::Fp4, _) => unreachable!("plans refuse FP4"),
            }
        })
    }
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    extern crate std;
    use super::*;
    use crate::gemm::epilogue::Epilogue;

    fn plan(m: u32, n: u32, k: u32, form: CodeForm) -> QuantisedPlan {
        let product = Product { m, n, k, epilogue: Epilogue::Half(None) };
        QuantisedPlan::new(product, form, 128, GpuLimits::H200).unwrap()
    }

    #[test]
    fn few_tokens_have_blocks_for_every_sm_and_few_parts_of_sums() {
        for (n, k) in [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (5120, 20480)] {
            for (form, m) in CodeForm::ALL.into_iter().flat_map(|form| [1, 8, 16, 32, 64].map(|m| (form, m))) {
                let plan = plan(m, n, k, form);
                let [x, y, _] = plan.shape().grid;
                assert!(plan.splits == 1 || x * y <= 4 * 132, "{plan:?}");
                assert!(m > 16 || x * y >= 250, "{plan:?}: most SMs have several blocks");
                assert!(plan.workspace_bytes() <= plan.weight_bytes() / 7, "{plan:?}");
                assert_eq!(plan.counters(), if y == 1 { 0 } else { x });
            }
        }
    }

    #[test]
    fn every_plan_has_an_entry_that_its_device_can_launch() {
        let a10 = GpuLimits::new(72, 99 << 10, (8, 6));
        for (form, m) in CodeForm::ALL.into_iter().flat_map(|form| [1, 9, 17, 33, 500].map(|m| (form, m))) {
            let product = Product { m, n: 512, k: 512, epilogue: Epilogue::Add };
            let plan = QuantisedPlan::new(product, form, 32, a10).unwrap();
            for element in ElementType::ALL {
                let call = plan.call(element, Operands::NULL, PackedOperand::NULL);
                let tokens = std::format!("{}", plan.tokens);
                assert_eq!(
                    call.descriptor().labels,
                    [element.label(), std::format!("{}", form as u32).as_str(), &tokens]
                );
            }
        }
    }

    #[test]
    fn floors_count_packed_bytes() {
        let plan = plan(1, 64, 128, CodeForm::Int4);
        assert_eq!(plan.weight_bytes(), 64 * 128 / 2 + 64 * 4);
        assert_eq!(plan.floor().bytes, 2 * (128 + 64) + plan.weight_bytes());
    }
}
