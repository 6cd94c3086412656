//! How long a step takes on a GPU that need not exist. The engine rehearses the step: it lists the launches without
//! running them. Each launch takes as long as its bytes or its operations.
//!
//! Most launches depend only on the numbers of tokens and of rows of logits. They are rehearsed on a grid and
//! interpolated between its points. Attention depends on the context of each sequence, so it is computed from the sum
//! over the sequences. In layers with a window, decodes are assumed to have contexts of equal length.

use anyhow::Result;
use engine::DType;
use engine::tools::backend::cuda::{CudaBackend, NotedLaunch};
use engine::tools::config::ModelConfig;
use engine::tools::kv::{CacheGroup, KvDtype, KvLayout};
use engine::tools::load::Weights;
use engine::tools::memory_plan::{Rehearsal, rehearse};
use engine::tools::model::Model;
use engine::tools::parallel::Shard;

use crate::cache_plan;
use crate::efficiency::Efficiency;
use crate::estimate::Estimate;
use crate::gpu::GpuSpec;
pub use crate::layer_attention::StepLoad;
pub(crate) use crate::layer_attention::{BLOCK_SIZE, DTYPE};
use crate::layer_attention::{LayerAttention, shape};

/// Times of a server's operations, in seconds.
pub trait StepCost: Sync {
    /// Returns the time of a step, which is 0 for an empty step.
    fn seconds(&self, step: &StepLoad) -> f64;

    /// Returns the time to copy the keys and values of `tokens` tokens within the GPU's memory.
    fn copy_seconds(&self, tokens: usize) -> f64;

    /// Returns the time to move the keys and values of `tokens` tokens to or from the host's memory, in `copies`
    /// copies.
    fn swap_seconds(&self, tokens: usize, copies: usize) -> f64;

    /// Returns the number of layers. Each layer has keys and values to copy.
    fn layers(&self) -> usize;

    /// Returns the groups of layers that have blocks of their own.
    fn groups(&self) -> Vec<CacheGroup> {
        vec![CacheGroup::only(None)]
    }
}

/// A model whose steps are rehearsed for a GPU that need not exist.
pub struct RehearsedModel {
    steps: Steps,
    layout: KvLayout,
    attention: Vec<LayerAttention>,
    attention_blocks: u32,
}

/// The source of a model's launches.
#[allow(clippy::large_enum_variant)] // few models exist at a time
enum Steps {
    /// The engine's own code.
    Engine(CudaBackend, Box<dyn Model<CudaBackend>>),
    /// The shapes of the weights, and the reason why the engine cannot run the model on a GPU, if it cannot.
    Shapes(Estimate, Option<String>),
}

/// Times of a model's steps on one or several GPUs.
#[derive(Clone, Debug)]
pub struct CostModel {
    efficiency: Efficiency,
    attention: Vec<LayerAttention>,
    layers: usize,
    groups: Vec<CacheGroup>,
    /// Ratio of decode attention's time to its floor.
    attention_factor: f64,
    /// Seconds per step that the GPU waits for the host.
    host: f64,
    /// Seconds of everything but attention in steps that only decode, by the number of sequences. These steps are
    /// padded.
    decodes: Curve,
    /// Seconds of everything but attention and logits in other steps, by the number of tokens.
    bodies: Curve,
    /// Seconds of the logits and of sampling, by the number of rows.
    heads: Curve,
    /// Bytes of a token's keys and values and of all weights, on one GPU.
    token_bytes: f64,
    weight_bytes: usize,
}

/// A function of an integer that is known at some points and linear between them.
#[derive(Clone, Debug)]
struct Curve(Vec<(usize, f64)>);

/// Curves are evaluated at every number of tokens, sequences or rows up to this.
const EXACT: usize = 512;
/// Above `EXACT`, only every `STRIDE`-th number is evaluated.
const STRIDE: usize = 32;
/// Most tokens of a rehearsed step. Larger steps extend the last line segment.
const MOST: usize = 8192;

