//! The GPU backend. Every operation is a Rust kernel from `kernels`, launched in one stream through `launch`.
//!
//! | file or folder | contents |
//! | --- | --- |
//! | `device`, `ptx` | opening the GPU and loading kernels; the embedded PTX |
//! | `mechanisms` | the mechanisms of models that have no kernels, and the heads that have some |
//! | `heads` | the attention heads of each layer, and the launches of decode attention for them |
//! | `communicator` | data exchange between the GPUs of a divided model |
//! | `memory` | activations in an arena, weights in the kernels' layout, KV blocks and their moves |
//! | `step` | a step's inputs, packed into one upload; its launches, executed or only recorded as notes; decode steps as CUDA graphs |
//! | `operations`, `ops` | the backend's operations, one launch each; the larger ones: attention, projections, sampling |
//!
//! Activations have the weights' 16-bit type, and sums are f32. A step allocates no device memory: its tensors are
//! parts of one `arena`.

mod communicator;
mod device;
mod heads;
mod mechanisms;
mod memory;
mod operations;
mod ops;
pub mod ptx;
mod step;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use cuda_std::launch::DevicePtrMut;
use kernels::attention::{AttentionShape, decode::DecodeLaunch};
use kernels::element::ElementType;
use kernels::gemm::plan::GpuLimits;
use kernels::norm::NormShape;
use kernels::recurrent::chunked::shape::FROM_ROWS;
use launch::{DeviceBuffer, Driver};

pub use communicator::{GpuGroup, check_workers};
use memory::cache::Arrays;
pub use memory::cache::{CudaKvCache, check_layout};
pub use memory::tensor::{CudaProjection, CudaQkvProjection, CudaTensor, CudaWeight};
pub use step::inputs::StepInputs;
pub(crate) use step::inputs::{BUCKETS, bucket};
pub use step::queue::{LaunchCost, NotedLaunch};

use self::communicator::Communicator;
use self::device::{CudaDevice, Wanted};
use self::heads::LayerHeads;
use self::memory::arena::{Arena, Lease};
use self::memory::upload::Upload;
use self::ops::paper::PaperAttention;
use self::ops::sampling::Results;
use self::step::graph::Recordings;
use self::step::queue::LaunchQueue;
use self::step::staging::Staging;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::kv::{KvDtype, KvLayout};
use crate::options::{AttentionKernels, Options};
use crate::parallel::Shard;
use crate::quantised::QuantType;
use crate::tensor::DType;

/// Converts a failure of the GPU or its driver to the engine's error.
fn gpu(error: launch::Error) -> Error {
    Error::Gpu(Box::new(error))
}

/// Maximum number of counters per launch. With a counter, a kernel's blocks determine which of them arrives last. That
/// block resets the counter to zero.
const COUNTERS: usize = 64 << 10;

/// A GPU, set up for one model.
pub struct CudaBackend {
    queue: LaunchQueue,
    arena: Arc<Arena>,
    dtype: DType,
    /// The kernels' name for `dtype`.
    element: ElementType,
    heads: LayerHeads,
    /// Whether layers keep a state.
    has_states: bool,
    /// The least new tokens of a sequence for which such layers are computed in chunks.
    chunked_states_from: u32,
    /// With `Some` the paper's kernels compute attention.
    paper: Option<PaperAttention>,
    vocab: usize,
    counters: Option<DeviceBuffer<u32>>,
    staging: Staging,
    results: Results,
    recordings: Recordings,
    /// Whether decode steps are recorded as CUDA graphs.
    records: bool,
    /// This worker's part of the model.
    shard: Shard,
    /// `None` if this worker has the whole model, or there is no device.
    communicator: Option<Communicator>,
    /// `None` once all weights are on the device.
    upload: RefCell<Option<Upload>>,
    weight_bytes: Cell<usize>,
    /// The quantised types of projections, without repetition: first those kept on the device, then those that were
    /// widened.
    quantised: RefCell<Vec<QuantType>>,
    widened: RefCell<Vec<QuantType>>,
}

