//! Arguments of kernels.

use crate::memory::DeviceAddress;

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A `u32`.
    U32(u32),
    /// A `u64`.
    U64(u64),
    /// An `f32`.
    F32(f32),
    /// A pointer.
    Ptr(DeviceAddress),
    /// Anything else, as its bytes.
    Bytes(Vec<u8>),
}

impl Arg {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::U32(value) => value.to_le_bytes().to_vec(),
            Self::U64(value) | Self::Ptr(value) => value.to_le_bytes().to_vec(),
            Self::F32(value) => value.to_le_bytes().to_vec(),
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}
