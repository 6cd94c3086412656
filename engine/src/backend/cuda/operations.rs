//! The backend's operations. Most queue a single launch.

use std::ops::Range;

use cuda_std::launch::{DevicePtr, KernelCall, LaunchShape};
use cuda_std::vector::Vector;
use kernels::embedding::{self, add_positions, embed, embed_part, gather_rows};
use kernels::floor::Floor;
use kernels::gemm::epilogue::Epilogue;
use kernels::norm::{self as norms, NormShape, layer_norm, rms_norm};
use kernels::vector::row_vectors;
use kernels::with_element;

use super::communicator::NormOfSum;
use super::mechanisms;
use super::memory::weights;
use super::ops::experts::CudaExperts;
use super::ops::latent::CudaLatent;
use super::ops::recurrent::CudaRecurrent;
use super::step::graph;
use super::step::inputs::Packing;
use super::step::queue::LaunchCost;
use super::{CudaBackend, CudaKvCache, CudaProjection, CudaQkvProjection, CudaTensor, CudaWeight, StepInputs};
use crate::backend::{
    Activation, Attention, Backend, Change, HostExpert, HostExperts, HostLinear, HostQkv, HostRecurrent, Latent, Norm,
    QkNormRope,
};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::kv::KvLayout;
use crate::parallel::Shard;
use crate::sampling::{SampleRow, Sampled};
use crate::tensor::HostTensor;

impl CudaBackend {
    /// Vectors per row of `cols` elements.
    pub(super) fn vectors(&self, cols: u32) -> u32 {
        row_vectors(cols).unwrap_or_else(|error| {
            self.queue.fail(Error::Unsupported(format!("on the GPU: {error}")));
            0
        })
    }

    pub(super) fn norm_shape(&self, cols: u32) -> Option<NormShape> {
        match NormShape::of(cols) {
            Ok(shape) => Some(shape),
            Err(error) => {
                self.queue.fail(Error::Unsupported(format!("a norm on the GPU: {error}")));
                None
            }
        }
    }

    /// Adds `y` to `x` if it is given, and returns the norm of each row of `x`, or of each part of a row if the norm's
    /// weight is shorter.
    fn launch_norm(&self, x: &CudaTensor, y: Option<&CudaTensor>, norm: &Norm<CudaWeight>) -> CudaTensor {
        let out = self.tensor(x.rows, x.cols);
        let width = norm.weight().map_or(x.cols, |weight| weight.cols);
        let Some(NormShape { vectors, threads }) = self.norm_shape(width) else { return out };
        debug_assert!(x.cols.is_multiple_of(width), "a row consists of whole parts");
        let rows = x.rows * (x.cols / width);
        let (x_ptr, out_ptr) = (x.ptr(), out.ptr());
        let y_ptr = y.map_or(DevicePtr::NULL, |y| y.ptr().cast_const());
        let (_, [weight, bias], eps) = norm.arguments();
        let call: KernelCall = match norm {
            Norm::Layer { .. } => {
                let args = layer_norm { x: x_ptr, y: y_ptr, weight, bias, out: out_ptr, eps, vectors };
                with_element!(self.element, T => args.instance::<T>())
            }
            Norm::Rms { .. } => {
                let args = rms_norm { x: x_ptr, y: y_ptr, weight, out: out_ptr, eps, vectors };
                with_element!(self.element, T => args.instance::<T>())
            }
        };
        let floor = || Floor { bytes: norms::floor_bytes(rows.into(), width.into(), y.is_some()), flops: 0 };
        // SAFETY: rows consist of whole vectors without gaps, and the shape was made for them.
        unsafe { self.queue.launch(LaunchShape::linear(rows, threads), call, floor) };
        out
    }

    /// Embeds tokens with a part of the vocabulary. Tokens outside `vocab` give zeros.
    fn embed_part(
        &self,
        table: &CudaWeight,
        vocab: Range<usize>,
        positions: Option<(&CudaWeight, usize)>,
        inputs: &StepInputs,
    ) -> CudaTensor {
        let (out, vectors) = (self.tensor(inputs.rows, table.cols), self.vectors(table.cols));
        let args = embed_part {
            table: table.ptr(),
            position_table: positions.map_or(DevicePtr::NULL, |(learned, _)| learned.ptr()),
            tokens: inputs.tokens().cast_const(),
            positions: inputs.positions().cast_const(),
            offset: positions.map_or(0, |(_, offset)| offset as u32),
            first: vocab.start as u32,
            count: vocab.len() as u32,
            out: out.ptr(),
            vectors,
        };
        let tables = 1 + u64::from(positions.is_some());
        let floor = || Floor { bytes: embedding::floor_bytes(inputs.rows.into(), vectors.into(), tables), flops: 0 };
        let call = with_element!(self.element, T => args.instance::<T>());
        // SAFETY: the table has the rows of `vocab`, and no sequence is longer than the model's positions.
        unsafe { self.queue.launch(embedding::shape(inputs.rows, vectors), call, floor) };
        out
    }

