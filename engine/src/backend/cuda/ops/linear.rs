//! Projections: one GEMM each, with all that becomes of the sums in its epilogue.

use cuda_std::launch::{DevicePtr, DevicePtrMut};
use kernels::gemm::activation;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{Operands, Plan, Product};

use crate::backend::Activation;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::tensor::{Tensor, Weight};
use crate::backend::cuda::step::queue::Cost;
use crate::error::Error;

impl CudaBackend {
    /// `out = epilogue(x weight^T + bias)`.
    pub(in crate::backend::cuda) fn project(
        &self,
        x: &Tensor,
        weight: &Weight,
        bias: Option<&Weight>,
        epilogue: Epilogue,
        out: &Tensor,
    ) {
        debug_assert_eq!((x.cols, x.rows, out.cols), (weight.cols, out.rows, epilogue.columns(weight.rows)));
        let product = Product { m: x.rows, n: weight.rows, k: weight.cols, epilogue };
        let plan = match Plan::new(product, self.queue.limits()) {
            Ok(plan) => plan,
            Err(error) => return self.queue.fail(Error::Unsupported(format!("a projection on the GPU: {error}"))),
        };
        let workspace = self.lease(plan.workspace_bytes() as usize);
        let operands = Operands {
            x: x.ptr().cast_const(),
            x_stride: x.stride,
            weight: weight.ptr(),
            bias: bias.map_or(DevicePtr::NULL, Weight::ptr),
            out: out.ptr(),
            out_stride: out.stride,
            workspace: DevicePtrMut::from_address(workspace.address()),
            counters: self.counters(plan.counters()),
        };
        let weights = 2 * u64::from(weight.rows) * u64::from(weight.cols);
        let cost = || Cost { floor: product.floor(), weights, kv_cache: 0 };
        // SAFETY: the plan was made for these shapes, rows and weights are aligned to 16 bytes, and workspace and
        // counters are used by one launch at a time, since launches of a stream run one after the other.
        unsafe { self.queue.launch(plan.shape(), plan.call(self.element, operands), cost) };
    }
}

/// The function as kernels call it.
pub(in crate::backend::cuda) fn activation(function: Activation) -> activation::Activation {
    match function {
        Activation::Relu => activation::Activation::Relu,
        Activation::Gelu => activation::Activation::Gelu,
        Activation::GeluTanh => activation::Activation::GeluTanh,
        Activation::Silu => activation::Activation::Silu,
    }
}
