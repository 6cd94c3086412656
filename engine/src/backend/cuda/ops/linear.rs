//! Projections: one GEMM each. Its epilogue does all further processing of the sums.

use cuda_std::launch::{DevicePtr, DevicePtrMut};
use kernels::floor::Floor;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GemmPlan, NormOperands, Operands, Product};
use kernels::gemm::quantised::plan::QuantisedPlan;

use crate::backend::Norm;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::tensor::{CodedWeight, CudaTensor, CudaWeight};
use crate::backend::cuda::memory::weights;
use crate::backend::cuda::step::queue::LaunchCost;
use crate::error::Error;

impl CudaBackend {
    /// Computes `out = epilogue(x weight^T + bias)`. The columns of `out` determine how many of the weight's rows,
    /// including padding, are used.
    pub(in crate::backend::cuda) fn project(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaWeight>,
        epilogue: Epilogue,
        out: &CudaTensor,
    ) {
        self.project_then(x, weight, bias, epilogue, out, None);
    }

    /// Computes `residual += x weight^T + bias` and returns the norm of the new residual, if one kernel can do both.
    /// Otherwise launches nothing and returns `None`.
    pub(in crate::backend::cuda) fn project_and_norm(
        &self,
        x: &CudaTensor,
        (weight, bias): (&CudaWeight, Option<&CudaWeight>),
        residual: &CudaTensor,
        norm: &Norm<CudaWeight>,
    ) -> Option<CudaTensor> {
        let product = Product { m: x.rows, n: residual.cols, k: weight.cols, epilogue: Epilogue::Add };
        let limits = self.queue.limits();
        let can = weight.coded.is_none() && GemmPlan::new(product, limits).is_ok_and(|plan| plan.can_normalise(limits));
        can.then(|| {
            let out = self.tensor(residual.rows, residual.cols);
            self.project_then(x, weight, bias, Epilogue::Add, residual, Some((norm, &out)));
            out
        })
    }

    /// Like [`project`](Self::project), followed by a norm of the output if one is given.
    fn project_then(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaWeight>,
        epilogue: Epilogue,
        out: &CudaTensor,
        then: Option<(&Norm<CudaWeight>, &CudaTensor)>,
    ) {
        let n = if matches!(epilogue, Epilogue::Gated(_)) { 2 * out.cols } else { out.cols };
        debug_assert_eq!((x.cols, x.rows), (weight.cols, out.rows));
        debug_assert!((weight.rows..=weights::padded_rows(weight.rows as usize) as u32).contains(&n));
        let product = Product { m: x.rows, n, k: weight.cols, epilogue };
        if let Some(coded) = weight.coded {
            return self.project_codes(x, (weight, coded), bias, product, out);
        }
        let plan = match GemmPlan::new(product, self.queue.limits()) {
            Ok(plan) => plan,
            Err(error) => return self.queue.fail(Error::Unsupported(format!("a projection on the GPU: {error}"))),
        };
        let workspace = self.lease(plan.workspace_bytes() as usize);
        let operands = Operands {
            weight: weight.ptr(),
            workspace: DevicePtrMut::from_address(workspace.address()),
            counters: self.counters(plan.counters()),
            norm: then.map_or(NormOperands::NONE, |(norm, normed)| self.norm_operands(norm, normed)),
            ..matrices(x, bias, out)
        };
        let weights = 2 * u64::from(n) * u64::from(weight.cols);
        // The norm also stores its rows. It reads rows that the same launch has just stored, which costs no memory
        // traffic.
        let stored = then.map_or(0, |(_, normed)| 2 * u64::from(normed.rows) * u64::from(normed.cols));
        let floor = Floor { bytes: product.floor().bytes + stored, ..product.floor() };
        let cost = || LaunchCost { floor, weights, ..LaunchCost::default() };
        // SAFETY: the plan was made for these shapes, and rows and weights are aligned to 16 bytes. Launches of a
        // stream run one after the other, so only one at a time uses the workspace and counters. A norm is given only
        // if the plan can normalise, and the rows of the residual stream are contiguous. No launch writes weights,
        // because they are uploaded.
        unsafe { self.queue.launch(plan.shape(), plan.call(self.element, operands), cost) };
    }

    /// Returns a product's operands for a norm whose rows are written to `out`.
    fn norm_operands(&self, norm: &Norm<CudaWeight>, out: &CudaTensor) -> NormOperands {
        let (norm, [weight, bias], eps) = norm.arguments();
        NormOperands { norm, weight, bias, out: out.ptr(), eps, arrivals: self.arrivals() }
    }

    /// Like [`project`](Self::project), with a quantised weight.
    fn project_codes(
        &self,
        x: &CudaTensor,
        (weight, coded): (&CudaWeight, CodedWeight),
        bias: Option<&CudaWeight>,
        product: Product,
        out: &CudaTensor,
    ) {
        let plan = match QuantisedPlan::new(product, coded.shape.form, coded.shape.group, self.queue.limits()) {
            Ok(plan) => plan,
            Err(error) => return self.queue.fail(Error::Unsupported(format!("a projection on the GPU: {error}"))),
        };
        let workspace = self.lease(plan.workspace_bytes() as usize);
        let operands = Operands {
            workspace: DevicePtrMut::from_address(workspace.address()),
            counters: self.counters(plan.counters()),
            ..matrices(x, bias, out)
        };
        let call = plan.call(self.element, operands, weight.operand(coded));
        let cost = || LaunchCost { floor: plan.floor(), weights: plan.weight_bytes(), ..LaunchCost::default() };
        // SAFETY: the plan was made for these shapes. Codes and scales are padded to whole fragments and steps. Rows,
        // codes and scales are aligned to 16 bytes. Launches of a stream run one after the other, so only one at a time
        // uses the workspace and counters.
        unsafe { self.queue.launch(plan.shape(), call, cost) };
    }
}

/// Returns the operands of a product except its weight and workspace.
fn matrices(x: &CudaTensor, bias: Option<&CudaWeight>, out: &CudaTensor) -> Operands {
    Operands {
        x: x.ptr().cast_const(),
        x_stride: x.stride,
        bias: bias.map_or(DevicePtr::NULL, CudaWeight::ptr),
        out: out.ptr(),
        out_stride: out.stride,
        ..Operands::NULL
    }
}
