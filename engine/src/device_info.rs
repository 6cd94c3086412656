//! What a user is told of the device that a model runs on.

use crate::quantised::QuantType;
use crate::tensor::DType;

/// The device that a model runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// The type of the model's weights on it.
    pub dtype: DType,
    /// The types of those that are quantised on it.
    pub quantised: Vec<QuantType>,
    /// How a GPU's memory is shared out.
    pub memory: Option<MemoryPlan>,
    /// What a user may not expect, such as that the machine's GPU is not used; one sentence each.
    pub notes: Vec<String>,
}

/// How the memory of a GPU is shared out, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// All memory of the GPU.
    pub total: usize,
    /// Weights.
    pub weights: usize,
    /// Activations of the largest step.
    pub activations: usize,
    /// Memory that is in use before the KV cache is allocated, that of other processes included.
    pub used: usize,
    /// What the KV cache may take.
    pub kv_cache: usize,
}
