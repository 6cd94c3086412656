//! Where a model runs: the device is chosen, the weights are taken there, and what memory is left becomes the KV cache.

use launch::Driver;

use crate::backend::cpu::CpuBackend;
use crate::backend::cuda::{CudaBackend, MemoryPlan, StepLimits};
use crate::backend::{Backend, KvLayout};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::load::Weights;
use crate::model;
use crate::options::{CPU_KV_MEMORY, Device, Options};
use crate::runner::{ModelRunner, Runner};
use crate::tensor::DType;

const GIB: f64 = (1 << 30) as f64;

/// A model on its device.
pub struct Placed {
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
    /// Why the GPU that the machine has is not used.
    pub note: Option<String>,
}

/// Takes a model to the device that the options say.
///
/// # Errors
/// [`Error::Device`], [`Error::Unsupported`], [`Error::Option`] and [`Error::Memory`] if it cannot run there.
pub fn place(config: &ModelConfig, mut weights: Weights, options: &Options) -> Result<Placed> {
    let open = |driver: launch::Result<&'static Driver>, ordinal| -> Result<(CudaBackend, DType)> {
        let driver = driver.map_err(|error| Error::Device(error.to_string()))?;
        let dtype = gpu_dtype(options, &weights)?;
        let backend = CudaBackend::new(driver, ordinal, config, options.block_size, dtype, options.cuda_graphs)?;
        Ok((backend, dtype))
    };
    let (driver, ordinal) = match options.device {
        Device::Cpu => return on_cpu(config, weights, options, None),
        Device::Cuda(ordinal) => (Driver::machine(), ordinal),
        Device::Emulator => (Driver::emulator(), 0),
        Device::Auto => match Driver::machine() {
            // No driver, or a process that uses the emulator: nothing to be surprised at.
            Err(_) => return on_cpu(config, weights, options, None),
            driver => (driver, 0),
        },
    };
    match open(driver, ordinal) {
        Ok((backend, dtype)) => on_gpu(backend, dtype, config, &mut weights, options),
        Err(error) if options.device == Device::Auto => on_cpu(config, weights, options, Some(error.to_string())),
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

fn on_cpu(config: &ModelConfig, mut weights: Weights, options: &Options, note: Option<String>) -> Result<Placed> {
    let layout = kv_layout(config, options, options.kv_dtype.unwrap_or(DType::F32));
    let num_blocks = options.num_blocks(&layout, config.max_positions, CPU_KV_MEMORY)?;
    let longest = config.max_positions.min(num_blocks * options.block_size);
    let backend = CpuBackend::new(options.threads)?;
    let swap_blocks = options.swap_blocks(&layout, num_blocks);
    let cache = backend.kv_cache(layout, num_blocks, swap_blocks)?;
    let dtype = options.dtype.filter(|&dtype| dtype != DType::F32).unwrap_or(weights.dtype());
    let device = DeviceInfo { name: "CPU".into(), dtype, memory: None, note };
    let model = model::load(&backend, config, &mut weights, longest)?;
    let runner = Box::new(ModelRunner::new(backend, model, cache));
    Ok(Placed { runner, layout, num_blocks, swap_blocks, device })
}

fn on_gpu(
    backend: CudaBackend,
    dtype: DType,
    config: &ModelConfig,
    weights: &mut Weights,
    options: &Options,
) -> Result<Placed> {
    weights.round_to(dtype);
    let bytes = weights.bytes(Some(dtype.size()));
    let layout = kv_layout(config, options, dtype);
    let model = model::load(&backend, config, weights, config.max_positions).map_err(|error| match error {
        Error::Memory(why) => {
            Error::Memory(format!("the model's weights take {:.1} GiB in {dtype}: {why}", bytes as f64 / GIB))
        }
        error => error,
    })?;
    let limits = StepLimits { tokens: options.max_batch_tokens, seqs: options.max_num_seqs };
    let memory = backend.fit(&*model, layout, limits, options.gpu_memory_utilization)?;
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
    let device = DeviceInfo { name: backend.name().into(), dtype, memory: Some(memory), note: None };
    let runner = Box::new(ModelRunner::new(backend, model, cache));
    Ok(Placed { runner, layout, num_blocks, swap_blocks, device })
}