impl CudaBackend {
    /// Opens a GPU of `driver`, or the emulator, for a model with 16-bit weights and activations.
    ///
    /// `config` is the model's configuration [for this worker](Shard::config). Several workers must be
    /// [connected](Self::connect) afterwards. The options used are the block size, the attention and matrix kernels,
    /// CUDA graphs, and dependent launches. `kv_dtype` is the type of keys and values: the activations' type or an
    /// 8-bit type. If `is_quantised` is set, kernels for quantised weights are loaded.
    ///
    /// # Errors
    /// [`Error::Device`] if the GPU does not exist or cannot be used. [`Error::Unsupported`] if there are no kernels
    /// for the model.
    pub fn new(
        driver: &'static Driver,
        ordinal: u32,
        config: &ModelConfig,
        shard: Shard,
        options: &Options,
        (dtype, kv_dtype): (DType, KvDtype),
        is_quantised: bool,
    ) -> Result<Self> {
        let shapes = shapes(config, shard, options.block_size, kv_dtype, options.attention)?;
        let element = element_type(dtype)?;
        let paper = PaperAttention::new(options.attention, config.max_positions)?;
        if paper.is_some() {
            mechanisms::check_paper(config)?;
        }
        let (has_experts, has_states) = (mechanisms::has_experts(config), mechanisms::has_states(config));
        let wanted = Wanted { element, heads: &shapes, is_quantised, has_experts, has_states };
        let device = CudaDevice::open(driver, ordinal, options, wanted)?;
        let heads = LayerHeads::new(&shapes, |one| {
            let (shape, kernel) = (one.shape(), device::decode_kernel(one, element));
            let together = device.module.occupancy(kernel, shape.threads[0], shape.shared as usize).map_err(gpu)?;
            Ok(device.context.limits().multiprocessors * together.max(1))
        })?;
        let counters = DeviceBuffer::zeroed(&device.stream, COUNTERS + 1).map_err(gpu)?.named("counters");
        let upload = Upload::new(&device.context).map_err(gpu)?;
        Ok(CudaBackend {
            counters: Some(counters),
            upload: RefCell::new(Some(upload)),
            chunked_states_from: options.chunked_states_from.unwrap_or(FROM_ROWS),
            paper,
            shard,
            // The paper's kernels cannot be recorded, because their launches depend on the longest sequence of a step.
            records: options.cuda_graphs && paper.is_none(),
            ..Self::with_queue(
                LaunchQueue::new(device, options.hopper_from, options.hopper_decode_from),
                config,
                heads,
                (dtype, element),
            )
        })
    }

    /// Creates a backend without a GPU, only for [rehearsals](crate::memory_plan::rehearse()). Decode steps are padded
    /// as for CUDA graphs. `config` is the model's configuration [for this worker](Shard::config). `attention_blocks`
    /// returns how many blocks of decode attention fit a multiprocessor.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there are no kernels for the model.
    pub fn without_device(
        gpu: GpuLimits,
        mut attention_blocks: impl FnMut(DecodeLaunch) -> u32,
        config: &ModelConfig,
        shard: Shard,
        block_size: usize,
        (dtype, kv_dtype): (DType, KvDtype),
    ) -> Result<Self> {
        let shapes = shapes(config, shard, block_size, kv_dtype, AttentionKernels::Quire)?;
        let heads = LayerHeads::new(&shapes, |one| Ok(gpu.multiprocessors * attention_blocks(one)))?;
        let (queue, types) = (LaunchQueue::without_device(gpu), (dtype, element_type(dtype)?));
        Ok(CudaBackend { records: true, shard, ..Self::with_queue(queue, config, heads, types) })
    }

    fn with_queue(
        queue: LaunchQueue,
        config: &ModelConfig,
        heads: LayerHeads,
        (dtype, element): (DType, ElementType),
    ) -> Self {
        CudaBackend {
            queue,
            arena: Arc::default(),
            dtype,
            element,
            heads,
            has_states: mechanisms::has_states(config),
            chunked_states_from: FROM_ROWS,
            paper: None,
            vocab: config.vocab_size,
            counters: None,
            staging: Staging::default(),
            results: Results::default(),
            recordings: Recordings::default(),
            records: false,
            shard: Shard::WHOLE,
            communicator: None,
            upload: RefCell::new(None),
            weight_bytes: Cell::new(0),
            quantised: RefCell::default(),
            widened: RefCell::default(),
        }
    }

    /// The GPU's name.
    pub fn name(&self) -> &str {
        self.queue.device().map_or("no GPU", |device| device.context.name())
    }

