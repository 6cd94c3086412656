//! Attention.

use cuda_std::launch::{DevicePtr, DevicePtrMut, LaunchShape};
use cuda_std::vector::Vector;
use kernels::attention::AttentionShape;
use kernels::attention::decode::{DecodeLaunch, PLAN_THREADS, paged_attention, plan_paged_attention, plan_vectors};
use kernels::attention::prefill::{hopper, paged_prefill, shape};
use kernels::floor::Floor;

use crate::backend::Attention;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::cache::CudaKvCache;
use crate::backend::cuda::memory::tensor::{CudaTensor, CudaWeight};
use crate::backend::cuda::step::inputs::{PlanKind, StepInputs};
use crate::backend::cuda::step::queue::LaunchCost;
use crate::error::Error;

impl CudaBackend {
    /// Computes attention for all rows: the first rows with the decode kernel, the others with the prefill kernel. One
    /// kernel serves all rows if keys contain the values.
    pub(in crate::backend::cuda) fn attention(
        &self,
        qkv: &CudaTensor,
        cache: &CudaKvCache,
        params: Attention<'_, CudaWeight>,
        inputs: &StepInputs,
    ) -> CudaTensor {
        if let Some(paper) = self.paper {
            return self.paper_attention(paper, qkv, cache, params, inputs);
        }
        let shape = self.layer_heads(params.layer);
        let out = self.tensor(qkv.rows, shape.heads() * shape.value_size());
        // A window longer than any context means no window.
        let window = params.window.map_or(0, |window| i32::try_from(window).map_or(0, i32::cast_unsigned));
        if shape.is_latent() {
            self.attend_prefills(qkv, cache, params, window, (inputs, 0), &out);
            return out;
        }
        if inputs.decodes > 0 {
            self.attend_decodes(qkv, cache, params, window, inputs, &out);
        }
        if inputs.prefills > 0 {
            self.attend_prefills(qkv, cache, params, window, (inputs, inputs.decodes), &out);
        }
        out
    }

    fn attend_decodes(
        &self,
        qkv: &CudaTensor,
        cache: &CudaKvCache,
        params: Attention<'_, CudaWeight>,
        window: u32,
        inputs: &StepInputs,
        out: &CudaTensor,
    ) {
        let decode = self.heads.decode(params.layer, inputs.has_drafts);
        let (shape, pages) = (decode.attention(), cache.pages(params.layer));
        let plan = self.plan(decode, window, inputs);
        let partials = self.lease(decode.partial_vectors() as usize * 16);
        let args = paged_attention {
            output: out.ptr(),
            query: qkv.ptr().cast_const(),
            cache: cache.layer(params.layer).cast_const(),
            tables: inputs.tables().cast_const(),
            table_starts: inputs.table_starts(cache.group(params.layer)).cast_const(),
            query_starts: inputs.query_starts().cast_const(),
            plan,
            partials: DevicePtrMut::from_address(partials.address()),
            arrivals: self.counters(decode.arrivals()),
            sinks: params.sinks.map_or(DevicePtr::NULL, CudaWeight::ptr),
            query_stride: qkv.stride,
            kv_heads: pages.heads,
            group: shape.group(),
            block_size: pages.block_size,
            padding: pages.padding,
            rows: decode.rows(),
            window,
            scale: params.scale,
        };
        let cost = || cost(shape, inputs.decode_spans(), window);
        let call = match self.softcap(shape, params.softcap) {
            Some(cap) => decode.capped_call(self.element, args, cap),
            None => decode.call(self.element, args),
        };
        // SAFETY: the plan was made for this batch, and the block tables have an entry for each block of a sequence's
        // context. Launches of a stream run one after the other, so only one at a time uses the counters.
        unsafe { self.queue.launch(decode.shape(), call, cost) };
    }

    /// Returns the softcap of a layer with these heads. Records an error if the backend was created for another model.
    fn softcap(&self, shape: AttentionShape, softcap: Option<f32>) -> Option<f32> {
        if softcap.is_some() != shape.is_capped() {
            self.queue.fail(Error::Unsupported("the GPU has no kernel for this softcap of attention".into()));
        }
        softcap.filter(|_| shape.is_capped())
    }