    fn gather(&self, x: DevicePtr<Vector>, rows: DevicePtr<u32>, count: u32, cols: u32) -> CudaTensor {
        let (out, vectors) = (self.tensor(count, cols), self.vectors(cols));
        let floor = || Floor { bytes: embedding::floor_bytes(count.into(), vectors.into(), 1), flops: 0 };
        let call = gather_rows { x, rows, out: out.ptr(), vectors };
        // SAFETY: the row numbers are tokens, which the engine has checked against the vocabulary, or rows of the step.
        unsafe { self.queue.launch(embedding::shape(count, vectors), call, floor) };
        out
    }
}

impl Backend for CudaBackend {
    type Tensor = CudaTensor;
    type Weight = CudaWeight;
    type KvCache = CudaKvCache;
    type QkvWeight = CudaQkvProjection;
    type GatedWeight = CudaProjection;
    type ExpertsWeight = CudaExperts;
    type LatentWeight = CudaLatent;
    type RecurrentWeight = CudaRecurrent;
    type Qkv = CudaTensor;
    type Adapter = ();
    type Inputs = StepInputs;

    fn weight(&self, tensor: HostTensor) -> Result<CudaWeight> {
        if tensor.quantised().is_some() {
            return self.load(&tensor.to_dtype(self.dtype));
        }
        self.load(&tensor)
    }

    fn projection_weight(&self, tensor: HostTensor) -> Result<CudaWeight> {
        self.load_projection(tensor)
    }

    fn norm_weight(&self, tensor: HostTensor) -> Result<CudaWeight> {
        self.load(&tensor.to_dtype(self.dtype))
    }

    fn needs_adjacent_pairs(&self, rotated: usize) -> bool {
        mechanisms::needs_adjacent_pairs(rotated)
    }

    fn qkv_weight(&self, parts: HostQkv) -> Result<CudaQkvProjection> {
        self.fuse_qkv(parts)
    }

    fn gated_weight(&self, parts: [HostLinear; 2]) -> Result<CudaProjection> {
        self.fuse(parts, weights::interleaved)
    }

    fn experts_weight(
        &self,
        settings: HostExperts,
        experts: &mut dyn Iterator<Item = Result<HostExpert>>,
    ) -> Result<CudaExperts> {
        self.load_experts(settings, experts)
    }

    fn latent_weight(&self, latent: Latent, queries: Vec<HostTensor>, values: Vec<HostTensor>) -> Result<CudaLatent> {
        self.load_latent(latent, queries, values)
    }

    fn recurrent_weight(&self, weights: HostRecurrent) -> Result<CudaRecurrent> {
        self.load_recurrent(weights)
    }

    fn kv_cache(&self, layout: KvLayout, num_blocks: usize, swap_blocks: usize) -> Result<CudaKvCache> {
        match self.queue.device() {
            Some(device) => {
                let memory =
                    self.allocate(num_blocks * layout.page_bytes(), "the blocks of the KV cache")?.named("KV cache");
                CudaKvCache::new(device, self.rehearsed_cache(&layout), (memory, num_blocks), swap_blocks)
            }
            None => Ok(self.rehearsed_cache(&layout)),
        }
    }

    fn upload(&self, batch: Batch, rows: &[SampleRow<'_>]) -> StepInputs {
        let row_tables = self.paper.map(|_| self.heads.block_size());
        // A draft is divided into parts that are computed together, but a state needs its tokens in order.
        let drafts = (self.paper.is_none() && !self.has_states).then(|| self.heads.drafts());
        let packing = Packing { vocab: self.vocab, pads: self.records, row_tables, drafts };
        let inputs =
            self.staging.upload(&self.queue, &self.recordings, |bytes| StepInputs::pack(batch, rows, packing, bytes));
        // Must precede the step's launches: other workers may wait for a launch, and allocation could wait for it too.
        self.reserve_results(rows.len(), inputs.top as usize);
        inputs
    }

    fn move_blocks(&self, cache: &mut CudaKvCache, inputs: &StepInputs) {
        cache.move_blocks(&self.queue, inputs);
    }

    fn compute(&self, inputs: &StepInputs, compute: impl FnOnce() -> Option<CudaTensor>) -> Option<CudaTensor> {
        CudaBackend::compute(self, inputs, compute)
    }

    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        if self.records { graph::sizes(most) } else { vec![most.min(1)] }
    }

