//! Whether a model fits GPUs: the use of their memory, and the fewest that suffice.

use anyhow::{Result, bail};
use engine::KvDtype;
use engine::tools::parallel::Shard;

use crate::cache_plan::{self, CachePlan};
use crate::cost::{BLOCK_SIZE, DTYPE, RehearsedModel};
use crate::gpu::{GPUS, GpuSpec};
use crate::model::ModelShape;
use crate::traces::TraceWorkload;

/// Share of a GPU's memory that the engine uses by default.
pub(crate) const UTILISATION: f64 = 0.9;
/// Numbers of GPUs that a model may be divided among.
const DIVISIONS: [usize; 4] = [1, 2, 4, 8];
const GIB: f64 = (1u64 << 30) as f64;

/// A question about a deployment.
pub struct Question<'a> {
    /// The model.
    pub model: &'a ModelShape,
    /// The GPU.
    pub gpu: &'static GpuSpec,
    /// GPUs that the model is divided among. If `None`, the fewest that suffice.
    pub gpus: Option<usize>,
    /// The workload's name.
    pub name: &'a str,
    /// Its lengths.
    pub workload: &'a TraceWorkload,
    /// The type of keys and values. If `None`, the type of the weights.
    pub kv_dtype: Option<KvDtype>,
}

impl Question<'_> {
    /// Returns the number of GPUs and the use of their memory.
    ///
    /// # Errors
    /// If the model does not fit, with the GPUs that would suffice, or if the model has no kernels.
    pub(crate) fn fit(&self) -> Result<(usize, Memory)> {
        let max_len = self.model.config.max_positions;
        let fitting = match self.gpus {
            Some(gpus) => Some((gpus, self.memory(self.gpu, gpus)?)).filter(|(_, memory)| memory.suffices(max_len)),
            None => fewest(self, self.gpu, max_len)?,
        };
        match fitting {
            Some(fitting) => Ok(fitting),
            None => bail!("{}", does_not_fit(self, max_len)),
        }
    }

    /// Returns the plan of the cache alone, which needs no kernels. Without a number of GPUs it is for one GPU.
    ///
    /// # Errors
    /// If the layers have too many kinds of caches, or cannot be divided.
    pub fn cache(&self) -> Result<CachePlan> {
        let (config, of) = (&self.model.config, self.gpus.unwrap_or(1));
        let shard = Shard { rank: 0, of, ..Shard::WHOLE };
        shard.config(config)?;
        let part = cache_plan::layout(config, shard, BLOCK_SIZE, self.kv_dtype())?;
        Ok(CachePlan::new(&part, of, config.max_positions))
    }

    fn kv_dtype(&self) -> KvDtype {
        self.kv_dtype.unwrap_or(DTYPE.into())
    }

    fn memory(&self, gpu: &GpuSpec, gpus: usize) -> Result<Memory> {
        Memory::new(self.model, gpu, gpus, self.kv_dtype())
    }
}

/// Use of the memory on each of the GPUs of a deployment.
pub(crate) struct Memory {
    pub model: RehearsedModel,
    /// Bytes for weights, for activations, and for keys and values. The last is negative if weights and activations do
    /// not fit.
    pub weights: f64,
    pub activations: f64,
    pub cache: f64,
    /// Tokens of the blocks that fit, if each page has one block.
    pub slots: usize,
}

impl Memory {
    fn new(model: &ModelShape, gpu: &GpuSpec, gpus: usize, kv_dtype: KvDtype) -> Result<Self> {
        let model = RehearsedModel::new(&model.config, gpu, gpus, kv_dtype)?;
        let (weights, activations) = (model.weight_bytes() as f64, model.activation_bytes()? as f64);
        let cache = UTILISATION * gpu.memory - weights - activations;
        let layout = model.layout();
        let slots = (cache / (layout.page_bytes() as f64 / layout.block_size as f64)).max(0.0) as usize;
        Ok(Memory { model, weights, activations, cache, slots })
    }

    /// Returns whether a request of `max_len` tokens fits.
    fn suffices(&self, max_len: usize) -> bool {
        let layout = self.model.layout();
        layout.sequences_in(self.slots / layout.block_size, max_len) > 0
    }

    /// Returns the plan of the cache on `gpus` GPUs.
    pub fn kv(&self, gpus: usize, max_len: usize) -> CachePlan {
        CachePlan::new(self.model.layout(), gpus, max_len)
    }
}

/// Returns the fewest GPUs of a kind that suffice.
///
/// # Errors
/// If the model has no kernels.
fn fewest(question: &Question<'_>, gpu: &GpuSpec, max_len: usize) -> Result<Option<(usize, Memory)>> {
    for gpus in DIVISIONS {
        match question.memory(gpu, gpus) {
            Ok(memory) if memory.suffices(max_len) => return Ok(Some((gpus, memory))),
            Err(error) if gpus == 1 => return Err(error),
            // The model needs more GPUs, or cannot be divided among this number of them.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// Explains why the model does not fit, and names GPUs that would suffice.
fn does_not_fit(question: &Question<'_>, max_len: usize) -> String {
    let &Question { model, gpu, gpus, .. } = question;
    let kinds =
        GPUS.iter().filter_map(|gpu| Some(format!("{} x {}", fewest(question, gpu, max_len).ok()??.0, gpu.name)));
    let kinds: Vec<_> = kinds.collect();
    let would = if kinds.is_empty() {
        "no known GPU would suffice".into()
    } else {
        format!("these would suffice: {}", kinds.join(", "))
    };
    let asked = gpus.map_or(format!("up to 8 x {}", gpu.name), |gpus| format!("{gpus} x {}", gpu.name));
    let weights = question.memory(gpu, gpus.unwrap_or(8)).ok().map_or(String::new(), |memory| {
        let (weights, room) = (memory.weights / GIB, UTILISATION * gpu.memory / GIB);
        format!(
            ": each has {room:.1} GiB to use, weights take {weights:.1}, and keys and values of {max_len} tokens {:.1}",
            memory.kv(1, max_len).longest_bytes() as f64 / GIB
        )
    });
    format!("{} does not fit {asked}{weights}; {would}", model.name)
}
