//! The GPU: every operation is a Rust kernel from `kernels`, launched in one stream through `launch`.
//!
//! | file | |
//! | --- | --- |
//! | [`device`] | the GPU, found and loaded with kernels |
//! | [`queue`] | launches, made or only noted |
//! | [`arena`], [`tensor`] | memory of activations; activations and weights |
//! | [`upload`] | weights to the device |
//! | [`inputs`] | a step's inputs in one upload |
//! | [`project`], [`attend`], [`choose`] | GEMMs, attention, sampling |
//! | [`cache`] | KV blocks, and their moves |
//! | [`replay`] | decode steps as CUDA graphs |
//! | [`fit`] | the profiling run |
//! | [`ptx`] | the kernels' code, as it lies in the binary |
//!
//! Activations are of the weights' 16-bit type, sums in f32. A step allocates no memory on the device: its tensors are
//! places in one [`arena`].

mod arena;
mod attend;
mod cache;
mod choose;
mod device;
mod fit;
mod inputs;
mod project;
pub mod ptx;
mod queue;
mod replay;
mod staging;
mod tensor;
#[cfg(test)]
mod tests;
mod upload;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use cuda_std::launch::{Entry, Family};
use kernels::attention::{Shape, decode};
use kernels::embedding::{self, add_positions, embed, gather_rows};
use kernels::floor::Floor;
use kernels::gemm::epilogue::{Epilogue, GATED_ROWS};
use kernels::gemm::plan::Limits;
use kernels::layout::Vector;
use kernels::norm::{self, layer_norm, rms_norm};
use kernels::vector::row_vectors;
use launch::{DeviceBuffer, Driver};

pub use cache::KvCache;
pub use fit::{MemoryPlan, Rehearsal, StepLimits};
pub use inputs::Inputs;
pub use queue::Launch;
pub use tensor::{Projection, Tensor, Weight};

use self::arena::{Arena, Lease};
use self::choose::Results;
use self::device::Device;
use self::project::activation;
use self::queue::Queue;
use self::replay::Recordings;
use self::staging::Staging;
use self::tensor::pointer;
use self::upload::Upload;
use super::{Activation, Attention, Backend, Batch, Heads, HostLinear, KvLayout};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::sampling::{SampleRow, Sampled};
use crate::tensor::{DType, HostTensor};

/// Counters that kernels of one launch use, which each leaves at zero.
const COUNTERS: usize = 64 << 10;

/// A GPU as a device for one model.
pub struct CudaBackend {
    queue: Queue,
    arena: Arc<Arena>,
    dtype: DType,
    /// The kernels' name for the type.
    element: &'static str,
    heads: Shape,
    decode: decode::Launch,
    vocab: usize,
    counters: Option<DeviceBuffer<u32>>,
    staging: Staging,
    results: Results,
    recordings: Recordings,
    /// Whether decode steps are recorded.
    records: bool,
    /// None once all weights are there.
    upload: RefCell<Option<Upload>>,
    weight_bytes: Cell<usize>,
}

impl CudaBackend {
    /// A GPU of `driver`, or the emulator, for a model whose weights and activations are of a 16-bit type. `records` says
    /// whether decode steps are recorded as CUDA graphs.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no such GPU or it cannot be used; [`Error::Unsupported`] if there are no kernels for
    /// the model.
    pub fn new(
        driver: &'static Driver,
        ordinal: u32,
        config: &ModelConfig,
        block_size: usize,
        dtype: DType,
        records: bool,
    ) -> Result<Self> {
        let (heads, element) = (shape(config, block_size)?, element(dtype)?);
        let device = Device::open(driver, ordinal, element, heads)?;
        let entry = decode::Launch::new(heads, 1).entry(element);
        let entry = entry.ok_or_else(|| Error::Unsupported("there is no attention kernel for its heads".into()))?;
        let one = decode::Launch::new(heads, 1);
        let together = device.module.occupancy(entry, one.threads(), one.shared_bytes() as usize)?;
        let slots = device.context.limits().multiprocessors * together.max(1);
        let counters = DeviceBuffer::zeroed(&device.stream, COUNTERS)?.named("counters");
        let upload = Upload::new(&device.context)?;
        Ok(CudaBackend {
            counters: Some(counters),
            upload: RefCell::new(Some(upload)),
            records,
            ..Self::with_queue(Queue::new(device), config, heads, (dtype, element), slots)
        })
    }

