//! Layers that keep a state: the convolution, the recurrence of heads, and the norm and gate of their results.

use cuda_std::launch::{DevicePtr, DevicePtrMut, LaunchShape};
use cuda_std::vector::Vector;
use kernels::floor::Floor;
use kernels::norm::{NormShape, rms_norm_gated};
use kernels::recurrent::chunked::shape::ChunkedShape;
use kernels::recurrent::plan::{ConvolutionOperands, HeadOperands, HeadShape, RecurrentShape, SequenceOperands};
use kernels::scaling::Factor;
use kernels::with_element;

use crate::backend::cuda::memory::cache::CudaKvCache;
use crate::backend::cuda::memory::tensor::{CudaTensor, CudaWeight};
use crate::backend::cuda::step::queue::LaunchCost;
use crate::backend::cuda::{CudaBackend, StepInputs};
use crate::backend::{HostRecurrent, Recurrent};
use crate::config::RecurrentKind;
use crate::error::{Error, Result};
use crate::tensor::HostTensor;

/// The weights of a layer that keeps a state, besides its projections.
pub struct CudaRecurrent {
    shape: RecurrentShape,
    /// `[kernel, channels]` in f32, like the other weights except the norm.
    kernel: CudaWeight,
    bias: Option<CudaWeight>,
    /// `None` for a layer that has only the convolution.
    heads: Option<CudaHeads>,
}

/// The weights of heads.
struct CudaHeads {
    shape: HeadShape,
    decay: CudaWeight,
    step_bias: CudaWeight,
    skip: Option<CudaWeight>,
    norm: CudaWeight,
    eps: f32,
}

/// Some consecutive sequences of a step.
#[derive(Clone, Copy)]
struct Part<'a> {
    first: u32,
    count: u32,
    /// New tokens and context of each sequence that is no padding.
    spans: &'a [(u32, u32)],
}

impl Part<'_> {
    fn rows(self) -> u64 {
        self.spans.iter().map(|(new, _)| u64::from(*new)).sum()
    }

    fn longest(self) -> u32 {
        self.spans.iter().map(|(new, _)| *new).max().unwrap_or(1)
    }

    /// States that must be read, and states that must be stored.
    fn states(self) -> [u64; 2] {
        [self.spans.iter().filter(|(new, context)| context > new).count(), self.spans.len()].map(|count| count as u64)
    }
}

impl CudaBackend {
    /// Copies the weights of a layer that keeps a state to the device.
    pub(in crate::backend::cuda) fn load_recurrent(&self, weights: HostRecurrent) -> Result<CudaRecurrent> {
        let HostRecurrent { layer, kernel, bias, decay, step_bias, skip, norm, eps } = weights;
        let shape = shape(layer);
        shape.check().map_err(|error| Error::Unsupported(format!("on the GPU: {error}")))?;
        let numbers = |numbers: Vec<f32>| self.load(&HostTensor::from_f32(vec![numbers.len()], numbers));
        let heads = match (shape.heads, norm) {
            (Some(heads), Some(norm)) => {
                NormShape::of(norm.shape().iter().product::<usize>() as u32)
                    .map_err(|error| Error::Unsupported(format!("a norm on the GPU: {error}")))?;
                Some(CudaHeads {
                    shape: heads,
                    decay: numbers(decay)?,
                    step_bias: numbers(step_bias)?,
                    skip: skip.map(numbers).transpose()?,
                    norm: self.load(&norm.to_dtype(self.dtype))?,
                    eps,
                })
            }
            _ => None,
        };
        let kernel = kernel.transposed();
        let kernel = HostTensor::from_f32(kernel.shape().to_vec(), kernel.elements().to_f32());
        Ok(CudaRecurrent { shape, kernel: self.load(&kernel)?, bias: bias.map(numbers).transpose()?, heads })
    }

