//! Activations and weights in the device's memory.

use std::sync::Arc;

use cuda_std::launch::{DevicePtr, DevicePtrMut};
use launch::DeviceBuffer;

use super::arena::Lease;

/// An activation: a row-major matrix in the arena. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(super) lease: Arc<Lease>,
    pub(super) rows: u32,
    pub(super) cols: u32,
    /// Elements from one row to the next.
    pub(super) stride: u32,
}

impl Tensor {
    /// The address of its first element.
    pub(super) fn ptr<T>(&self) -> DevicePtrMut<T> {
        DevicePtrMut::from_address(self.lease.address())
    }
}

/// A weight in memory of its own. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Weight {
    /// None where there is no device: then only shapes count.
    pub(super) memory: Option<Arc<DeviceBuffer<u8>>>,
    /// Of a vector, 1.
    pub(super) rows: u32,
    pub(super) cols: u32,
}

impl Weight {
    /// The address of its first element.
    pub(super) fn ptr<T>(&self) -> DevicePtr<T> {
        DevicePtr::from_address(self.memory.as_ref().map_or(0, |memory| memory.address()))
    }
}

/// A projection: its weight `[N, K]` and, if it has one, its bias `[N]`.
#[derive(Clone, Debug)]
pub struct Projection {
    pub(super) weight: Weight,
    pub(super) bias: Option<Weight>,
}
