//! Attention, and the keys and values it reads.

use cuda_std::launch::{Entry, Family};
use kernels::attention::decode::{self, PLAN_THREADS, plan_paged_attention, plan_vectors};
use kernels::attention::prefill::{paged_prefill, shape};
use kernels::cache::{self, reshape_and_cache, write_grid};
use kernels::floor::Floor;
use kernels::layout::{VECTOR, Vector};
use kernels::rope::{self, rope_and_cache};

use super::CudaBackend;
use super::cache::KvCache;
use super::inputs::Inputs;
use super::queue::Cost;
use super::tensor::{Tensor, Weight, pointer};
use crate::backend::{Attention, Heads};

impl CudaBackend {
    /// Splits rows `[query | key | value]`: heads are normalised and rotated where they are, keys and values go to the
    /// cache.
    pub(super) fn write(&self, qkv: &Tensor, heads: Heads<'_, Weight>, cache: &KvCache, layer: usize, inputs: &Inputs) {
        let (pages, shape) = (cache.pages(), self.heads);
        let stride = qkv.stride / VECTOR;
        let query_vectors = (shape.heads() * shape.head_size() / VECTOR) as usize;
        let row: *mut Vector = qkv.ptr();
        if heads.norms.is_none() && heads.rope.is_none() {
            let key = row.wrapping_add(query_vectors).cast_const();
            let value = key.wrapping_add(pages.token_vectors() as usize);
            let args = (
                key,
                value,
                cache.layer(layer),
                inputs.slots().cast_const(),
                qkv.rows,
                stride,
                stride,
                pages.heads,
                pages.head_size,
                pages.block_size,
            );
            let floor = || Floor { bytes: 4 * 16 * u64::from(qkv.rows) * u64::from(pages.token_vectors()), flops: 0 };
            let launch = (write_grid(pages, qkv.rows), cache::THREADS, 0);
            // SAFETY: rows are of whole vectors, and the manager's slots are within the cache.
            unsafe { self.queue.launch(Some(Entry::of::<reshape_and_cache>()), launch, args, floor) };
            return;
        }
        let norm = |weight: Option<&Weight>| weight.map_or(std::ptr::null(), Weight::ptr);
        let args = (
            row.cast_const(),
            row,
            cache.layer(layer),
            heads.rope.map_or(std::ptr::null(), Weight::ptr),
            inputs.positions().cast_const(),
            inputs.slots().cast_const(),
            norm(heads.norms.map(|norms| norms.0)),
            norm(heads.norms.map(|norms| norms.1)),
            heads.norms.map_or(0.0, |norms| norms.2),
            qkv.rows,
            stride,
            stride,
            shape.heads(),
            pages.heads,
            pages.head_size,
            pages.block_size,
        );
        let floor = || {
            let [heads, kv_heads, size] = [shape.heads(), pages.heads, pages.head_size].map(u64::from);
            Floor { bytes: rope::floor_bytes(qkv.rows.into(), heads, kv_heads, size), flops: 0 }
        };
        let launch = (rope::grid(qkv.rows, shape.heads(), pages.heads), rope::THREADS, 0);
        // SAFETY: as above; the table of angles has a row for each position, and head sizes were checked.
        unsafe { self.queue.launch(rope_and_cache::instance(&[self.element]), launch, args, floor) };
    }

