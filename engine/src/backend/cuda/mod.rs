//! The GPU: every operation is a Rust kernel from `kernels`, launched in one stream through `launch`.
//!
//! | file or folder | |
//! | --- | --- |
//! | `device`, `ptx` | the GPU, found and loaded with kernels; their code, as it lies in the binary |
//! | `communicator` | what the GPUs of a divided model exchange |
//! | `memory` | activations in an arena, weights as kernels read them, KV blocks and their moves |
//! | `step` | a step's inputs, packed into one upload; its launches, made or only noted; decode steps as CUDA graphs |
//! | `operations`, `ops` | the backend's operations, each a launch; the larger ones: attention, projections, sampling |
//!
//! Activations are of the weights' 16-bit type, sums in f32. A step allocates no memory on the device: its tensors are
//! places in one `arena`.

mod communicator;
mod device;
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
use launch::{DeviceBuffer, Driver};

pub use communicator::{GpuGroup, check_workers};
use memory::cache::Arrays;
pub use memory::cache::CudaKvCache;
pub use memory::tensor::{CudaProjection, CudaTensor, CudaWeight};
pub use step::inputs::StepInputs;
pub(crate) use step::inputs::{BUCKETS, bucket};
pub use step::queue::{LaunchCost, NotedLaunch};

use self::communicator::Communicator;
use self::device::CudaDevice;
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
use crate::options::Options;
use crate::parallel::Shard;
use crate::quantised::QuantType;
use crate::tensor::DType;

/// A failure of the GPU or its driver as the engine's error.
fn gpu(error: launch::Error) -> Error {
    Error::Gpu(Box::new(error))
}

/// Counters that there are for a launch. With them the blocks of a kernel find out which of them is the last to arrive,
/// and that one sets them to zero again.
const COUNTERS: usize = 64 << 10;

/// A GPU as a device for one model.
pub struct CudaBackend {
    queue: LaunchQueue,
    arena: Arc<Arena>,
    dtype: DType,
    /// The same type as kernels know it.
    element: ElementType,
    heads: AttentionShape,
    decode: DecodeLaunch,
    /// Decode attention in steps with drafts.
    drafts: DecodeLaunch,
    /// With `Some` the paper's kernels attend.
    paper: Option<PaperAttention>,
    vocab: usize,
    counters: Option<DeviceBuffer<u32>>,
    staging: Staging,
    results: Results,
    recordings: Recordings,
    /// Whether decode steps are recorded.
    records: bool,
    /// The part of the model.
    shard: Shard,
    /// None with all of the model, and where there is no device.
    communicator: Option<Communicator>,
    /// None once all weights are on the device.
    upload: RefCell<Option<Upload>>,
    weight_bytes: Cell<usize>,
    /// The types of quantised projections, each once: of those that are so on the device, and of those that are not.
    quantised: RefCell<Vec<QuantType>>,
    widened: RefCell<Vec<QuantType>>,
}