impl RehearsedModel {
    /// Prepares the model that `config` describes, divided among `gpus` GPUs, with keys and values of type `kv_dtype`.
    ///
    /// # Errors
    /// If the model has no kernels and no experts, or cannot be divided among `gpus` GPUs.
    pub fn new(config: &ModelConfig, gpu: &GpuSpec, gpus: usize, kv_dtype: KvDtype) -> Result<Self> {
        Self::in_types(config, gpu, gpus, (DTYPE, kv_dtype), config.max_positions)
    }

    /// Like [`RehearsedModel::new`], with weights and activations of type `dtype`, and sequences of at most `longest`
    /// tokens.
    ///
    /// # Errors
    /// See [`RehearsedModel::new`].
    pub fn in_types(
        config: &ModelConfig,
        gpu: &GpuSpec,
        gpus: usize,
        (dtype, kv_dtype): (DType, KvDtype),
        longest: usize,
    ) -> Result<Self> {
        let shard = Shard { rank: 0, of: gpus, ..Shard::WHOLE };
        let own = shard.config(config)?;
        let mut attention_blocks = None;
        let blocks = |launch| {
            let held = gpu.attention_blocks(launch, dtype);
            // The backend asks for steps without drafts first.
            attention_blocks.get_or_insert(held);
            held
        };
        let backend = CudaBackend::without_device(gpu.limits, blocks, &own, shard, BLOCK_SIZE, (dtype, kv_dtype));
        let steps = match Estimate::new(config, gpus) {
            Some(estimate) => Steps::Shapes(estimate, backend.err().map(|error| error.to_string())),
            None => {
                let (backend, mut zeros) = (backend?, Weights::of_zeros(dtype));
                let model = engine::tools::model::load(&backend, config, &mut zeros, longest)?;
                Steps::Engine(backend, model)
            }
        };
        let layout = cache_plan::layout(config, shard, BLOCK_SIZE, kv_dtype)?;
        // Estimated models have no states, so this keeps their groups' indices.
        let groups = layout.groups.iter().enumerate().filter(|(_, group)| group.state.is_none());
        let attention = groups.map(|(at, group)| {
            let layers = (0..layout.num_layers()).filter(|&layer| layout.place(layer).group == at).count() as f64;
            let shape = match (shape(own.heads, group, kv_dtype), &steps) {
                (Err(error), Steps::Engine(..)) => return Err(error),
                (shape, _) => shape.ok(),
            };
            let queries = (own.heads * group.head_dim) as f64;
            let token_bytes = layout.layer_bytes(at) as f64 / BLOCK_SIZE as f64;
            Ok(LayerAttention { shape, queries, token_bytes, layers, window: group.window })
        });
        let attention = attention.collect::<Result<_>>()?;
        Ok(RehearsedModel { steps, layout, attention, attention_blocks: attention_blocks.unwrap_or_default() })
    }

    /// Returns the number of blocks of decode attention that fit a multiprocessor.
    pub fn attention_blocks(&self) -> u32 {
        self.attention_blocks
    }

    /// The estimate that the steps come from, if the model has experts. Also returns the reason why the engine cannot run
    /// the model on a GPU, if it cannot.
    pub fn estimate(&self) -> Option<(&Estimate, Option<&str>)> {
        match &self.steps {
            Steps::Engine(..) => None,
            Steps::Shapes(estimate, lacks) => Some((estimate, lacks.as_deref())),
        }
    }

    /// Returns the layout of the cache on one GPU.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Returns the launches of a step.
    ///
    /// # Errors
    /// See [`rehearse`].
    pub fn launches(&self, step: Rehearsal) -> Result<Vec<NotedLaunch>> {
        match &self.steps {
            Steps::Engine(backend, model) => Ok(rehearse(backend, &**model, &self.layout, step)?),
            Steps::Shapes(estimate, _) => {
                Ok(estimate.launches(step, |layer| self.attention[self.layout.place(layer).group].launch(step)))
            }
        }
    }