    /// Attention of the rows' queries: decode's kernel for the first rows, prefill's for the rest.
    pub(super) fn attend(&self, qkv: &Tensor, cache: &KvCache, params: Attention, inputs: &Inputs) -> Tensor {
        let shape = self.heads;
        let out = self.tensor(qkv.rows, shape.heads() * shape.head_size());
        let window = params.window.map_or(0, |window| u32::try_from(window).unwrap_or(0));
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
        qkv: &Tensor,
        cache: &KvCache,
        params: Attention,
        window: u32,
        inputs: &Inputs,
        out: &Tensor,
    ) {
        let (shape, decode) = (self.heads, self.decode);
        let plan = self.plan(window, inputs);
        let partials = self.lease(decode.partial_vectors() as usize * 16);
        let args = (
            out.ptr::<u16>(),
            qkv.ptr::<u16>().cast_const(),
            cache.layer(params.layer).cast_const(),
            inputs.tables().cast_const(),
            inputs.table_starts().cast_const(),
            plan,
            pointer::<Vector>(partials.address()),
            self.counters(decode.arrivals()),
            qkv.stride,
            cache.pages().heads,
            shape.group(),
            cache.pages().block_size,
            params.scale,
        );
        let cost = || {
            let seen = |&(_, context): &(u32, u32)| u64::from(if window > 0 { context.min(window) } else { context });
            let spans = inputs.decode_spans();
            let floor = |sequences| decode::floor(shape, spans.iter().map(seen).sum(), sequences);
            Cost { floor: floor(spans.len() as u64), weights: 0, kv_cache: floor(0).bytes }
        };
        let launch = (decode.grid(), decode.threads(), decode.shared_bytes());
        // SAFETY: the plan was made for this batch, tables and contexts are the manager's, and the counters are used by
        // one launch at a time.
        unsafe { self.queue.launch(decode.entry(self.element), launch, args, cost) };
    }

    /// The plan for a window, made unless the step already has it.
    fn plan(&self, window: u32, inputs: &Inputs) -> *const Vector {
        if let Some((_, plan)) = inputs.plans.borrow().iter().find(|plan| plan.0 == window) {
            return pointer(plan.address());
        }
        let slots = self.decode.arrivals();
        let vectors = plan_vectors(slots, inputs.decodes);
        let lease = self.lease(vectors as usize * 16);
        let plan = pointer::<Vector>(lease.address());
        let args = (inputs.contexts().cast_const(), plan, inputs.decodes, window, self.decode.streams(), slots);
        let floor = || Floor { bytes: u64::from(4 * inputs.decodes + 16 * vectors), flops: 0 };
        let entry = Some(Entry::of::<plan_paged_attention>());
        // SAFETY: the plan has its size, and a batch of the cache has less than 2^32 tiles.
        unsafe { self.queue.launch(entry, ((1, 1, 1), PLAN_THREADS, 0), args, floor) };
        inputs.plans.borrow_mut().push((window, lease));
        plan
    }

    fn attend_prefills(
        &self,
        qkv: &Tensor,
        cache: &KvCache,
        params: Attention,
        window: u32,
        inputs: &Inputs,
        out: &Tensor,
    ) {
        let head_shape = self.heads;
        let first = inputs.decodes as usize;
        let args = (
            out.ptr::<u16>(),
            qkv.ptr::<u16>().cast_const(),
            cache.layer(params.layer).cast_const(),
            inputs.tables().cast_const(),
            inputs.table_starts().wrapping_add(first).cast_const(),
            inputs.query_starts().cast_const(),
            inputs.contexts().wrapping_add(first).cast_const(),
            inputs.prefills,
            qkv.stride,
            cache.pages().heads,
            head_shape.group(),
            cache.pages().block_size,
            window,
            params.scale,
        );
        let cost = || {
            let each = inputs.prefill_spans().iter().map(|&(new, seen)| shape::floor(head_shape, new, seen, window));
            let floor =
                each.fold(Floor::default(), |a, b| Floor { bytes: a.bytes + b.bytes, flops: a.flops + b.flops });
            // Queries and results.
            let rows = 2 * 2 * u64::from(inputs.rows - inputs.decodes);
            let kv_cache = floor.bytes - rows * u64::from(head_shape.heads() * head_shape.head_size());
            Cost { floor, weights: 0, kv_cache }
        };
        let size = head_shape.head_size().to_string();
        let shape::Launch { grid, threads, shared } =
            shape::launch(head_shape, inputs.rows - inputs.decodes, inputs.prefills);
        let entry = paged_prefill::instance(&[self.element, &size]);
        // SAFETY: query rows are numbered from the first of all; the rest is as for decode.
        unsafe { self.queue.launch(entry, (grid, threads, shared), args, cost) };
    }
}