impl CudaBackend {
    /// A GPU of `driver`, or the emulator, for a model whose weights and activations are of a 16-bit type. `config` is the
    /// model's [as this worker sees it](Shard::config); several workers are [connected](Self::connect) afterwards. Of the
    /// options it reads the block size, which kernels attend and multiply, whether decode steps are recorded as CUDA graphs, and whether
    /// launches may begin early.
    /// `kv_dtype` is that of keys and values: that of the activations, or of 8 bits. `is_quantised` says whether there are
    /// kernels to be loaded for quantised weights.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no such GPU or it cannot be used; [`Error::Unsupported`] if there are no kernels for
    /// the model.
    pub fn new(
        driver: &'static Driver,
        ordinal: u32,
        config: &ModelConfig,
        shard: Shard,
        options: &Options,
        (dtype, kv_dtype): (DType, KvDtype),
        is_quantised: bool,
    ) -> Result<Self> {
        let (heads, element) = (shape(config, options.block_size, kv_dtype)?, element_type(dtype)?);
        let paper = PaperAttention::new(options.attention, config.max_positions)?;
        let device = CudaDevice::open(driver, ordinal, options, element, heads, is_quantised)?;
        let slots = |one: DecodeLaunch| -> Result<u32> {
            let shape = one.shape();
            let together = device
                .module
                .occupancy(one.descriptor(element), shape.threads[0], shape.shared as usize)
                .map_err(gpu)?;
            Ok(device.context.limits().multiprocessors * together.max(1))
        };
        let slots = [slots(DecodeLaunch::new(heads, 1))?, slots(DecodeLaunch::with_drafts(heads, 1))?];
        let counters = DeviceBuffer::zeroed(&device.stream, COUNTERS + 1).map_err(gpu)?.named("counters");
        let upload = Upload::new(&device.context).map_err(gpu)?;
        Ok(CudaBackend {
            counters: Some(counters),
            upload: RefCell::new(Some(upload)),
            paper,
            shard,
            // Launches of the paper's kernels depend on the longest sequence of a step.
            records: options.cuda_graphs && paper.is_none(),
            ..Self::with_queue(
                LaunchQueue::new(device, options.hopper_from, options.hopper_decode_from),
                config,
                heads,
                (dtype, element),
                slots,
            )
        })
    }