    /// Returns the seconds of a step, summed over its launches.
    ///
    /// # Errors
    /// See [`rehearse`].
    pub fn seconds(&self, step: Rehearsal, efficiency: &Efficiency) -> Result<f64> {
        Ok(self.launches(step)?.iter().map(|launch| efficiency.seconds(&launch.cost)).sum())
    }

    /// Returns the bytes of the weights on one GPU.
    pub fn weight_bytes(&self) -> usize {
        match &self.steps {
            Steps::Engine(backend, _) => backend.weight_bytes(),
            Steps::Shapes(estimate, _) => estimate.weight_bytes() as usize,
        }
    }

    /// Returns the bytes of a token's keys and values on one GPU.
    pub fn token_bytes(&self) -> f64 {
        self.layout.block_bytes() as f64 / self.layout.block_size as f64
    }

    /// Returns the bytes of the activations on one GPU, for the largest step within the engine's default limits. If a
    /// larger step was rehearsed before, returns the bytes of that step.
    ///
    /// # Errors
    /// See [`rehearse`].
    pub fn activation_bytes(&self) -> Result<usize> {
        let (tokens, seqs) = (2048, 256);
        match &self.steps {
            Steps::Engine(backend, _) => {
                self.launches(Rehearsal { decodes: 0, context: 0, drafted: 0, prompt: tokens, logits: seqs })?;
                Ok(backend.activation_bytes())
            }
            Steps::Shapes(estimate, _) => Ok(estimate.activation_bytes(tokens, seqs) as usize),
        }
    }

    fn without_attention(&self, step: Rehearsal, efficiency: &Efficiency) -> Result<f64> {
        let launches = self.launches(step)?;
        let rest = launches.iter().filter(|launch| launch.cost.kv_cache == 0);
        Ok(rest.map(|launch| efficiency.seconds(&launch.cost)).sum())
    }
}

impl Curve {
    /// Evaluates `seconds` on the grid of numbers up to `most`.
    fn rehearse(most: usize, seconds: impl Fn(usize) -> Result<f64>) -> Result<Self> {
        let exact = 1..=most.min(EXACT);
        let points = exact.chain((EXACT + STRIDE..=most).step_by(STRIDE));
        points.map(|n| Ok((n, seconds(n)?))).collect::<Result<_>>().map(Curve)
    }

    fn at(&self, n: usize) -> f64 {
        if n == 0 {
            return 0.0;
        }
        let above = if n <= EXACT { n - 1 } else { EXACT + (n - EXACT).div_ceil(STRIDE) - 1 };
        let above = above.clamp(1, self.0.len() - 1);
        let ((low, from), (high, to)) = (self.0[above - 1], self.0[above]);
        from + (to - from) * (n as f64 - low as f64) / (high - low) as f64
    }
}

impl CostModel {
    /// Computes the times of `model`'s steps at the given efficiency.
    ///
    /// # Errors
    /// See [`rehearse`].
    pub fn new(model: &RehearsedModel, efficiency: Efficiency) -> Result<Self> {
        let prompt = |tokens, logits| {
            let step = Rehearsal { prompt: tokens, logits, ..Rehearsal::default() };
            model.without_attention(step, &efficiency)
        };
        let layout = &model.layout;
        let none = prompt(1, 0)?;
        Ok(CostModel {
            attention: model.attention.clone(),
            layers: layout.num_layers(),
            groups: layout.cache_groups(),
            attention_factor: 1.0,
            host: 0.0,
            decodes: Curve::rehearse(EXACT, |decodes| {
                let step = Rehearsal { decodes, context: 1, drafted: 0, prompt: 0, logits: decodes };
                // The launch that plans attention is counted here.
                model.without_attention(step, &efficiency)
            })?,
            bodies: Curve::rehearse(MOST, |tokens| prompt(tokens, 0))?,
            heads: Curve::rehearse(EXACT, |rows| Ok(prompt(1, rows)? - none))?,
            token_bytes: model.token_bytes(),
            weight_bytes: model.weight_bytes(),
            efficiency,
        })
    }