    /// A GPU that is not there, to [rehearse](Self::rehearse) on. `attention_blocks` is how many blocks of decode attention
    /// a multiprocessor holds.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there are no kernels for the model.
    pub fn without_device(
        gpu: Limits,
        attention_blocks: u32,
        config: &ModelConfig,
        block_size: usize,
        dtype: DType,
    ) -> Result<Self> {
        let (heads, element) = (shape(config, block_size)?, element(dtype)?);
        let slots = gpu.multiprocessors * attention_blocks;
        Ok(Self::with_queue(Queue::without_device(gpu), config, heads, (dtype, element), slots))
    }

    fn with_queue(
        queue: Queue,
        config: &ModelConfig,
        heads: Shape,
        (dtype, element): (DType, &'static str),
        slots: u32,
    ) -> Self {
        CudaBackend {
            queue,
            arena: Arc::default(),
            dtype,
            element,
            heads,
            decode: decode::Launch::new(heads, slots),
            vocab: config.vocab_size,
            counters: None,
            staging: Staging::default(),
            results: Results::default(),
            recordings: Recordings::default(),
            records: false,
            upload: RefCell::new(None),
            weight_bytes: Cell::new(0),
        }
    }

    /// The GPU's name.
    pub fn name(&self) -> &str {
        self.queue.device().map_or("no GPU", |device| device.context.name())
    }

    /// Steps that are recorded so far.
    pub fn num_recordings(&self) -> usize {
        self.recordings.len()
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

    /// Waits until all weights are on the device.
    fn finish_loading(&self) -> Result<()> {
        self.upload.take();
        match self.queue.device() {
            Some(device) => Ok(device.stream.synchronize()?),
            None => Ok(()),
        }
    }

    /// Takes rows to the device: `parts` one after the other.
    fn load(&self, parts: &[&[u8]], rows: usize, cols: usize) -> Result<Weight> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let memory = match (self.queue.device(), &mut *self.upload.borrow_mut()) {
            (Some(device), Some(upload)) => {
                let memory = self.allocate(bytes, "the weights")?.named("weight");
                upload.copy(&device.stream, parts, &memory)?;
                Some(Arc::new(memory))
            }
            _ => None,
        };
        self.weight_bytes.set(self.weight_bytes.get() + bytes);
        Ok(Weight { memory, rows: rows as u32, cols: cols as u32 })
    }

    /// Takes several projections of the same input to the device as one, whose rows are `parts` of the projections' rows,
    /// one after the other.
    fn fuse(&self, projections: &[HostLinear], parts: impl Fn(&[&HostTensor]) -> Vec<Part>) -> Result<Projection> {
        let weights: Vec<&HostTensor> = projections.iter().map(|p| &p.weight).collect();
        let biases: Vec<&HostTensor> = projections.iter().filter_map(|p| p.bias.as_ref()).collect();
        if !biases.is_empty() && biases.len() < weights.len() {
            return Err(Error::Unsupported("a bias for some of several projections that are computed as one".into()));
        }
        let parts = parts(&weights);
        let join = |tensors: &[&HostTensor], cols: usize| -> Result<Weight> {
            let bytes: Vec<&[u8]> = parts.iter().map(|part| part.of(tensors)).collect();
            self.expect_dtype(tensors)?;
            self.load(&bytes, parts.iter().map(|part| part.rows.len()).sum(), cols)
        };
        let weight = join(&weights, weights[0].shape()[1])?;
        let bias = if biases.is_empty() { None } else { Some(join(&biases, 1)?) };
        Ok(Projection { weight, bias })
    }

    fn expect_dtype(&self, tensors: &[&HostTensor]) -> Result<()> {
        match tensors.iter().find(|tensor| tensor.dtype() != self.dtype) {
            Some(tensor) => {
                Err(Error::Unsupported(format!("a weight in {} among others in {}", tensor.dtype(), self.dtype)))
            }
            None => Ok(()),
        }
    }

    /// A place in the arena.
    fn lease(&self, bytes: usize) -> Lease {
        if let Some(lease) = self.arena.lease(bytes) {
            return lease;
        }
        self.queue
            .fail(Error::Memory(format!("a step needs more than the {} bytes of all activations", self.arena.peak())));
        // One that leads nowhere: after a failure nothing is launched.
        Arc::new(Arena::default()).lease(bytes).unwrap_or_else(|| unreachable!("an arena without memory has no bounds"))
    }

    /// A matrix of activations.
    fn tensor(&self, rows: u32, cols: u32) -> Tensor {
        let lease = Arc::new(self.lease(2 * rows as usize * cols as usize));
        Tensor { lease, rows, cols, stride: cols }
    }

    /// A matrix in f32, its rows aligned to 16 bytes.
    fn floats(&self, rows: u32, cols: u32) -> Tensor {
        let stride = cols.next_multiple_of(4);
        let lease = Arc::new(self.lease(4 * rows as usize * stride as usize));
        Tensor { lease, rows, cols, stride }
    }

    /// The address of `count` counters that are zero.
    fn counters(&self, count: u32) -> *mut u32 {
        if count as usize > COUNTERS {
            self.queue.fail(Error::Unsupported(format!("a launch with {count} counters; {COUNTERS} at most")));
        }
        pointer(self.counters.as_ref().map_or(0, DeviceBuffer::address))
    }

    /// Vectors in rows of so many elements.
    fn vectors(&self, cols: u32) -> u32 {
        row_vectors(cols).unwrap_or_else(|error| {
            self.queue.fail(Error::Unsupported(format!("on the GPU: {error}")));
            0
        })
    }

    fn norm_shape(&self, cols: u32) -> Option<norm::Shape> {
        match norm::Shape::of(cols) {
            Ok(shape) => Some(shape),
            Err(error) => {
                self.queue.fail(Error::Unsupported(format!("a norm on the GPU: {error}")));
                None
            }
        }
    }

    fn gather(&self, x: *const Vector, rows: *const u32, count: u32, cols: u32) -> Tensor {
        let (out, vectors) = (self.tensor(count, cols), self.vectors(cols));
        let floor = || Floor { bytes: embedding::floor_bytes(count.into(), vectors.into(), 1), flops: 0 };
        let launch = (embedding::grid(count, vectors), embedding::THREADS, 0);
        // SAFETY: rows are tokens of the vocabulary, or rows of the step.
        unsafe { self.queue.launch(Some(Entry::of::<gather_rows>()), launch, (x, rows, out.ptr(), vectors), floor) };
        out
    }
}

/// Rows of one of several projections.
struct Part {
    projection: usize,
    rows: std::ops::Range<usize>,
}

impl Part {
    /// The bytes of these rows; of a vector, each element is a row.
    fn of<'a>(&self, tensors: &[&'a HostTensor]) -> &'a [u8] {
        let tensor = tensors[self.projection];
        let row = tensor.dtype().size() * tensor.shape()[1..].iter().product::<usize>();
        &tensor.bytes()[self.rows.start * row..self.rows.end * row]
    }
}

