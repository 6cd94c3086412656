//! Information for users about the device that a model runs on.

use crate::quantised::QuantType;
use crate::tensor::DType;

/// The device that a model runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// The device's name.
    pub name: String,
    /// The type of the model's unquantised weights on the device.
    pub dtype: DType,
    /// The types of the quantised weights on the device.
    pub quantised: Vec<QuantType>,
    /// How a GPU's memory is divided.
    pub memory: Option<MemoryPlan>,
    /// Notes about surprises, for example that the machine's GPU is not used. One sentence each.
    pub notes: Vec<String>,
}

/// How the memory of a GPU is divided, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// All memory of the GPU.
    pub total: usize,
    /// Weights.
    pub weights: usize,
    /// Activations of the largest step.
    pub activations: usize,
    /// Memory in use before the KV cache is allocated, including other processes.
    pub used: usize,
    /// Memory that the KV cache may take.
    pub kv_cache: usize,
}