    /// Computes the convolution and the recurrence of a layer, and normalises and gates the results.
    pub(in crate::backend::cuda) fn apply_recurrent(
        &self,
        x: &CudaTensor,
        heads: Option<[&CudaTensor; 2]>,
        weight: &CudaRecurrent,
        (cache, layer): (&CudaKvCache, usize),
        inputs: &StepInputs,
    ) -> CudaTensor {
        debug_assert!(x.cols == weight.shape.channels && x.stride == x.cols && !x.is_float);
        let (states, stride) = cache.states(layer);
        let sequences = SequenceOperands {
            states,
            stride,
            tables: inputs.tables().cast_const(),
            table_starts: inputs.table_starts(cache.group(layer)).cast_const(),
            query_starts: inputs.query_starts().cast_const(),
            contexts: inputs.contexts().cast_const(),
            block_size: cache.block_size(),
        };
        let mixed = self.convolve(x, weight, sequences, inputs);
        let (Some(own), Some([steps, gate])) = (&weight.heads, heads) else { return mixed };
        let results = self.recur(&mixed, steps, (own, weight.shape.kernel), sequences, inputs);
        drop(mixed);
        self.norm_gated(results, gate, own)
    }

    /// Convolves the rows. Decode steps have one chunk of rows for each sequence, and prompts have several.
    fn convolve(
        &self,
        x: &CudaTensor,
        weight: &CudaRecurrent,
        sequences: SequenceOperands,
        inputs: &StepInputs,
    ) -> CudaTensor {
        let shape = weight.shape;
        let out = self.tensor(x.rows, x.cols);
        let operands = ConvolutionOperands {
            x: x.ptr().cast_const(),
            kernel: weight.kernel.ptr(),
            bias: weight.bias.as_ref().map_or(DevicePtr::NULL, CudaWeight::ptr),
            out: out.ptr(),
        };
        let decodes = Part { first: 0, count: inputs.decodes, spans: inputs.decode_spans() };
        let prefills = Part { first: inputs.decodes, count: inputs.prefills, spans: inputs.prefill_spans() };
        for part in [decodes, prefills].into_iter().filter(|part| part.count > 0) {
            let [read, stored] = part.states();
            let floor = || shape.convolution_floor(part.rows(), read, stored);
            let call = shape.convolution(self.element, operands, from(sequences, part.first as usize));
            // SAFETY: rows have the layer's channels, and the pool has no block beyond the end of the cache. The block
            // tables have an entry for each block of a sequence, and sequences that share a state do not change it.
            unsafe { self.queue.launch(shape.convolution_shape(part.count, part.longest()), call, floor) };
        }
        out
    }

    /// Takes the rows through the states of heads: in chunks for prompts with many tokens in the step, and otherwise token by
    /// token.
    fn recur(
        &self,
        mixed: &CudaTensor,
        steps: &CudaTensor,
        (heads, kernel): (&CudaHeads, u32),
        sequences: SequenceOperands,
        inputs: &StepInputs,
    ) -> CudaTensor {
        let CudaHeads { shape, decay, step_bias, skip, .. } = heads;
        debug_assert!(steps.is_float && steps.cols >= shape.step_columns());
        let out = self.tensor(mixed.rows, shape.heads * shape.value_dim);
        let operands = HeadOperands {
            mixed: mixed.ptr().cast_const(),
            steps: steps.ptr().cast_const(),
            step_stride: steps.stride,
            decay: decay.ptr(),
            step_bias: step_bias.ptr(),
            skip: skip.as_ref().map_or(DevicePtr::NULL, CudaWeight::ptr),
            out: out.ptr(),
        };
        let chunked = ChunkedShape { heads: *shape, from: self.chunked_states_from.max(2) };
        let (long, short): (Vec<_>, Vec<_>) = inputs.spans.iter().partition(|(new, _)| *new >= chunked.from);
        if !short.is_empty() || long.is_empty() {
            let all = Part { first: 0, count: inputs.decodes + inputs.prefills, spans: &short };
            let [read, stored] = all.states();
            let cost = || LaunchCost::from(shape.floor(all.rows(), read, stored));
            let call = shape.call(self.element, kernel, operands, sequences, chunked.from);
            // SAFETY: as for the convolution. Steps have the columns of heads.
            unsafe { self.queue.launch(shape.shape(all.count), call, cost) };
        }
        if !long.is_empty() {
            let prompts = Part { first: inputs.decodes, count: inputs.prefills, spans: &long };
            self.recur_in_chunks(
                chunked,
                kernel,
                (operands, mixed.rows),
                from(sequences, prompts.first as usize),
                prompts,
            );
        }
        out
    }

