//! Models on servers, mostly from the paper's table 1.

use anyhow::{Result, anyhow};

use crate::cost::{CostModel, DTYPE, RehearsedModel};
use crate::efficiency::Efficiency;
use crate::gpu;
use crate::model::ModelShape;

/// A model on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// The model's name.
    pub model: &'static str,
    /// The GPU's name.
    pub gpu: &'static str,
    /// GPUs that the model is divided among.
    pub gpus: usize,
    /// Tokens whose keys and values fit in memory: the paper's "max. # KV cache slots".
    pub slots: usize,
    /// Maximum tokens per sequence.
    pub max_len: usize,
}

/// OPT-13B on an A100 of 40 GB: 26 GB of weights, 12 GB for keys and values.
pub const OPT_13B: Deployment =
    Deployment { model: "opt-13b", gpu: "a100-40gb", gpus: 1, slots: 15_700, max_len: 2048 };
/// OPT-66B on four A100s of 40 GB: 132 GB of weights, 21 GB for keys and values.
pub const OPT_66B: Deployment = Deployment { model: "opt-66b", gpu: "a100-40gb", gpus: 4, slots: 9_700, max_len: 2048 };
/// OPT-175B on eight A100s of 80 GB: 346 GB of weights, 264 GB for keys and values.
pub const OPT_175B: Deployment = Deployment { model: "opt-175b", gpu: "a100", gpus: 8, slots: 60_100, max_len: 2048 };
/// LLaMA-13B on an A100 of 40 GB. The paper gives no slots for it. Its weights, keys and values are as large as
/// OPT-13B's, so the slots are the same.
pub const LLAMA_13B: Deployment =
    Deployment { model: "llama-13b", gpu: "a100-40gb", gpus: 1, slots: 15_700, max_len: 2048 };

/// LLaMA-3-8B on an L4, with the slots that `quire plan` computes.
pub const LLAMA_3_8B: Deployment = Deployment { model: "llama-3-8b", gpu: "l4", gpus: 1, slots: 53_200, max_len: 8192 };

impl Deployment {
    /// Returns the times of its steps.
    ///
    /// # Errors
    /// If the model or the GPU is unknown, or the model has no kernels.
    pub fn cost(&self) -> Result<CostModel> {
        let gpu = gpu::named(self.gpu).map_err(|why| anyhow!(why))?;
        let config = ModelShape::find(self.model)?.config;
        CostModel::new(&RehearsedModel::new(&config, gpu, self.gpus, DTYPE.into())?, Efficiency::of(gpu))
    }

    /// Returns the model and its GPUs as text.
    pub fn title(&self) -> String {
        format!("{}, {} x {}", self.model, self.gpus, self.gpu)
    }
}
