//! Activations and weights in device memory.

use std::sync::Arc;

use cuda_std::launch::{DevicePtr, DevicePtrMut};
use cuda_std::vector::Vector;
use kernels::gemm::quantised::layout::PackedShape;
use kernels::gemm::quantised::plan::PackedOperand;
use kernels::norm::SumNorm;
use launch::DeviceBuffer;

use crate::backend::Norm;
use crate::backend::cuda::memory::arena::Lease;

/// An activation: a row-major matrix in the arena. Cloning shares it.
#[derive(Clone, Debug)]
pub struct CudaTensor {
    pub(in crate::backend::cuda) lease: Arc<Lease>,
    pub(in crate::backend::cuda) rows: u32,
    pub(in crate::backend::cuda) cols: u32,
    /// Distance in elements between rows.
    pub(in crate::backend::cuda) stride: u32,
    /// Whether elements are f32, the type of logits. Otherwise they have the activations' type.
    pub(in crate::backend::cuda) is_float: bool,
}

impl CudaTensor {
    /// The address of the first element.
    pub(in crate::backend::cuda) fn ptr<T>(&self) -> DevicePtrMut<T> {
        DevicePtrMut::from_address(self.lease.address())
    }
}

/// A weight in its own memory. Cloning shares it.
#[derive(Clone, Debug)]
pub struct CudaWeight {
    /// `None` without a device. Only shapes are used then.
    pub(in crate::backend::cuda) memory: Option<Arc<DeviceBuffer<u8>>>,
    /// 1 for a vector. Padding rows of a matrix do not count.
    pub(in crate::backend::cuda) rows: u32,
    /// A multiple of the vector length. Padding elements of a row count.
    pub(in crate::backend::cuda) cols: u32,
    /// With `Some` the memory contains codes, then scales. Such a weight can only be used in a projection.
    pub(in crate::backend::cuda) coded: Option<CodedWeight>,
}

/// The layout of a quantised weight in memory.
#[derive(Clone, Copy, Debug)]
pub struct CodedWeight {
    pub(in crate::backend::cuda) shape: PackedShape,
    /// The factor of all elements.
    pub(in crate::backend::cuda) factor: f32,
}

impl CudaWeight {
    /// The address of the first element.
    pub(in crate::backend::cuda) fn ptr<T>(&self) -> DevicePtr<T> {
        debug_assert!(self.coded.is_none(), "a coded weight has no elements");
        DevicePtr::from_address(self.address())
    }

    /// The addresses of a quantised weight's codes and scales.
    pub(in crate::backend::cuda) fn operand(&self, coded: CodedWeight) -> PackedOperand {
        // The codes take a multiple of 512 bytes, so the scales are aligned.
        let scales = self.address() + coded.shape.code_bytes() as u64;
        PackedOperand {
            codes: DevicePtr::from_address(self.address()),
            scales: DevicePtr::from_address(scales),
            factor: coded.factor,
        }
    }

    fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.address())
    }
}

impl Norm<CudaWeight> {
    /// Returns the factors. A layer norm may lack them.
    pub(in crate::backend::cuda) fn weight(&self) -> Option<&CudaWeight> {
        match self {
            Norm::Layer { weight, .. } => weight.as_ref(),
            Norm::Rms { weight, .. } => Some(weight),
        }
    }

    /// Returns the kernels' arguments: which norm it is, the addresses of its weight and bias (null if absent), and its
    /// epsilon.
    pub(in crate::backend::cuda) fn arguments(&self) -> (SumNorm, [DevicePtr<Vector>; 2], f32) {
        let (norm, affine, eps) = match self {
            Norm::Layer { weight, bias, eps } => (SumNorm::Layer, [weight.as_ref(), bias.as_ref()], *eps),
            Norm::Rms { weight, eps } => (SumNorm::Rms, [Some(weight), None], *eps),
        };
        (norm, affine.map(|w| w.map_or(DevicePtr::NULL, CudaWeight::ptr)), eps)
    }
}

/// A projection: its weight `[N, K]` and its optional bias `[N]`.
#[derive(Clone, Debug)]
pub struct CudaProjection {
    pub(in crate::backend::cuda) weight: CudaWeight,
    pub(in crate::backend::cuda) bias: Option<CudaWeight>,
}

/// The fused projections to query, key and value, or the query's alone.
#[derive(Clone, Debug)]
pub struct CudaQkvProjection {
    pub(in crate::backend::cuda) projection: CudaProjection,
    /// The number of the last columns that are values as well as keys. 0 if values have a projection of their own.
    pub(in crate::backend::cuda) shared: u32,
}