    fn shard(&self) -> Shard {
        self.shard
    }

    fn finish(&self) -> Result<()> {
        self.queue.run(|device| device.stream.synchronize());
        self.queue.check()
    }

    fn all_reduce(&self, x: &mut CudaTensor, part: Option<CudaTensor>) {
        self.launch_all_reduce(x, part.as_ref(), None);
    }

    fn all_reduce_norm(&self, x: &mut CudaTensor, part: Option<CudaTensor>, norm: &Norm<CudaWeight>) -> CudaTensor {
        let out = self.tensor(x.rows, x.cols);
        let Some(shape) = self.norm_shape(x.cols) else { return out };
        self.launch_all_reduce(x, part.as_ref(), Some(NormOfSum { norm, shape, out: &out }));
        out
    }

    fn gather_logits(&self, part: CudaTensor) -> CudaTensor {
        if self.shard.is_whole() {
            return part;
        }
        let vocab = self.vocab as u32;
        let all = if self.shard.is_first() { self.floats(part.rows, vocab) } else { part.clone() };
        let [own, whole] = [part.cols, vocab].map(|cols| 4 * u64::from(part.rows) * u64::from(cols));
        let floor = Floor { bytes: whole, flops: 0 };
        let cost = LaunchCost { floor, peers: whole.saturating_sub(own), ..LaunchCost::default() };
        match &self.communicator {
            Some(communicator) => communicator.gather(&self.queue, &part, &all, vocab, cost),
            None => self.queue.note_exchange("gather of logits", cost),
        }
        all
    }

    fn embed_tokens(
        &self,
        table: &CudaWeight,
        vocab: Range<usize>,
        positions: Option<(&CudaWeight, usize)>,
        inputs: &StepInputs,
    ) -> CudaTensor {
        if !self.shard.is_whole() {
            return self.embed_part(table, vocab, positions, inputs);
        }
        let Some((learned, offset)) = positions else {
            return self.gather(table.ptr(), inputs.tokens().cast_const(), inputs.rows, table.cols);
        };
        let (out, vectors) = (self.tensor(inputs.rows, table.cols), self.vectors(table.cols));
        let args = embed {
            table: table.ptr(),
            position_table: learned.ptr(),
            tokens: inputs.tokens().cast_const(),
            positions: inputs.positions().cast_const(),
            offset: offset as u32,
            out: out.ptr(),
            vectors,
        };
        let floor = || Floor { bytes: embedding::floor_bytes(inputs.rows.into(), vectors.into(), 2), flops: 0 };
        let call = with_element!(self.element, T => args.instance::<T>());
        // SAFETY: the engine has checked the tokens against the vocabulary, and no sequence is longer than the model's
        // positions.
        unsafe { self.queue.launch(embedding::shape(inputs.rows, vectors), call, floor) };
        out
    }

    fn add_positions(&self, x: &mut CudaTensor, table: &CudaWeight, offset: usize, inputs: &StepInputs) {
        let vectors = self.vectors(x.cols);
        let args = add_positions {
            x: x.ptr(),
            table: table.ptr(),
            positions: inputs.positions().cast_const(),
            offset: offset as u32,
            vectors,
        };
        let floor = || Floor { bytes: embedding::floor_bytes(x.rows.into(), vectors.into(), 2), flops: 0 };
        let call = with_element!(self.element, T => args.instance::<T>());
        // SAFETY: no sequence is longer than the model's positions.
        unsafe { self.queue.launch(embedding::shape(x.rows, vectors), call, floor) };
    }

    fn linear(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaWeight>,
        act: Option<Activation>,
    ) -> CudaTensor {
        let out = self.tensor(x.rows, weights::padded_rows(weight.rows as usize) as u32);
        self.project(x, weight, bias, Epilogue::Half(act), &out);
        out
    }

    fn linear_add(&self, residual: &mut CudaTensor, x: &CudaTensor, weight: &CudaWeight, bias: Option<&CudaWeight>) {
        self.project(x, weight, bias, Epilogue::Add, residual);
    }

