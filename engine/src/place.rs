//! Where a model runs: the device is chosen, the weights are taken there, and what memory is left becomes the KV cache.

#[cfg(feature = "cuda")]
mod gpu;

use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::kv::KvLayout;
use crate::load::Weights;
use crate::model;
#[cfg(feature = "cuda")]
use crate::options::Device;
use crate::options::{AttentionKernels, CPU_KV_MEMORY, Options};
use crate::runner::{ModelRunner, Runner};
use crate::tensor::DType;

/// A model on its device.
pub struct PlacedModel {
    /// Executes its steps.
    pub runner: Box<dyn Runner>,
    /// The shape of its KV cache.
    pub layout: KvLayout,
    /// Blocks of the KV cache.
    pub num_blocks: usize,
    /// Blocks of its swap space.
    pub swap_blocks: usize,
    /// What the device is.
    pub device: DeviceInfo,
}

/// The device that a model runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// The type of the model's weights on it.
    pub dtype: DType,
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

/// Takes a model to the device that the options say.
///
/// # Errors
/// [`Error::Device`], [`Error::Unsupported`], [`Error::Option`] and [`Error::Memory`] if it cannot run there.
pub fn place(config: &ModelConfig, weights: Weights, options: &Options) -> Result<PlacedModel> {
    #[cfg(feature = "cuda")]
    let note = match gpu::open(config, &weights, options) {
        Ok(Some(gpu)) => return gpu.place(config, weights, options),
        Ok(None) => None,
        Err(error) if options.device == Device::Auto => Some(format!("runs on the CPU, since {error}")),
        Err(error) => return Err(error),
    };
    #[cfg(not(feature = "cuda"))]
    let note = None;
    on_cpu(config, weights, options, note)
}

fn kv_layout(config: &ModelConfig, options: &Options, dtype: DType) -> KvLayout {
    KvLayout {
        layers: config.layers,
        heads: config.kv_heads,
        head_dim: config.head_dim,
        block_size: options.block_size,
        dtype,
    }
}

fn on_cpu(config: &ModelConfig, mut weights: Weights, options: &Options, note: Option<String>) -> Result<PlacedModel> {
    if options.attention != AttentionKernels::Quire {
        return Err(Error::Option("attention: v1 and v2 are kernels of a GPU, or of the emulator".into()));
    }
    let layout = kv_layout(config, options, options.kv_dtype.unwrap_or(DType::F32));
    let num_blocks = options.num_blocks(&layout, config.max_positions, CPU_KV_MEMORY)?;
    let swap_blocks = options.swap_blocks(&layout, num_blocks);
    let backend = CpuBackend::new(options.threads)?;
    let (cache, (num_blocks, swap_blocks), fewer) = reserve(&backend, layout, (num_blocks, swap_blocks), options)?;
    let notes = note.into_iter().chain(fewer).collect();
    let longest = match config.window() {
        // Blocks are given back as the window slides on.
        Some(_) => config.max_positions,
        None => config.max_positions.min(num_blocks * options.block_size),
    };
    let dtype = options.dtype.filter(|&dtype| dtype != DType::F32).unwrap_or(weights.dtype());
    let device = DeviceInfo { name: "CPU".into(), dtype, memory: None, notes };
    let model = model::load(&backend, config, &mut weights, longest)?;
    let runner = Box::new(ModelRunner::new(backend, model, cache));
    Ok(PlacedModel { runner, layout, num_blocks, swap_blocks, device })
}

/// A cache, the blocks that it and its swap space have, and a note if they are fewer than wanted.
type Reserved = (<CpuBackend as Backend>::KvCache, (usize, usize), Option<String>);

/// A cache with so many blocks and so many in the swap space; with fewer where the system refuses them and the options do
/// not insist. Then there is a note, too.
fn reserve(backend: &CpuBackend, layout: KvLayout, wanted: (usize, usize), options: &Options) -> Result<Reserved> {
    let (mut blocks, mut refusal) = (wanted, None);
    loop {
        let error = match backend.kv_cache(layout, blocks.0, blocks.1) {
            Ok(cache) => {
                let mib = |blocks: usize| (blocks * layout.block_bytes()) >> 20;
                let note = refusal.map(|why: String| {
                    let (kv, swap) = (mib(blocks.0), mib(blocks.1));
                    format!("the KV cache has {kv} MiB and the swap space {swap}, since the system refuses more: {why}")
                });
                return Ok((cache, blocks, note));
            }
            Err(error) => error,
        };
        let num_blocks = if options.kv_memory.is_none() { blocks.0.div_ceil(2) } else { blocks.0 };
        let swap_blocks = if options.swap_space.is_none() { blocks.1 / 2 } else { blocks.1 };
        match error {
            Error::Memory(why) if (num_blocks, swap_blocks) != blocks => refusal = refusal.or(Some(why)),
            error => return Err(error),
        }
        blocks = (num_blocks, swap_blocks.min(num_blocks));
    }
}
