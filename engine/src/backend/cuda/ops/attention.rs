//! Attention, and writing keys and values to the cache.

use cuda_std::launch::{DevicePtr, DevicePtrMut, LaunchShape};
use cuda_std::vector::Vector;
use kernels::attention::AttentionShape;
use kernels::attention::decode::{DecodeLaunch, PLAN_THREADS, paged_attention, plan_paged_attention, plan_vectors};
use kernels::attention::paper::launch::apart;
use kernels::attention::prefill::{hopper, paged_prefill, shape};
use kernels::cache::{reshape_and_cache, write_shape};
use kernels::floor::Floor;
use kernels::layout::VECTOR;
use kernels::rope::{self, rope_and_cache};
use kernels::with_element;

use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::cache::CudaKvCache;
use crate::backend::cuda::memory::tensor::{CudaTensor, CudaWeight};
use crate::backend::cuda::step::inputs::StepInputs;
use crate::backend::cuda::step::queue::LaunchCost;
use crate::backend::{Attention, QkNormRope};

impl CudaBackend {
    /// Processes rows `[query | key | value]`: normalises and rotates heads in place, and writes keys and values to the
    /// cache in the layout that attention reads.
    pub(in crate::backend::cuda) fn norm_rope_and_write_kv(
        &self,
        qkv: &CudaTensor,
        heads: QkNormRope<'_, CudaWeight>,
        cache: &CudaKvCache,
        layer: usize,
        inputs: &StepInputs,
    ) {
        let (pages, shape) = (cache.pages(), self.heads);
        let stride = qkv.stride / VECTOR;
        let query_vectors = (shape.heads() * shape.head_size() / VECTOR) as usize;
        let row: DevicePtrMut<Vector> = qkv.ptr();
        let only_writes = self.paper.is_none() && heads.norms.is_none() && heads.rope.is_none();
        let is_coded = pages.format.is_coded();
        if only_writes && !is_coded {
            let key = row.offset(query_vectors).cast_const();
            let call = reshape_and_cache {
                key,
                value: key.offset(pages.token_vectors() as usize),
                cache: cache.layer(layer),
                slots: inputs.slots().cast_const(),
                tokens: qkv.rows,
                key_stride: stride,
                value_stride: stride,
                heads: pages.heads,
                head_size: pages.head_size,
                block_size: pages.block_size,
            };
            let floor = || Floor { bytes: 4 * 16 * u64::from(qkv.rows) * u64::from(pages.token_vectors()), flops: 0 };
            // SAFETY: rows consist of whole vectors, and the block pool has no slot beyond the end of the cache.
            unsafe { self.queue.launch(write_shape(pages, qkv.rows), call, floor) };
            return;
        }
        let norm = |weight: Option<&CudaWeight>| weight.map_or(DevicePtr::NULL, CudaWeight::ptr);
        // Queries that do not change need not be processed.
        let (row, query_heads) = if only_writes { (row.offset(query_vectors), 0) } else { (row, shape.heads()) };
        let args = rope_and_cache {
            qkv: row.cast_const(),
            query: row,
            cache: if self.paper.is_some() { cache.keys(layer) } else { cache.layer(layer) },
            angles: heads.rope.as_ref().map_or(DevicePtr::NULL, |rope| rope.angles.ptr()),
            positions: inputs.positions().cast_const(),
            slots: inputs.slots().cast_const(),
            query_norm: norm(heads.norms.as_ref().map(|norms| norms.query)),
            key_norm: norm(heads.norms.as_ref().and_then(|norms| norms.key)),
            eps: heads.norms.as_ref().map_or(0.0, |norms| norms.eps),
            tokens: qkv.rows,
            qkv_stride: stride,
            query_stride: stride,
            heads: query_heads,
            kv_heads: pages.heads,
            head_size: pages.head_size,
            block_size: pages.block_size,
        };
        let floor = || Floor { bytes: rope::floor_bytes(qkv.rows.into(), query_heads.into(), pages), flops: 0 };
        let call = if self.paper.is_some() {
            let args = apart(args, cache.values(layer).cast());
            with_element!(self.element, T => args.instance::<T>())
        } else {
            rope::call(self.element, pages.format, args)
        };
        // SAFETY: rows consist of whole vectors, and the block pool has no slot beyond the end of the cache. The table
        // of angles has a row for each position, and the backend was created for a head size with kernels.
        unsafe { self.queue.launch(rope::shape(qkv.rows, query_heads, pages.heads), call, floor) };
    }

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