    /// Bytes of the weights copied to the device so far.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes.get()
    }

    /// The types of projections that are quantised on the device.
    pub fn quantised(&self) -> Vec<QuantType> {
        self.quantised.borrow().clone()
    }

    /// The types of projections that are quantised in their files but not on the device.
    pub fn widened(&self) -> Vec<QuantType> {
        self.widened.borrow().clone()
    }

    /// Number of recorded steps so far.
    pub fn num_recordings(&self) -> usize {
        self.recordings.len()
    }

    /// Runs `work` as a rehearsal: nothing is launched. Returns the launches that it would have made.
    ///
    /// # Errors
    /// An error that would have occurred before the launches.
    pub(crate) fn rehearse(&self, work: impl FnOnce()) -> Result<Vec<NotedLaunch>> {
        self.queue.rehearse(work)
    }

    /// Creates a cache without memory, for rehearsals.
    pub(crate) fn rehearsed_cache(&self, layout: &KvLayout) -> CudaKvCache {
        CudaKvCache::rehearsed(layout, if self.paper.is_some() { Arrays::Two } else { Arrays::One })
    }

    /// Returns the attention heads of a layer.
    fn layer_heads(&self, layer: usize) -> AttentionShape {
        self.heads.layer(layer)
    }

    /// Records an error of the current step.
    pub(crate) fn fail(&self, error: Error) {
        self.queue.fail(error);
    }

    /// Allocates memory for the activations of all rehearsed steps, and ends loading. Returns the bytes of the
    /// activations, and the free and total bytes of device memory.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is not enough, and [`Error::Device`] if there is no device.
    pub(crate) fn provide_activations(&self) -> Result<(usize, (usize, usize))> {
        let activations = self.arena.peak();
        let Some(device) = self.queue.device() else {
            return Err(Error::Device("there is no GPU whose memory could be planned".into()));
        };
        let memory: DeviceBuffer<u8> = self.allocate(activations, "the activations")?;
        // Padding rows are computed too, and first read whatever this memory contains. So it is cleared.
        device.stream.clear(&memory).map_err(gpu)?;
        self.arena.provide(memory.named("activations"));
        self.finish_loading()?;
        Ok((activations, device.context.memory().map_err(gpu)?))
    }

    /// The maximum number of bytes of activations in any step so far, including rehearsed ones.
    pub fn activation_bytes(&self) -> usize {
        self.arena.peak()
    }

    /// Allocates device memory.
    fn allocate(&self, bytes: usize, what: &str) -> Result<DeviceBuffer<u8>> {
        let Some(device) = self.queue.device() else {
            return Err(Error::Device("there is no GPU to allocate memory on".into()));
        };
        DeviceBuffer::uninit(&device.context, bytes).map_err(|error| {
            let left = device.context.memory().map_or(0, |(free, _)| free);
            Error::Memory(format!("{what} need {bytes} bytes, but {} has {left} left: {error}", device.context.name()))
        })
    }

    /// Leases memory from the arena.
    fn lease(&self, bytes: usize) -> Lease {
        if let Some(lease) = self.arena.lease(bytes) {
            return lease;
        }
        self.queue.fail(Error::Memory(format!(
            "a step needs more than the {} bytes planned for activations",
            self.arena.peak()
        )));
        // A lease without memory. It is never used, because nothing is launched after a failure.
        Arc::new(Arena::default()).lease(bytes).unwrap_or_else(|| unreachable!("an arena without memory has no limit"))
    }

    /// Allocates a matrix of activations.
    fn tensor(&self, rows: u32, cols: u32) -> CudaTensor {
        let lease = Arc::new(self.lease(2 * rows as usize * cols as usize));
        CudaTensor { lease, rows, cols, stride: cols, is_float: false }
    }

    /// Allocates an f32 matrix with rows aligned to 16 bytes.
    fn floats(&self, rows: u32, cols: u32) -> CudaTensor {
        let stride = cols.next_multiple_of(4);
        let lease = Arc::new(self.lease(4 * rows as usize * stride as usize));
        CudaTensor { lease, rows, cols, stride, is_float: true }
    }

    /// Returns the address of `count` counters, which are zero.
    fn counters(&self, count: u32) -> DevicePtrMut<u32> {
        if count as usize > COUNTERS {
            self.queue.fail(Error::Unsupported(format!("a launch needs {count} counters, but there are {COUNTERS}")));
        }
        DevicePtrMut::from_address(self.counters.as_ref().map_or(0, DeviceBuffer::address))
    }

    /// Returns the address of the word after the counters. A product's blocks use it to determine when all its rows are
    /// stored.
    fn arrivals(&self) -> DevicePtrMut<u32> {
        self.counters(COUNTERS as u32).offset(COUNTERS)
    }
}

/// Returns the heads of all layers.
///
/// # Errors
/// [`Error::Unsupported`] if a layer's heads, the type of keys and values, the hidden size or a mechanism of the model has
/// no kernels.
fn shapes(
    config: &ModelConfig,
    shard: Shard,
    block_size: usize,
    kv_dtype: KvDtype,
    kernels: AttentionKernels,
) -> Result<Vec<AttentionShape>> {
    mechanisms::check(config)?;
    NormShape::of(u32::try_from(config.hidden).unwrap_or(u32::MAX))
        .map_err(|error| Error::Unsupported(format!("the hidden size on the GPU: {error}")))?;
    mechanisms::layer_shapes(config, shard, block_size, kv_dtype, kernels)
}

/// Returns the kernels' name for a type.
///
/// # Errors
/// [`Error::Option`] for `f32`, which kernels do not compute in.
pub fn element_type(dtype: DType) -> Result<ElementType> {
    match dtype {
        DType::F16 => Ok(ElementType::F16),
        DType::Bf16 => Ok(ElementType::Bf16),
        DType::F32 => Err(Error::Option("the GPU computes in f16 and bf16, not f32".into())),
    }
}
