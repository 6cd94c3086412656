//! Attention with the paper's kernels: `--attention v1` and `v2`.
//!
//! Both kernels compute one query row per sequence. So each new token of a prompt is a row with its own block table.

use cuda_std::launch::{DevicePtr, DevicePtrMut};
use kernels::attention::AttentionShape;
use kernels::attention::paper::launch::{V1_MAX_LENGTH, Version, partitioned, v1_call, v2_call};
use kernels::attention::paper::{floor, paged_attention_v1, paged_attention_v2_reduce};
use kernels::floor::Floor;
use kernels::with_element;

use crate::backend::Attention;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::cache::CudaKvCache;
use crate::backend::cuda::memory::tensor::{CudaTensor, CudaWeight};
use crate::backend::cuda::step::inputs::StepInputs;
use crate::backend::cuda::step::queue::LaunchCost;
use crate::error::{Error, Result};
use crate::options::AttentionKernels;

/// Maximum bytes of partial results per launch of v2, or one row's if that is more.
const PARTIAL_BYTES: u64 = 64 << 20;

/// Maximum number of rows per launch. It is within the limit of a grid's second dimension.
const MAX_ROWS: u64 = 1 << 15;

/// Which of the paper's kernels computes attention, and the maximum sequence length.
#[derive(Clone, Copy, Debug)]
pub struct PaperAttention {
    is_v1: bool,
    /// Maximum length of a sequence in tokens.
    max_len: u32,
}

impl PaperAttention {
    /// Selects the paper's kernels. Returns `None` if `kernels` selects Quire's.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if v1's shared memory is too small for the logits of the longest sequence.
    pub fn new(kernels: AttentionKernels, max_len: usize) -> Result<Option<Self>> {
        let is_v1 = match kernels {
            AttentionKernels::Quire => return Ok(None),
            AttentionKernels::V1 => true,
            AttentionKernels::V2 => false,
        };
        if is_v1 && max_len > V1_MAX_LENGTH as usize {
            return Err(Error::Unsupported(format!(
                "attention v1 keeps a sequence's logits in shared memory, which has room for {V1_MAX_LENGTH} tokens, but \
                 the model's sequences have up to {max_len}; v2 supports them"
            )));
        }
        Ok(Some(PaperAttention { is_v1, max_len: max_len as u32 }))
    }

    /// Returns the launches for `rows` rows that see at most `longest` tokens.
    fn version(self, shape: AttentionShape, rows: u32, longest: u32, window: u32) -> Version {
        if self.is_v1 { Version::v1(shape, rows, longest, window) } else { Version::v2(shape, rows, longest, window) }
    }

    /// Number of partial results of a launch's rows, for the longest possible sequence.
    fn partials(self, shape: AttentionShape, rows: u32) -> usize {
        match self.version(shape, rows, self.max_len, 0) {
            Version::V1(_) => 0,
            Version::V2 { partitions, .. } => (rows * shape.heads() * partitions) as usize,
        }
    }

    /// Maximum number of rows per launch.
    fn max_rows(self, shape: AttentionShape) -> u32 {
        let row = self.partials(shape, 1) as u64 * partial_bytes(shape);
        PARTIAL_BYTES.checked_div(row).unwrap_or(MAX_ROWS).clamp(1, MAX_ROWS) as u32
    }
}

/// Bytes of a partial result: a head of values, the greatest logit and the sum of the weights, in f32.
fn partial_bytes(shape: AttentionShape) -> u64 {
    4 * (u64::from(shape.head_size()) + 2)
}

impl CudaBackend {
    /// Computes attention for all rows. Each row sees the tokens up to its own.
    pub(in crate::backend::cuda) fn paper_attention(
        &self,
        paper: PaperAttention,
        qkv: &CudaTensor,
        cache: &CudaKvCache,
        params: Attention<'_, CudaWeight>,
        inputs: &StepInputs,
    ) -> CudaTensor {
        let (shape, group) = (self.layer_heads(params.layer), cache.group(params.layer));
        let out = self.tensor(qkv.rows, shape.heads() * shape.head_size());
        let longest = inputs.spans.iter().map(|&(_, context)| context).max().unwrap_or(0);
        let lengths: Vec<u32> = inputs.spans.iter().flat_map(|&(new, context)| context - new + 1..=context).collect();
        let step = paper.max_rows(shape);
        for first in (0..qkv.rows).step_by(step as usize) {
            let at = first as usize;
            let args = paged_attention_v1 {
                output: out.ptr().offset(at * out.stride as usize),
                query: qkv.ptr().offset(at * qkv.stride as usize).cast_const(),
                keys: cache.keys(params.layer).cast_const(),
                values: cache.values(params.layer).cast_const(),
                tables: inputs.row_tables(group).offset(at * inputs.row_table_stride as usize).cast_const(),
                lengths: inputs.row_lengths().offset(at).cast_const(),
                query_stride: qkv.stride,
                table_stride: inputs.row_table_stride,
                kv_heads: shape.pages().heads,
                window: params.window.map_or(0, |window| u32::try_from(window).unwrap_or(0)),
                scale: params.scale,
                sinks: params.sinks.map_or(DevicePtr::NULL, CudaWeight::ptr),
                softcap: params.softcap.unwrap_or(0.0),
            };
            let rows = step.min(qkv.rows - first);
            self.attend_rows((paper, shape), args, longest, &lengths[at..at + rows as usize]);
        }
        out
    }

    /// Computes attention for rows that see `lengths` tokens each, at most `longest`.
    fn attend_rows(
        &self,
        (paper, shape): (PaperAttention, AttentionShape),
        args: paged_attention_v1,
        longest: u32,
        lengths: &[u32],
    ) {
        let rows = lengths.len() as u32;
        let cost = || {
            let floor = floor::floor(shape, lengths, args.window);
            LaunchCost { floor, kv_cache: floor.bytes, ..LaunchCost::default() }
        };
        let (attend, reduce, partitions) = match paper.version(shape, rows, longest, args.window) {
            Version::V1(attend) => {
                // SAFETY: each row has a table, a length and a query, and the longest sequence fits the shared memory.
                unsafe { self.queue.launch(attend, v1_call(shape, self.element, args), cost) };
                return;
            }
            Version::V2 { attend, reduce, partitions } => (attend, reduce, partitions),
        };
        let count = paper.partials(shape, rows);
        let leases = [shape.head_size() as usize, 1, 1].map(|numbers| self.lease(4 * count * numbers));
        let [partials, maxima, sums] = [0, 1, 2].map(|i| DevicePtrMut::<f32>::from_address(leases[i].address()));
        let paged_attention_v1 { output, lengths, window, sinks, .. } = args;
        let v2 = partitioned(args, partials, maxima, sums);
        let merge = paged_attention_v2_reduce {
            output,
            partials: partials.cast_const(),
            maxima: maxima.cast_const(),
            sums: sums.cast_const(),
            lengths,
            partitions,
            head_size: shape.head_size(),
            block_size: shape.pages().block_size,
            window,
            sinks,
        };
        let merge = with_element!(self.element, T => merge.instance::<T>());
        let merge_cost = || Floor { bytes: count as u64 * partial_bytes(shape), flops: 0 };
        // SAFETY: each row has a table, a length and a query, and the buffers fit the partial results of the longest
        // sequence.
        unsafe {
            self.queue.launch(attend, v2_call(shape, self.element, v2), cost);
            self.queue.launch(reduce, merge, merge_cost);
        }
    }
}