    /// Returns the model with decode attention slower by `factor`.
    pub fn with_attention_factor(mut self, factor: f64) -> Self {
        self.attention_factor = factor;
        self
    }

    /// Returns the model with a wait of `seconds` for the host in each step.
    pub fn with_host(mut self, seconds: f64) -> Self {
        self.host = seconds;
        self
    }

    /// Returns the bytes of the weights on one GPU.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Returns the bytes of a token's keys and values on one GPU.
    pub fn token_bytes(&self) -> f64 {
        self.token_bytes
    }
}

impl StepCost for CostModel {
    fn seconds(&self, step: &StepLoad) -> f64 {
        let tokens = step.decodes + step.prompts.iter().map(|(new, _)| new).sum::<usize>();
        if tokens == 0 {
            return 0.0;
        }
        let rest = if step.prompts.is_empty() {
            self.decodes.at(tokens)
        } else {
            self.bodies.at(tokens) + self.heads.at(step.logits)
        };
        let mut seconds = self.host + rest;
        for part in &self.attention {
            if step.decodes > 0 {
                let attention = self.attention_factor * self.efficiency.work_seconds(part.decode_floor(step));
                seconds += part.layers * (attention + self.efficiency.launch);
            }
            if !step.prompts.is_empty() {
                let attention = self.efficiency.work_seconds(part.prefill_floor(step));
                seconds += part.layers * (attention + self.efficiency.launch);
            }
        }
        seconds
    }

    fn copy_seconds(&self, tokens: usize) -> f64 {
        // Each byte is read and written.
        2.0 * self.token_bytes * tokens as f64 / self.efficiency.bandwidth
    }

    fn swap_seconds(&self, tokens: usize, copies: usize) -> f64 {
        self.token_bytes * tokens as f64 / self.efficiency.bus + self.efficiency.copy * copies as f64
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn groups(&self) -> Vec<CacheGroup> {
        self.groups.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use loadgen::random::WorkloadRng;

    use super::*;
    use crate::gpu;
    use crate::model::ModelShape;

    #[test]
    fn the_cost_model_is_within_one_per_cent_of_the_rehearsal() {
        for (model, gpu, gpus) in [("opt-13b", "a100-40gb", 1), ("opt-66b", "a100-40gb", 4), ("llama-3-8b", "l4", 1)] {
            let (config, gpu) = (ModelShape::find(model).unwrap().config, gpu::named(gpu).unwrap());
            let rehearsed = RehearsedModel::new(&config, gpu, gpus, DTYPE.into()).unwrap();
            for efficiency in [Efficiency::of(gpu), Efficiency::floor(gpu)] {
                let cost = CostModel::new(&rehearsed, efficiency).unwrap();
                let mut random = WorkloadRng::new(7);
                for _ in 0..200 {
                    let decodes = random.below(257);
                    let context = 1 + random.below(2000);
                    let prompt = if decodes == 0 || random.below(2) == 0 { 1 + random.below(2048) } else { 0 };
                    let logits = decodes + usize::from(prompt > 0);
                    let step = Rehearsal { decodes, context, drafted: 0, prompt, logits };
                    let load = StepLoad {
                        decodes,
                        decode_context: (decodes * context) as u64,
                        prompts: if prompt > 0 { vec![(prompt, prompt)] } else { Vec::new() },
                        logits,
                    };
                    let (fitted, exact) = (cost.seconds(&load), rehearsed.seconds(step, &efficiency).unwrap());
                    assert!((fitted / exact - 1.0).abs() < 0.01, "{model}, {step:?}: {fitted} for {exact}");
                }
            }
        }
    }
}
