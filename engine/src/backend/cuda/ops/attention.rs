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
use crate::backend::cuda::step::inputs::StepInputs;
use crate::backend::cuda::step::queue::LaunchCost;

impl CudaBackend {
    /// Computes attention for all rows: the first rows with the decode kernel, the others with the prefill kernel.
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
        let shape = self.heads;
        let out = self.tensor(qkv.rows, shape.heads() * shape.head_size());
        // A window longer than any context means no window.
        let window = params.window.map_or(0, |window| i32::try_from(window).map_or(0, i32::cast_unsigned));
        if inputs.decodes > 0 {
            self.attend_decodes(qkv, cache, params, window, inputs, &out);
        }
        if inputs.prefills > 0 {
            self.attend_prefills(qkv, cache, params, window, inputs, &out);
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
        let (shape, decode) = (self.heads, self.decode_launch(inputs));
        let plan = self.plan(window, inputs);
        let partials = self.lease(decode.partial_vectors() as usize * 16);
        let args = paged_attention {
            output: out.ptr(),
            query: qkv.ptr().cast_const(),
            cache: cache.layer(params.layer).cast_const(),
            tables: inputs.tables().cast_const(),
            table_starts: inputs.table_starts().cast_const(),
            query_starts: inputs.query_starts().cast_const(),
            plan,
            partials: DevicePtrMut::from_address(partials.address()),
            arrivals: self.counters(decode.arrivals()),
            sinks: DevicePtr::NULL,
            query_stride: qkv.stride,
            kv_heads: cache.pages().heads,
            group: shape.group(),
            block_size: cache.pages().block_size,
            rows: decode.rows(),
            window,
            scale: params.scale,
        };
        let cost = || cost(shape, inputs.decode_spans(), window);
        // SAFETY: the plan was made for this batch, and the block tables have an entry for each block of a sequence's
        // context. Launches of a stream run one after the other, so only one at a time uses the counters.
        unsafe { self.queue.launch(decode.shape(), decode.call(self.element, args), cost) };
    }

    /// Returns the decode attention launch for a step.
    fn decode_launch(&self, inputs: &StepInputs) -> DecodeLaunch {
        if inputs.has_drafts { self.drafts } else { self.decode }
    }

    /// Returns the plan for a window. It is computed once per step.
    fn plan(&self, window: u32, inputs: &StepInputs) -> DevicePtr<Vector> {
        if let Some((_, plan)) = inputs.plans.borrow().iter().find(|plan| plan.0 == window) {
            return DevicePtr::from_address(plan.address());
        }
        let decode = self.decode_launch(inputs);
        let slots = decode.arrivals();
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
            streams: decode.streams(),
            slots,
        };
        let bytes = u64::from(4 * inputs.decodes + 16 * plan_vectors(slots, inputs.decodes));
        let floor = || Floor { bytes, flops: 0 };
        // SAFETY: the plan has the required size, and a batch of the cache has less than 2^32 tiles.
        unsafe { self.queue.launch(LaunchShape::linear(1, PLAN_THREADS), call, floor) };
        inputs.plans.borrow_mut().push((window, lease));
        plan.cast_const()
    }

    fn attend_prefills(
        &self,
        qkv: &CudaTensor,
        cache: &CudaKvCache,
        params: Attention<'_, CudaWeight>,
        window: u32,
        inputs: &StepInputs,
        out: &CudaTensor,
    ) {
        let head_shape = self.heads;
        let first = inputs.decodes as usize;
        let args = paged_prefill {
            output: out.ptr(),
            query: qkv.ptr().cast_const(),
            cache: cache.layer(params.layer).cast_const(),
            tables: inputs.tables().cast_const(),
            table_starts: inputs.table_starts().offset(first).cast_const(),
            query_starts: inputs.query_starts().offset(first).cast_const(),
            contexts: inputs.contexts().offset(first).cast_const(),
            sinks: DevicePtr::NULL,
            sequences: inputs.prefills,
            query_stride: qkv.stride,
            kv_heads: cache.pages().heads,
            group: head_shape.group(),
            block_size: cache.pages().block_size,
            window,
            scale: params.scale,
        };
        let cost = || cost(head_shape, inputs.prefill_spans(), window);
        let (tokens, sequences) = (inputs.rows - inputs.decode_rows, inputs.prefills);
        let (launch, call) = if self.queue.limits().has_hopper() && hopper::shape::serves(head_shape) {
            let pages = hopper::shape::pages(head_shape, args.cache, cache.blocks());
            let call = hopper::shape::call(head_shape, self.element, hopper::shape::arguments(args, pages));
            (hopper::shape::launch_shape(head_shape, tokens, sequences), call)
        } else {
            let call = shape::call(head_shape, self.element, args);
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
    let rows: u64 = spans.iter().map(|&(new, _)| 2 * 2 * u64::from(new)).sum();
    let kv_cache = floor.bytes - rows * u64::from(heads.heads() * heads.head_size());
    LaunchCost { floor, kv_cache, ..LaunchCost::default() }
}