    /// Takes the rows of prompts through the states of heads, in chunks. The step has `rows` rows.
    fn recur_in_chunks(
        &self,
        shape: ChunkedShape,
        kernel: u32,
        (operands, rows): (HeadOperands, u32),
        sequences: SequenceOperands,
        prompts: Part<'_>,
    ) {
        let lease = self.lease(shape.workspace_vectors(rows) * size_of::<Vector>());
        let workspace = DevicePtrMut::<Vector>::from_address(lease.address());
        let [read, stored] = prompts.states();
        let prepare = shape.prepare(self.element, operands, workspace, sequences);
        let cost = || LaunchCost::from(shape.prepare_floor(prompts.rows()));
        // SAFETY: as for the convolution. Steps have the columns of heads, and the workspace has room for all rows.
        unsafe { self.queue.launch(shape.prepare_shape(prompts.count, prompts.longest()), prepare, cost) };
        let pass = shape.pass(self.element, kernel, operands, workspace, sequences);
        let cost = || LaunchCost::from(shape.pass_floor(prompts.rows(), read, stored));
        // SAFETY: the workspace is filled, and the rest is as before.
        unsafe { self.queue.launch(shape.pass_shape(prompts.count), pass, cost) };
    }

    /// Normalises and gates the results of heads. In a delta net the norm of each head comes before the gate. In Mamba-2
    /// the gate comes first, and the norm is over all heads of a row, including the heads of other workers.
    fn norm_gated(&self, x: CudaTensor, gate: &CudaTensor, heads: &CudaHeads) -> CudaTensor {
        let CudaHeads { shape, norm, eps, .. } = heads;
        debug_assert!(gate.rows == x.rows && gate.cols == x.cols && gate.stride == x.stride);
        let width = if shape.is_delta { shape.value_dim } else { x.cols };
        if !shape.is_delta && !self.shard.is_whole() {
            self.multiply(&x, (gate, 0), Factor::Silu);
            let squares = self.squares_of_rows(&x, [width, 0]);
            self.norm_part(&x, (0, 0, width), (norm, *eps), Some(&squares));
            return x;
        }
        let Some(NormShape { vectors, threads }) = self.norm_shape(width) else { return x };
        let rows = x.rows * (x.cols / width);
        let args = rms_norm_gated {
            x: x.ptr().cast_const(),
            gate: gate.ptr().cast_const(),
            weight: norm.ptr(),
            out: x.ptr(),
            eps: *eps,
            vectors,
            gate_first: u32::from(!shape.is_delta),
        };
        let call = with_element!(self.element, T => args.instance::<T>());
        let floor = || Floor { bytes: 6 * u64::from(x.rows) * u64::from(x.cols), flops: 0 };
        // SAFETY: rows consist of whole norms without gaps, and the shape was made for them.
        unsafe { self.queue.launch(LaunchShape::linear(rows, threads), call, floor) };
        x
    }
}

/// Describes a layer for the kernels.
fn shape(layer: Recurrent) -> RecurrentShape {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let kernel = number(layer.kernel);
    if layer.kind == RecurrentKind::Convolution {
        return RecurrentShape { kernel, channels: number(layer.channels()), heads: None };
    }
    let heads = HeadShape {
        is_delta: layer.kind == RecurrentKind::DeltaNet,
        key_heads: number(layer.key_heads),
        heads: number(layer.heads),
        key_dim: number(layer.key_dim),
        value_dim: number(layer.value_dim),
        tiled: layer.tiled,
    };
    RecurrentShape::with_heads(kernel, heads)
}

/// Returns the sequences from number `first` on.
fn from(sequences: SequenceOperands, first: usize) -> SequenceOperands {
    let SequenceOperands { table_starts, query_starts, contexts, .. } = sequences;
    SequenceOperands {
        table_starts: table_starts.offset(first),
        query_starts: query_starts.offset(first),
        contexts: contexts.offset(first),
        ..sequences
    }
}
