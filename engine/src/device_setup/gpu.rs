//! Loading a model onto one GPU or several.

use std::sync::Arc;

use launch::Driver;

use super::{LoadedModel, kv_layout, no_drafts, unloaded};
use crate::backend::Backend;
use crate::backend::cuda::{CudaBackend, GpuGroup, check_layout, check_workers};
use crate::config::ModelConfig;
use crate::device_info::{DeviceInfo, MemoryPlan};
use crate::error::{Error, Result};
use crate::kv::{KvDtype, KvLayout};
use crate::load::Weights;
use crate::memory_plan::plan_memory;
use crate::model::{self, Model};
use crate::options::{AttentionKernels, Device, Options};
use crate::parallel::ParallelRunner;
use crate::quantised::QuantType;
use crate::runner::{ModelRunner, Runner};
use crate::tensor::DType;

const GIB: f64 = (1 << 30) as f64;

/// Open GPUs for a model: one, or one for each worker.
pub(super) struct OpenGpus {
    workers: Vec<CudaBackend>,
    /// State shared by several workers.
    group: Option<Arc<GpuGroup>>,
    dtype: DType,
    kv_dtype: KvDtype,
}

/// Opens the GPUs that the options select. Returns `None` if the model is to run on the CPU.
///
/// # Errors
/// [`Error::Device`], [`Error::Unsupported`] or [`Error::Option`] if a GPU exists but cannot run the model, or the
/// options require a GPU that does not exist.
pub(super) fn open(config: &ModelConfig, weights: &Weights, options: &Options) -> Result<Option<OpenGpus>> {
    let (driver, ordinal) = match options.device {
        Device::Cpu => return Ok(None),
        Device::Cuda(ordinal) => (Driver::machine(), ordinal),
        Device::Emulator => (Driver::emulator(), 0),
        Device::Auto => match Driver::machine() {
            // There is no driver, or the process uses the emulator. The user does not expect a GPU then, so no note is
            // needed.
            Err(_) => return Ok(None),
            driver => (driver, 0),
        },
    };
    let driver = driver.map_err(|error| Error::Device(error.to_string()))?;
    let dtype = gpu_dtype(options, weights)?;
    let kv_dtype = gpu_kv_dtype(options, dtype)?;
    let of = options.tensor_parallel_size;
    if of > 1 {
        ensure_gpus(driver, ordinal, of)?;
    }
    let is_quantised = keeps_quantised(options) && !weights.quantised().is_empty();
    let open = |rank: usize| {
        let shard = options.shard(rank);
        let own = shard.config(config)?;
        CudaBackend::new(driver, ordinal + rank as u32, &own, shard, options, (dtype, kv_dtype), is_quantised)
    };
    let mut workers = (0..of).map(open).collect::<Result<Vec<_>>>()?;
    let group = if of > 1 { Some(CudaBackend::connect(&mut workers)?) } else { None };
    Ok(Some(OpenGpus { workers, group, dtype, kv_dtype }))
}

/// Checks that there are GPUs for `workers` workers from `ordinal` on. The emulator creates them.
fn ensure_gpus(driver: &Driver, ordinal: u32, workers: usize) -> Result<()> {
    check_workers(workers)?;
    let count = driver.emulate_devices(workers as u32).and_then(|()| driver.num_devices());
    let count = count.map_err(|error| Error::Device(error.to_string()))?;
    if (count as usize) < ordinal as usize + workers {
        let from = if ordinal > 0 { format!(" from GPU {ordinal} on") } else { String::new() };
        return Err(Error::Option(format!(
            "tensor-parallel-size: {workers} workers need {workers} GPUs{from}, but the machine has {count}"
        )));
    }
    Ok(())
}

/// Selects the type that a GPU computes in.
fn gpu_dtype(options: &Options, weights: &Weights) -> Result<DType> {
    match options.dtype {
        Some(DType::F32) => Err(Error::Option("dtype: the GPU computes in f16 and bf16, not in f32".into())),
        Some(dtype) => Ok(dtype),
        None if weights.dtype() == DType::F32 => Ok(DType::F16),
        None => Ok(weights.dtype()),
    }
}

/// Selects the type of keys and values for activations of type `dtype`.
fn gpu_kv_dtype(options: &Options, dtype: DType) -> Result<KvDtype> {
    match options.kv_dtype {
        None => Ok(dtype.into()),
        Some(eight @ (KvDtype::Int8 | KvDtype::Fp8)) if options.attention != AttentionKernels::Quire => {
            Err(Error::Option(format!(
                "kv-dtype: the paper's kernels need keys and values of the weights' type, {dtype}, not {eight}"
            )))
        }
        Some(KvDtype::Float(other)) if other != dtype => Err(Error::Option(format!(
            "kv-dtype: on the GPU it must be the type of the weights ({dtype}), int8 or fp8, not {other}"
        ))),
        Some(dtype) => Ok(dtype),
    }
}

