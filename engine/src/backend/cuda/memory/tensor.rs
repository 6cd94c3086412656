//! Activations and weights in the device's memory.

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
    /// Elements from one row to the next.
    pub(in crate::backend::cuda) stride: u32,
}

impl CudaTensor {
    /// The address of its first element.
    pub(in crate::backend::cuda) fn ptr<T>(&self) -> DevicePtrMut<T> {
        DevicePtrMut::from_address(self.lease.address())
    }
}

/// A weight in memory of its own. Cloning shares it.
#[derive(Clone, Debug)]
pub struct CudaWeight {
    /// None where there is no device: then only shapes count.
    pub(in crate::backend::cuda) memory: Option<Arc<DeviceBuffer<u8>>>,
    /// Of a vector, 1. Rows of zeros that fill a matrix up are not counted.
    pub(in crate::backend::cuda) rows: u32,
    /// Of whole vectors: zeros that fill a row up are counted.
    pub(in crate::backend::cuda) cols: u32,
    /// With `Some` the memory holds codes and then scales. Only a projection is computed with such a weight.
    pub(in crate::backend::cuda) coded: Option<CodedWeight>,
}

/// How a quantised weight lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct CodedWeight {
    pub(in crate::backend::cuda) shape: PackedShape,
    /// What all elements are multiplied by.
    pub(in crate::backend::cuda) factor: f32,
}

impl CudaWeight {
    /// The address of its first element.
    pub(in crate::backend::cuda) fn ptr<T>(&self) -> DevicePtr<T> {
        debug_assert!(self.coded.is_none(), "codes are no elements");
        DevicePtr::from_address(self.address())
    }

    /// Where the codes and scales of a quantised weight are.
    pub(in crate::backend::cuda) fn operand(&self, coded: CodedWeight) -> PackedOperand {
        // Codes are a multiple of 512 bytes.
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
    /// What kernels take of it: which norm it is, the addresses of its factors and its bias, null where it has none, and what is added
    /// to the variance.
    pub(in crate::backend::cuda) fn arguments(&self) -> (SumNorm, [DevicePtr<Vector>; 2], f32) {
        let (norm, affine, eps) = match self {
            Norm::Layer { weight, bias, eps } => (SumNorm::Layer, [weight.as_ref(), bias.as_ref()], *eps),
            Norm::Rms { weight, eps } => (SumNorm::Rms, [Some(weight), None], *eps),
        };
        (norm, affine.map(|w| w.map_or(DevicePtr::NULL, CudaWeight::ptr)), eps)
    }
}

/// A projection: its weight `[N, K]` and, if it has one, its bias `[N]`.
#[derive(Clone, Debug)]
pub struct CudaProjection {
    pub(in crate::backend::cuda) weight: CudaWeight,
    pub(in crate::backend::cuda) bias: Option<CudaWeight>,
}