    fn linear_add_norm(
        &self,
        residual: &mut CudaTensor,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaWeight>,
        norm: &Norm<CudaWeight>,
    ) -> Option<CudaTensor> {
        self.project_and_norm(x, (weight, bias), residual, norm)
    }

    fn gated(&self, x: &CudaTensor, projection: &CudaProjection, act: Activation) -> CudaTensor {
        let out = self.tensor(x.rows, projection.weight.rows / 2);
        self.project(x, &projection.weight, projection.bias.as_ref(), Epilogue::Gated(act), &out);
        out
    }

    fn linear_f32(&self, x: &CudaTensor, weight: &CudaWeight, bias: Option<&CudaWeight>) -> CudaTensor {
        let out = self.floats(x.rows, weight.rows);
        self.project(x, weight, bias, Epilogue::Float, &out);
        out
    }

    fn experts(&self, x: &CudaTensor, logits: &CudaTensor, weight: &CudaExperts, inputs: &StepInputs) -> CudaTensor {
        self.apply_experts(x, logits, weight, inputs)
    }

    fn qkv(&self, x: &CudaTensor, projection: &CudaQkvProjection) -> CudaTensor {
        self.project_qkv(x, projection)
    }

    fn latent_qkv(&self, query: [&CudaTensor; 2], key: [&CudaTensor; 2], weight: &CudaLatent) -> CudaTensor {
        self.join_latent_qkv(query, key, weight)
    }

    fn latent_values(&self, attended: &CudaTensor, weight: &CudaLatent) -> CudaTensor {
        self.project_latent_values(attended, weight)
    }

    fn recurrent(
        &self,
        x: &CudaTensor,
        heads: Option<[&CudaTensor; 2]>,
        weight: &CudaRecurrent,
        (cache, layer): (&mut CudaKvCache, usize),
        inputs: &StepInputs,
    ) -> CudaTensor {
        self.apply_recurrent(x, heads, weight, (cache, layer), inputs)
    }

    fn change(&self, x: &mut CudaTensor, change: Change<'_, CudaTensor>) {
        self.change_elements(x, change);
    }

    fn add_norm(&self, x: &mut CudaTensor, y: CudaTensor, norm: &Norm<CudaWeight>) -> CudaTensor {
        debug_assert_eq!((x.rows, x.cols), (y.rows, y.cols));
        self.launch_norm(x, Some(&y), norm)
    }

    fn norm(&self, x: &CudaTensor, norm: &Norm<CudaWeight>) -> CudaTensor {
        self.launch_norm(x, None, norm)
    }

    fn norm_rope_and_write_kv(
        &self,
        qkv: &mut CudaTensor,
        heads: QkNormRope<'_, CudaWeight>,
        cache: &mut CudaKvCache,
        layer: usize,
        inputs: &StepInputs,
    ) {
        CudaBackend::norm_rope_and_write_kv(self, qkv, heads, cache, layer, inputs);
    }

    fn attention(
        &self,
        qkv: &CudaTensor,
        cache: &CudaKvCache,
        params: Attention<'_, CudaWeight>,
        inputs: &StepInputs,
    ) -> CudaTensor {
        CudaBackend::attention(self, qkv, cache, params, inputs)
    }

    fn logit_rows(&self, x: &CudaTensor, inputs: &StepInputs) -> CudaTensor {
        if inputs.bucket.is_some() {
            return x.clone();
        }
        self.gather(x.ptr().cast_const(), inputs.logit_rows().cast_const(), inputs.logits, x.cols)
    }

    fn hidden_rows(&self, x: &CudaTensor, inputs: &StepInputs) -> CudaTensor {
        self.gather(x.ptr().cast_const(), inputs.hidden_rows().cast_const(), inputs.hidden, x.cols)
    }

    fn download(&self, x: &CudaTensor) -> Result<Vec<f32>> {
        let shape = [x.rows as usize, x.cols as usize];
        let mut bytes = vec![0; 2 * shape[0] * shape[1]];
        self.queue.run(|device| x.lease.download(&device.stream, &mut bytes));
        self.queue.check()?;
        Ok(HostTensor::copied(self.dtype, shape.to_vec(), &bytes).elements().to_f32())
    }

    fn logits(&self, x: &CudaTensor, weight: &CudaWeight) -> CudaTensor {
        self.linear_f32(x, weight, None)
    }

    fn sample(&self, logits: &CudaTensor, inputs: &StepInputs, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        CudaBackend::sample(self, logits, inputs, rows)
    }
}
