//! The paper's attention kernels on a decode problem, with vLLM's layouts and the launches of one version.

use cuda_std::launch::DevicePtr;
use kernels::attention::AttentionShape;
use kernels::attention::paper::launch::{Version, partitioned, v1_call, v2_call};
use kernels::attention::paper::{paged_attention_v1, paged_attention_v2_reduce};
use kernels::with_element;
use launch::Result;

use crate::gpu::{Buffer, Gpu};
use crate::number::Type;
use crate::paged::PagedProblem;

/// Elements between the queries of two sequences. A fused projection has keys and values there.
const GAP: usize = 64;

/// A problem on a device, with the kernels of one version.
pub struct PlacedAttention {
    version: Version,
    shape: AttentionShape,
    ty: Type,
    /// Arguments of v1. v2 takes the same except for the results.
    args: paged_attention_v1,
    /// The results.
    pub output: Buffer<u16>,
    /// Intermediate results that v2 leaves for its reduction: sums of values, maxima, and sums of weights. They are NaN
    /// until v2 writes them.
    pub partials: [Buffer<f32>; 3],
}

/// Returns both versions, with room for sequences of `max_length` tokens.
///
/// # Panics
/// If the problem's shape has no kernels.
pub fn versions(problem: &PagedProblem, max_length: u32) -> [Version; 2] {
    let (shape, sequences, window) = (shape(problem), problem.spans.len() as u32, problem.shape.window);
    [Version::v1(shape, sequences, max_length, window), Version::v2(shape, sequences, max_length, window)]
}

/// Returns the problem's heads and blocks.
///
/// # Panics
/// If they have no kernels.
pub fn shape(problem: &PagedProblem) -> AttentionShape {
    let shape = problem.shape;
    AttentionShape::new(shape.heads, shape.kv_heads, shape.head_size, shape.block_size)
        .unwrap_or_else(|unsupported| panic!("{unsupported}"))
}

impl PlacedAttention {
    /// Uploads a decode problem to a device.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn upload(gpu: &mut Gpu, problem: &PagedProblem, version: Version) -> Result<PlacedAttention> {
        let s = problem.shape;
        let row = (s.heads * s.head_size) as usize;
        let gap = vec![s.ty.nan(); GAP];
        let query: Vec<u16> = problem.query.chunks(row).flat_map(|row| [row, &gap].concat()).collect();
        let (keys, values) = problem.separate();
        let (tables, table_stride) = problem.padded_tables();
        let output = gpu.alloc("output", problem.query.len())?;
        let args = paged_attention_v1 {
            output: output.mut_ptr(),
            query: gpu.upload("query", &query)?.ptr(),
            keys: gpu.upload("keys", &keys)?.ptr(),
            values: gpu.upload("values", &values)?.ptr(),
            tables: gpu.upload("block tables", &tables)?.ptr(),
            lengths: gpu.upload("lengths", &problem.contexts())?.ptr(),
            query_stride: (row + GAP) as u32,
            table_stride,
            kv_heads: s.kv_heads,
            window: s.window,
            scale: s.scale(),
            sinks: match &problem.sinks {
                Some(sinks) => gpu.upload("sinks", sinks)?.ptr(),
                None => DevicePtr::NULL,
            },
            softcap: problem.softcap.unwrap_or(0.0),
        };
        let partitions = if let Version::V2 { partitions, .. } = version { partitions } else { 1 };
        let rows = problem.spans.len() * (s.heads * partitions) as usize;
        let partials = [
            gpu.upload("sums of values", &vec![f32::NAN; rows * s.head_size as usize])?,
            gpu.upload("maxima", &vec![f32::NAN; rows])?,
            gpu.upload("sums of weights", &vec![f32::NAN; rows])?,
        ];
        Ok(PlacedAttention { version, shape: shape(problem), ty: s.ty, args, output, partials })
    }

    /// Launches the version's kernels.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn launch(&self, gpu: &mut Gpu) -> Result<()> {
        self.attend(gpu)?;
        self.reduce(gpu)
    }

    /// Launches v1, or v2 without its reduction.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn attend(&self, gpu: &mut Gpu) -> Result<()> {
        let (shape, call) = match self.version {
            Version::V1(shape) => (shape, v1_call(self.shape, self.ty.element(), self.args)),
            Version::V2 { attend, .. } => {
                let [partials, maxima, sums] = self.partials.map(Buffer::mut_ptr);
                let args = partitioned(self.args, partials, maxima, sums);
                (attend, v2_call(self.shape, self.ty.element(), args))
            }
        };
        // SAFETY: the arrays match the problem, its blocks are within the cache, and the version has room for its
        // sequences.
        unsafe { gpu.launch(shape, call) }
    }

    /// Launches v2's reduction. For v1, does nothing.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn reduce(&self, gpu: &mut Gpu) -> Result<()> {
        let Version::V2 { reduce, partitions, .. } = self.version else { return Ok(()) };
        let [partials, maxima, sums] = self.partials.map(Buffer::ptr);
        let paged_attention_v1 { output, lengths, window, sinks, .. } = self.args;
        let (head_size, block_size) = (self.shape.head_size(), self.shape.pages().block_size);
        let args = paged_attention_v2_reduce {
            output,
            partials,
            maxima,
            sums,
            lengths,
            partitions,
            head_size,
            block_size,
            window,
            sinks,
        };
        let call = with_element!(self.ty.element(), T => args.instance::<T>());
        // SAFETY: v2 has stored results for this number of partitions.
        unsafe { gpu.launch(reduce, call) }
    }
}