    /// Returns the plan for a window and a launch. Layers share it, so it is computed once per step.
    fn plan(&self, decode: DecodeLaunch, window: u32, inputs: &StepInputs) -> DevicePtr<Vector> {
        let kind = PlanKind { window, streams: decode.streams(), slots: decode.arrivals() };
        if let Some((_, plan)) = inputs.plans.borrow().iter().find(|plan| plan.0 == kind) {
            return DevicePtr::from_address(plan.address());
        }
        let PlanKind { streams, slots, .. } = kind;
        // Allocates as if all rows were sequences, so that a step's memory does not depend on how drafts are divided.
        let vectors = plan_vectors(slots, inputs.rows);
        let lease = self.lease(vectors as usize * 16);
        let plan = DevicePtrMut::<Vector>::from_address(lease.address());
        let call = plan_paged_attention {
            lengths: inputs.contexts().cast_const(),
            query_starts: inputs.query_starts().cast_const(),
            plan,
            sequences: inputs.decodes,
            window,
            streams,
            slots,
        };
        let bytes = u64::from(4 * inputs.decodes + 16 * plan_vectors(slots, inputs.decodes));
        let floor = || Floor { bytes, flops: 0 };
        // SAFETY: the plan has the required size, and a batch of the cache has less than 2^32 tiles.
        unsafe { self.queue.launch(LaunchShape::linear(1, PLAN_THREADS), call, floor) };
        inputs.plans.borrow_mut().push((kind, lease));
        plan.cast_const()
    }

    /// Computes attention of all sequences from the `first` on with the prefill kernel.
    fn attend_prefills(
        &self,
        qkv: &CudaTensor,
        cache: &CudaKvCache,
        params: Attention<'_, CudaWeight>,
        window: u32,
        (inputs, first): (&StepInputs, u32),
        out: &CudaTensor,
    ) {
        let (head_shape, pages) = (self.layer_heads(params.layer), cache.pages(params.layer));
        let sequences = inputs.decodes + inputs.prefills - first;
        let (tokens, spans) = match first {
            0 => (inputs.rows, inputs.spans.as_slice()),
            _ => (inputs.rows - inputs.decode_rows, inputs.prefill_spans()),
        };
        let cost = || cost(head_shape, spans, window);
        let first = first as usize;
        let args = paged_prefill {
            output: out.ptr(),
            query: qkv.ptr().cast_const(),
            cache: cache.layer(params.layer).cast_const(),
            tables: inputs.tables().cast_const(),
            table_starts: inputs.table_starts(cache.group(params.layer)).offset(first).cast_const(),
            query_starts: inputs.query_starts().offset(first).cast_const(),
            contexts: inputs.contexts().offset(first).cast_const(),
            sinks: params.sinks.map_or(DevicePtr::NULL, CudaWeight::ptr),
            sequences,
            query_stride: qkv.stride,
            kv_heads: pages.heads,
            group: head_shape.group(),
            block_size: pages.block_size,
            padding: pages.padding,
            window,
            scale: params.scale,
        };
        let softcap = self.softcap(head_shape, params.softcap);
        let (launch, call) = if self.queue.limits().has_hopper() && hopper::shape::serves(head_shape) {
            let tensor = hopper::shape::pages(head_shape, args.cache, cache.ids(params.layer));
            let call = hopper::shape::call(head_shape, self.element, hopper::shape::arguments(args, tensor));
            (hopper::shape::launch_shape(head_shape, tokens, sequences), call)
        } else {
            let call = match softcap {
                Some(cap) => shape::capped_call(head_shape, self.element, args, cap),
                None => shape::call(head_shape, self.element, args),
            };
            (shape::launch_shape(head_shape, tokens, sequences), call)
        };
        // SAFETY: query rows are numbered from the first of all rows. Otherwise as for decode.
        unsafe { self.queue.launch(launch, call, cost) };
    }
}

/// Returns the cost of attention for sequences given as pairs of new tokens and all tokens.
fn cost(heads: AttentionShape, spans: &[(u32, u32)], window: u32) -> LaunchCost {
    let each = spans.iter().map(|&(new, seen)| shape::floor(heads, new, seen, window));
    let floor = each.fold(Floor::default(), |a, b| Floor { bytes: a.bytes + b.bytes, flops: a.flops + b.flops });
    // Subtract the bytes of queries and results.
    let rows: u64 = spans.iter().map(|&(new, _)| 2 * u64::from(new)).sum();
    let kv_cache = floor.bytes - rows * u64::from(heads.heads() * (heads.head_size() + heads.value_size()));
    LaunchCost { floor, kv_cache, ..LaunchCost::default() }
}
