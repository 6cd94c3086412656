//! Where a model runs: the device is chosen, the weights are taken there, and what memory is left becomes the KV cache.

use launch::Driver;

use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::backend::cuda::CudaBackend;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::fit::{self, MemoryPlan};
use crate::kv::KvLayout;
use crate::load::Weights;
use crate::model;
use crate::options::{AttentionKernels, CPU_KV_MEMORY, Device, Options};
use crate::runner::{ModelRunner, Runner};
use crate::tensor::DType;

const GIB: f64 = (1 << 30) as f64;

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

/// Takes a model to the device that the options say.
///
/// # Errors
/// [`Error::Device`], [`Error::Unsupported`], [`Error::Option`] and [`Error::Memory`] if it cannot run there.
pub fn place(config: &ModelConfig, mut weights: Weights, options: &Options) -> Result<PlacedModel> {
    let open = |driver: launch::Result<&'static Driver>, ordinal| -> Result<(CudaBackend, DType)> {
        let driver = driver.map_err(|error| Error::Device(error.to_string()))?;
        let dtype = gpu_dtype(options, &weights)?;
        let backend = CudaBackend::new(driver, ordinal, config, options, dtype)?;
        Ok((backend, dtype))
    };
    let (driver, ordinal) = match options.device {
        Device::Cpu => return on_cpu(config, weights, options, Vec::new()),
        Device::Cuda(ordinal) => (Driver::machine(), ordinal),
        Device::Emulator => (Driver::emulator(), 0),
        Device::Auto => match Driver::machine() {
            // There is no driver, or the process uses the emulator: a user expects no GPU then, and needs no note.
            Err(_) => return on_cpu(config, weights, options, Vec::new()),
            driver => (driver, 0),
        },
    };
    match open(driver, ordinal) {
        Ok((backend, dtype)) => on_gpu(backend, dtype, config, &mut weights, options),
        Err(error) if options.device == Device::Auto => {
            on_cpu(config, weights, options, vec![format!("runs on the CPU, since {error}")])
        }
        Err(error) => Err(error),
    }
}

/// The type in which a GPU computes.
fn gpu_dtype(options: &Options, weights: &Weights) -> Result<DType> {
    let dtype = match options.dtype {
        Some(DType::F32) => return Err(Error::Option("dtype: the GPU computes in f16 and bf16, not in f32".into())),
        Some(dtype) => dtype,
        None if weights.dtype() == DType::F32 => DType::F16,
        None => weights.dtype(),
    };
    match options.kv_dtype {
        Some(other) if other != dtype => {
            Err(Error::Option(format!("kv-dtype: on the GPU it is that of the weights, {dtype}, not {other}")))
        }
        _ => Ok(dtype),
    }
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

fn on_cpu(
    config: &ModelConfig,
    mut weights: Weights,
    options: &Options,
    mut notes: Vec<String>,
) -> Result<PlacedModel> {
    if options.attention != AttentionKernels::Quire {
        return Err(Error::Option("attention: v1 and v2 are kernels of a GPU, or of the emulator".into()));
    }
    let layout = kv_layout(config, options, options.kv_dtype.unwrap_or(DType::F32));
    let num_blocks = options.num_blocks(&layout, config.max_positions, CPU_KV_MEMORY)?;
    let swap_blocks = options.swap_blocks(&layout, num_blocks);
    let backend = CpuBackend::new(options.threads)?;
    let (cache, (num_blocks, swap_blocks), note) = reserve(&backend, layout, (num_blocks, swap_blocks), options)?;
    notes.extend(note);
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

fn on_gpu(
    backend: CudaBackend,
    dtype: DType,
    config: &ModelConfig,
    weights: &mut Weights,
    options: &Options,
) -> Result<PlacedModel> {
    weights.round_to(dtype);
    let bytes = weights.bytes(Some(dtype.size()));
    let layout = kv_layout(config, options, dtype);
    let model = model::load(&backend, config, weights, config.max_positions).map_err(|error| match error {
        Error::Memory(why) => {
            Error::Memory(format!("the model's weights take {:.1} GiB in {dtype}: {why}", bytes as f64 / GIB))
        }
        error => error,
    })?;
    let memory = fit::fit(&backend, &*model, layout, options.scheduler, options.gpu_memory_utilization)?;
    let num_blocks =
        options.num_blocks(&layout, config.max_positions, memory.kv_cache).map_err(|error| match error {
            Error::Memory(why) => Error::Memory(format!(
                "{why}: {:.1} of the {:.1} GiB of {} are in use, {:.1} by weights and {:.1} by activations; raise \
             gpu-memory-utilization ({}), or lower max-batch-tokens or max-num-seqs",
                memory.used as f64 / GIB,
                memory.total as f64 / GIB,
                backend.name(),
                memory.weights as f64 / GIB,
                memory.activations as f64 / GIB,
                options.gpu_memory_utilization
            )),
            error => error,
        })?;
    let swap_blocks = options.swap_blocks(&layout, num_blocks);
    let cache = backend.kv_cache(layout, num_blocks, swap_blocks)?;
    let device = DeviceInfo { name: backend.name().into(), dtype, memory: Some(memory), notes: Vec::new() };
    let runner = Box::new(ModelRunner::new(backend, model, cache));
    Ok(PlacedModel { runner, layout, num_blocks, swap_blocks, device })
}