    /// A GPU that is not there, to [rehearse](crate::fit::rehearse()) on. Decode steps are those that would be recorded as CUDA
    /// graphs. `config` is the model's [as this worker sees it](Shard::config). `attention_blocks` says how many blocks of decode attention a multiprocessor holds.
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
        let (heads, element) = (shape(config, block_size, kv_dtype)?, element_type(dtype)?);
        let slots = [DecodeLaunch::new(heads, 1), DecodeLaunch::with_drafts(heads, 1)]
            .map(|one| gpu.multiprocessors * attention_blocks(one));
        let queue = LaunchQueue::without_device(gpu);
        Ok(CudaBackend { records: true, shard, ..Self::with_queue(queue, config, heads, (dtype, element), slots) })
    }

    fn with_queue(
        queue: LaunchQueue,
        config: &ModelConfig,
        heads: AttentionShape,
        (dtype, element): (DType, ElementType),
        slots: [u32; 2],
    ) -> Self {
        CudaBackend {
            queue,
            arena: Arc::default(),
            dtype,
            element,
            heads,
            decode: DecodeLaunch::new(heads, slots[0]),
            drafts: DecodeLaunch::with_drafts(heads, slots[1]),
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

    /// Bytes of the weights that were taken to the device.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes.get()
    }

    /// The types of the projections that are quantised on the device.
    pub fn quantised(&self) -> Vec<QuantType> {
        self.quantised.borrow().clone()
    }

    /// The types of projections that are quantised in their files, and not on the device.
    pub fn widened(&self) -> Vec<QuantType> {
        self.widened.borrow().clone()
    }

    /// Steps that are recorded so far.
    pub fn num_recordings(&self) -> usize {
        self.recordings.len()
    }

    /// Runs `work` as a rehearsal, without the device, and returns the launches it would have made.
    ///
    /// # Errors
    /// What would have gone wrong before anything was launched.
    pub(crate) fn rehearse(&self, work: impl FnOnce()) -> Result<Vec<NotedLaunch>> {
        self.queue.rehearse(work)
    }

    /// A cache without memory, for rehearsals.
    pub(crate) fn rehearsed_cache(&self, layout: KvLayout) -> CudaKvCache {
        CudaKvCache::rehearsed(layout, if self.paper.is_some() { Arrays::Two } else { Arrays::One })
    }

    /// Notes that something went wrong in a step.
    pub(crate) fn fail(&self, error: Error) {
        self.queue.fail(error);
    }

    /// Allocates memory for the activations of all steps that were rehearsed, and ends loading. Returns the bytes of the
    /// activations, and the device's memory: the bytes that are free, and all.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is not enough, and [`Error::Device`] if there is no device.
    pub(crate) fn provide_activations(&self) -> Result<(usize, (usize, usize))> {
        let activations = self.arena.peak();
        let Some(device) = self.queue.device() else {
            return Err(Error::Device("there is no GPU whose memory could be shared out".into()));
        };
        let memory: DeviceBuffer<u8> = self.allocate(activations, "the activations")?;
        // Cleared, since rows of padding are computed, too, with what is in this memory at first.
        device.stream.clear(&memory).map_err(gpu)?;
        self.arena.provide(memory.named("activations"));
        self.finish_loading()?;
        Ok((activations, device.context.memory().map_err(gpu)?))
    }

    /// The most bytes of activations that a step has taken or was rehearsed to take.
    pub fn activation_bytes(&self) -> usize {
        self.arena.peak()
    }

    /// Memory of the device.
    fn allocate(&self, bytes: usize, what: &str) -> Result<DeviceBuffer<u8>> {
        let Some(device) = self.queue.device() else {
            return Err(Error::Device("there is no GPU to allocate memory on".into()));
        };
        DeviceBuffer::uninit(&device.context, bytes).map_err(|error| {
            let left = device.context.memory().map_or(0, |(free, _)| free);
            Error::Memory(format!("{what} need {bytes} bytes, but {} has {left} left: {error}", device.context.name()))
        })
    }

    /// A place in the arena.
    fn lease(&self, bytes: usize) -> Lease {
        if let Some(lease) = self.arena.lease(bytes) {
            return lease;
        }
        self.queue
            .fail(Error::Memory(format!("a step needs more than the {} bytes of all activations", self.arena.peak())));
        // A place without memory, which is never used: after a failure nothing is launched.
        Arc::new(Arena::default()).lease(bytes).unwrap_or_else(|| unreachable!("an arena without memory has no bounds"))
    }

    /// A matrix of activations.
    fn tensor(&self, rows: u32, cols: u32) -> CudaTensor {
        let lease = Arc::new(self.lease(2 * rows as usize * cols as usize));
        CudaTensor { lease, rows, cols, stride: cols }
    }

    /// A matrix in f32, its rows aligned to 16 bytes.
    fn floats(&self, rows: u32, cols: u32) -> CudaTensor {
        let stride = cols.next_multiple_of(4);
        let lease = Arc::new(self.lease(4 * rows as usize * stride as usize));
        CudaTensor { lease, rows, cols, stride }
    }

    /// The address of `count` counters that are zero.
    fn counters(&self, count: u32) -> DevicePtrMut<u32> {
        if count as usize > COUNTERS {
            self.queue.fail(Error::Unsupported(format!("a launch with {count} counters; {COUNTERS} at most")));
        }
        DevicePtrMut::from_address(self.counters.as_ref().map_or(0, DeviceBuffer::address))
    }

    /// The address of the word behind the counters, by which the blocks of a product find that all its rows are stored.
    fn arrivals(&self) -> DevicePtrMut<u32> {
        self.counters(COUNTERS as u32).offset(COUNTERS)
    }
}

/// The model's heads, if there are kernels for them and for such keys and values, and for its hidden size.
fn shape(config: &ModelConfig, block_size: usize, kv_dtype: KvDtype) -> Result<AttentionShape> {
    NormShape::of(u32::try_from(config.hidden).unwrap_or(u32::MAX))
        .map_err(|error| Error::Unsupported(format!("a hidden size on the GPU: {error}")))?;
    let [heads, kv_heads, size, block_size] =
        [config.heads, config.kv_heads, config.head_dim, block_size].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    AttentionShape::new(heads, kv_heads, size, block_size)
        .map(|shape| shape.with_format(kv_dtype.format()))
        .map_err(|error| Error::Unsupported(format!("on the GPU: {error}")))
}

/// The type of elements as kernels know it.
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
