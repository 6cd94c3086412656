//! A model on a GPU.

use launch::Driver;

use super::{PlacedModel, kv_layout};
use crate::backend::Backend;
use crate::backend::cuda::CudaBackend;
use crate::config::ModelConfig;
use crate::device_info::DeviceInfo;
use crate::error::{Error, Result};
use crate::fit;
use crate::load::Weights;
use crate::model;
use crate::options::{Device, Options};
use crate::runner::ModelRunner;
use crate::tensor::DType;

const GIB: f64 = (1 << 30) as f64;

/// A GPU that a model may be taken to.
pub(super) struct OpenGpu {
    backend: CudaBackend,
    dtype: DType,
}

/// The GPU that the options say; none if the model is to run on the CPU.
///
/// # Errors
/// [`Error::Device`], [`Error::Unsupported`] and [`Error::Option`] if there is one that the model cannot run on, or the
/// options insist on one that is not there.
pub(super) fn open(config: &ModelConfig, weights: &Weights, options: &Options) -> Result<Option<OpenGpu>> {
    let (driver, ordinal) = match options.device {
        Device::Cpu => return Ok(None),
        Device::Cuda(ordinal) => (Driver::machine(), ordinal),
        Device::Emulator => (Driver::emulator(), 0),
        Device::Auto => match Driver::machine() {
            // There is no driver, or the process uses the emulator: a user expects no GPU then, and needs no note.
            Err(_) => return Ok(None),
            driver => (driver, 0),
        },
    };
    if options.tensor_parallel_size > 1 {
        return Err(Error::Option("tensor-parallel-size: several workers run on the CPU only".into()));
    }
    let driver = driver.map_err(|error| Error::Device(error.to_string()))?;
    let dtype = gpu_dtype(options, weights)?;
    let backend = CudaBackend::new(driver, ordinal, config, options, dtype)?;
    Ok(Some(OpenGpu { backend, dtype }))
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

impl OpenGpu {
    /// Takes a model to the GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] and [`Error::Memory`] if it cannot run there.
    pub(super) fn place(self, config: &ModelConfig, mut weights: Weights, options: &Options) -> Result<PlacedModel> {
        let OpenGpu { backend, dtype } = self;
        weights.round_to(dtype);
        let bytes = weights.bytes(Some(dtype.size()));
        let layout = kv_layout(config, options, dtype);
        let model = model::load(&backend, config, &mut weights, config.max_positions).map_err(|error| match error {
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
}