/// The model's heads, if there are kernels for them.
fn shape(config: &ModelConfig, block_size: usize) -> Result<Shape> {
    let [heads, kv_heads, size, block_size] =
        [config.heads, config.kv_heads, config.head_dim, block_size].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    Shape::new(heads, kv_heads, size, block_size).map_err(|error| Error::Unsupported(format!("on the GPU: {error}")))
}

/// The kernels' name for a type.
fn element(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F16 => Ok("f16"),
        DType::Bf16 => Ok("bf16"),
        DType::F32 => Err(Error::Option("the GPU computes in f16 and bf16, not f32".into())),
    }
}

impl Backend for CudaBackend {
    type Tensor = Tensor;
    type Weight = Weight;
    type KvCache = KvCache;
    type QkvWeight = Projection;
    type GatedWeight = Projection;
    type Qkv = Tensor;
    type Inputs = Inputs;

    fn weight(&self, tensor: HostTensor) -> Result<Weight> {
        let (rows, cols) = match *tensor.shape() {
            [rows, cols] => (rows, cols),
            [cols] => (1, cols),
            ref shape => return Err(Error::Unsupported(format!("a weight of {} dimensions", shape.len()))),
        };
        self.load(&[tensor.bytes()], rows, cols)
    }

    fn qkv_weight(&self, parts: [HostLinear; 3]) -> Result<Projection> {
        self.fuse(&parts, |weights| {
            let all = |(projection, weight): (usize, &&HostTensor)| Part { projection, rows: 0..weight.shape()[0] };
            weights.iter().enumerate().map(all).collect()
        })
    }