impl OpenGpus {
    /// Loads a model onto the GPUs. The first worker loads `weights`, and every other worker calls `open` for its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] or [`Error::Memory`] if the model cannot run there, and errors of `open`.
    pub(super) fn load_model(
        self,
        config: &ModelConfig,
        weights: Weights,
        mut open: impl FnMut() -> Result<Weights>,
        options: &Options,
    ) -> Result<LoadedModel> {
        let OpenGpus { workers, group, dtype, kv_dtype } = self;
        let of = workers.len();
        // The layouts of each worker's cache and of all together.
        let part = kv_layout(config, options.shard(0), options, kv_dtype)?;
        check_layout(&part)?;
        let layout = part.clone().of_workers(of);

        let mut first = Some(weights);
        let mut loaded = Vec::with_capacity(of);
        for backend in workers {
            let weights = first.take().map_or_else(&mut open, Ok)?;
            loaded.push(LoadedWorker::new(backend, config, weights, &part, options, dtype)?);
        }
        let blocks_of = |worker: &LoadedWorker| {
            options
                .num_blocks(&part, config.max_positions, worker.memory.kv_cache)
                .map_err(|error| worker.explain(error, options))
        };
        let num_blocks = loaded.iter().map(blocks_of).collect::<Result<Vec<_>>>()?.into_iter().min().unwrap_or(0);
        let swap_blocks = options.swap_blocks(&layout, num_blocks);
        let tightest = loaded.iter().min_by_key(|worker| worker.memory.kv_cache).unwrap_or(&loaded[0]);
        let name = if of == 1 { tightest.backend.name().into() } else { format!("{of} x {}", tightest.backend.name()) };
        let notes = unloaded(config).chain(no_drafts(&layout, options));
        let notes = notes.chain(widening_note(tightest, dtype)).collect();
        let quantised = tightest.backend.quantised();
        let device = DeviceInfo { name, dtype, quantised, memory: Some(tightest.memory), notes };

        let runner = |LoadedWorker { backend, model, .. }: LoadedWorker| -> Result<ModelRunner<CudaBackend>> {
            let cache = backend.kv_cache(part.clone(), num_blocks, swap_blocks)?;
            Ok(ModelRunner::new(backend, model, cache))
        };
        let mut runners = loaded.into_iter().map(runner).collect::<Result<Vec<_>>>()?.into_iter();
        let first = runners.next().unwrap_or_else(|| unreachable!("there is at least one worker"));
        let runner: Box<dyn Runner> = match group {
            Some(group) => Box::new(ParallelRunner::new(first, runners.collect(), group)?),
            None => Box::new(first),
        };
        Ok(LoadedModel { runner, layout, num_blocks, swap_blocks, device })
    }
}

/// Whether quantised projections stay quantised. Requesting a type decodes them, as on the CPU. With several workers
/// they are decoded too, because dividing columns might cut groups.
fn keeps_quantised(options: &Options) -> bool {
    options.dtype.is_none() && options.tensor_parallel_size == 1
}

/// Returns a note about quantised weights that are not quantised on the GPU.
fn widening_note(worker: &LoadedWorker, dtype: DType) -> Option<String> {
    let list = |kinds: &[QuantType]| kinds.iter().map(QuantType::to_string).collect::<Vec<_>>().join(", ");
    match &worker.rounded[..] {
        [] => {
            let kinds = worker.backend.widened();
            let which = list(&kinds);
            (!kinds.is_empty()).then(|| format!("some of the weights in {which} become {dtype} on the GPU"))
        }
        kinds => Some(format!("the weights are quantised ({}), and become {dtype} on the GPU", list(kinds))),
    }
}

/// A worker with its weights.
struct LoadedWorker {
    backend: CudaBackend,
    model: Box<dyn Model<CudaBackend>>,
    memory: MemoryPlan,
    /// The types of quantised weights, if all of them are decoded.
    rounded: Vec<QuantType>,
}

impl LoadedWorker {
    fn new(
        backend: CudaBackend,
        config: &ModelConfig,
        mut weights: Weights,
        layout: &KvLayout,
        options: &Options,
        dtype: DType,
    ) -> Result<Self> {
        weights.round_to(dtype);
        let stays = keeps_quantised(options);
        let mut rounded = Vec::new();
        if stays {
            weights.keep_quantised();
        } else {
            rounded.extend_from_slice(weights.quantised());
        }
        let in_file = if stays { weights.bytes(None) } else { usize::MAX };
        let bytes = weights.bytes(Some(dtype.size())).min(in_file) / options.tensor_parallel_size;
        let model = model::load(&backend, config, &mut weights, config.max_positions).map_err(|error| match error {
            Error::Memory(why) => {
                Error::Memory(format!("the model's weights take {:.1} GiB in {dtype}: {why}", bytes as f64 / GIB))
            }
            error => error,
        })?;
        let memory = plan_memory(&backend, &*model, layout, options.scheduler, options.gpu_memory_utilization)?;
        Ok(LoadedWorker { backend, model, memory, rounded })
    }

    /// Extends an error about too little memory with the current use of memory.
    fn explain(&self, error: Error, options: &Options) -> Error {
        let memory = &self.memory;
        match error {
            Error::Memory(why) => Error::Memory(format!(
                "{why}: {:.1} of the {:.1} GiB of {} are in use, {:.1} by weights and {:.1} by activations; raise \
                 gpu-memory-utilization ({}), or lower max-batch-tokens or max-num-seqs",
                memory.used as f64 / GIB,
                memory.total as f64 / GIB,
                self.backend.name(),
                memory.weights as f64 / GIB,
                memory.activations as f64 / GIB,
                options.gpu_memory_utilization
            )),
            error => error,
        }
    }
}