    fn gated_weight(&self, parts: [HostLinear; 2]) -> Result<Projection> {
        self.fuse(&parts, |weights| {
            // As `kernels::gemm::epilogue::gated_row` has it.
            let (rows, step) = (weights[0].shape()[0], GATED_ROWS as usize);
            let both =
                |first: usize| [0, 1].map(|projection| Part { projection, rows: first..(first + step).min(rows) });
            (0..rows).step_by(step).flat_map(both).collect()
        })
    }

    fn kv_cache(&self, layout: KvLayout, num_blocks: usize, swap_blocks: usize) -> Result<KvCache> {
        match self.queue.device() {
            Some(device) => {
                let memory =
                    self.allocate(num_blocks * layout.block_bytes(), "the blocks of the KV cache")?.named("KV cache");
                KvCache::new(device, layout, (memory, num_blocks), swap_blocks)
            }
            None => Ok(KvCache::rehearsed(layout)),
        }
    }

    fn upload(&self, batch: Batch, rows: &[SampleRow<'_>]) -> Inputs {
        self.staging
            .upload(&self.queue, &self.recordings, |bytes| Inputs::pack(batch, rows, self.vocab, self.records, bytes))
    }

    fn move_blocks(&self, cache: &mut KvCache, inputs: &Inputs) {
        cache.move_blocks(&self.queue, inputs);
    }

    fn compute(&self, inputs: &Inputs, compute: impl FnOnce() -> Option<Tensor>) -> Option<Tensor> {
        self.replay(inputs, compute)
    }

    fn embed_tokens(&self, table: &Weight, positions: Option<(&Weight, usize)>, inputs: &Inputs) -> Tensor {
        let Some((learned, offset)) = positions else {
            return self.gather(table.ptr(), inputs.tokens().cast_const(), inputs.rows, table.cols);
        };
        let (out, vectors) = (self.tensor(inputs.rows, table.cols), self.vectors(table.cols));
        let (tokens, positions) = (inputs.tokens().cast_const(), inputs.positions().cast_const());
        let args = (table.ptr(), learned.ptr(), tokens, positions, offset as u32, out.ptr(), vectors);
        let floor = || Floor { bytes: embedding::floor_bytes(inputs.rows.into(), vectors.into(), 2), flops: 0 };
        let launch = (embedding::grid(inputs.rows, vectors), embedding::THREADS, 0);
        // SAFETY: tokens are of the vocabulary, and positions of the model's.
        unsafe { self.queue.launch(embed::instance(&[self.element]), launch, args, floor) };
        out
    }

    fn add_positions(&self, x: &mut Tensor, table: &Weight, offset: usize, inputs: &Inputs) {
        let vectors = self.vectors(x.cols);
        let args = (x.ptr(), table.ptr(), inputs.positions().cast_const(), offset as u32, vectors);
        let floor = || Floor { bytes: embedding::floor_bytes(x.rows.into(), vectors.into(), 2), flops: 0 };
        let launch = (embedding::grid(x.rows, vectors), embedding::THREADS, 0);
        // SAFETY: positions are of the model's.
        unsafe { self.queue.launch(add_positions::instance(&[self.element]), launch, args, floor) };
    }

    fn linear(&self, x: &Tensor, weight: &Weight, bias: Option<&Weight>, act: Option<Activation>) -> Tensor {
        let out = self.tensor(x.rows, weight.rows);
        self.project(x, weight, bias, Epilogue::Half(act.map(activation)), &out);
        out
    }

    fn linear_add(&self, residual: &mut Tensor, x: &Tensor, weight: &Weight, bias: Option<&Weight>) {
        self.project(x, weight, bias, Epilogue::Add, residual);
    }

    fn gated(&self, x: &Tensor, projection: &Projection, act: Activation) -> Tensor {
        let out = self.tensor(x.rows, projection.weight.rows / 2);
        self.project(x, &projection.weight, projection.bias.as_ref(), Epilogue::Gated(activation(act)), &out);
        out
    }

    fn qkv(&self, x: &Tensor, projection: &Projection) -> Tensor {
        self.linear(x, &projection.weight, projection.bias.as_ref(), None)
    }

    fn layer_norm(&self, x: &Tensor, weight: Option<&Weight>, bias: Option<&Weight>, eps: f32) -> Tensor {
        let out = self.tensor(x.rows, x.cols);
        let Some(shape) = self.norm_shape(x.cols) else { return out };
        let pointer = |weight: Option<&Weight>| weight.map_or(std::ptr::null(), Weight::ptr::<Vector>);
        let none = std::ptr::null();
        let args = (x.ptr(), none, pointer(weight), pointer(bias), out.ptr(), eps, shape.vectors);
        let floor = || Floor { bytes: norm::floor_bytes(x.rows.into(), x.cols.into(), false), flops: 0 };
        let launch = ((x.rows, 1, 1), shape.threads, 0);
        // SAFETY: rows are of whole vectors, which the shape was made for.
        unsafe { self.queue.launch(layer_norm::instance(&[self.element]), launch, args, floor) };
        out
    }

    fn rms_norm(&self, x: &Tensor, weight: &Weight, eps: f32) -> Tensor {
        let out = self.tensor(x.rows, x.cols);
        let Some(shape) = self.norm_shape(x.cols) else { return out };
        let args = (x.ptr(), std::ptr::null(), weight.ptr(), out.ptr(), eps, shape.vectors);
        let floor = || Floor { bytes: norm::floor_bytes(x.rows.into(), x.cols.into(), false), flops: 0 };
        let launch = ((x.rows, 1, 1), shape.threads, 0);
        // SAFETY: as above.
        unsafe { self.queue.launch(rms_norm::instance(&[self.element]), launch, args, floor) };
        out
    }

    fn write_kv(&self, qkv: &mut Tensor, heads: Heads<'_, Weight>, cache: &mut KvCache, layer: usize, inputs: &Inputs) {
        self.write(qkv, heads, cache, layer, inputs);
    }

    fn attention(&self, qkv: &Tensor, cache: &KvCache, params: Attention, inputs: &Inputs) -> Tensor {
        self.attend(qkv, cache, params, inputs)
    }

    fn logit_rows(&self, x: &Tensor, inputs: &Inputs) -> Tensor {
        if inputs.bucket.is_some() {
            return x.clone();
        }
        self.gather(x.ptr(), inputs.logit_rows().cast_const(), inputs.logits, x.cols)
    }

    fn logits(&self, x: &Tensor, weight: &Weight) -> Tensor {
        let out = self.floats(x.rows, weight.rows);
        self.project(x, weight, None, Epilogue::Float, &out);
        out
    }

    fn sample(&self, logits: &Tensor, inputs: &Inputs, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        self.choose(logits, inputs, rows)
    }
}
