//! Rows of queries, keys and values: their projection, the norms and rotations of heads, and the write of keys and values
//! to the cache.

use cuda_std::launch::{DevicePtr, DevicePtrMut, LaunchShape};
use cuda_std::vector::Vector;
use kernels::attention::AttentionShape;
use kernels::attention::paper::launch::apart;
use kernels::cache::{reshape_and_cache, write_shape};
use kernels::floor::Floor;
use kernels::gemm::epilogue::Epilogue;
use kernels::layout::{Pages, VECTOR};
use kernels::norm::{self as norms, NormShape, rms_norm_divided, rms_norm_part, row_squares};
use kernels::rope::{self, HeadOptions, Pairing, rope_and_cache};
use kernels::scaling::{self, scale_rows};
use kernels::with_element;

use super::elementwise::row_ranges;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::cache::CudaKvCache;
use crate::backend::cuda::memory::tensor::{CudaQkvProjection, CudaTensor, CudaWeight};
use crate::backend::cuda::memory::weights;
use crate::backend::cuda::step::inputs::StepInputs;
use crate::backend::{QkNormRope, QkNorms, Rotation};
use crate::error::Error;

/// Threads per block of norms of rows that are divided among workers.
const DIVIDED_THREADS: u32 = 256;

impl CudaBackend {
    /// Computes rows `[query | key | value]`, or only queries if the layer has no keys and values.
    pub(in crate::backend::cuda) fn project_qkv(&self, x: &CudaTensor, qkv: &CudaQkvProjection) -> CudaTensor {
        let CudaQkvProjection { projection, shared } = qkv;
        let projected = weights::padded_rows(projection.weight.rows as usize) as u32;
        let out = self.tensor(x.rows, projected + shared);
        let columns = CudaTensor { cols: projected, ..out.clone() };
        self.project(x, &projection.weight, projection.bias.as_ref(), Epilogue::Half(None), &columns);
        if *shared > 0 {
            self.copy_keys(&out, *shared);
        }
        out
    }

    /// Copies the keys of each row, which are next to the last `count` columns, to these columns.
    fn copy_keys(&self, qkv: &CudaTensor, count: u32) {
        let values: DevicePtrMut<Vector> = qkv.ptr().offset(((qkv.cols - count) / VECTOR) as usize);
        let keys: DevicePtrMut<Vector> = qkv.ptr().offset(((qkv.cols - 2 * count) / VECTOR) as usize);
        let (vectors, stride) = (count / VECTOR, qkv.stride / VECTOR);
        for (first, rows) in row_ranges(qkv.rows) {
            let at = first as usize * stride as usize;
            let (x, out) = (keys.offset(at).cast_const(), values.offset(at));
            // A factor of 1 changes no element.
            let args = scale_rows { x, out, vectors, stride, factor: 1.0 };
            let call = with_element!(self.element, T => args.instance::<T>());
            let floor = || Floor { bytes: 4 * u64::from(rows) * u64::from(count), flops: 0 };
            // SAFETY: rows consist of whole vectors, and keys and values do not overlap.
            unsafe { self.queue.launch(scaling::shape(rows, vectors), call, floor) };
        }
    }

    /// Processes rows `[query | key | value]`: normalises and rotates heads in place, and writes keys and values to the
    /// cache in the layout that attention reads. Rows may have only queries, or no values if keys contain them.
    pub(in crate::backend::cuda) fn norm_rope_and_write_kv(
        &self,
        qkv: &CudaTensor,
        mut heads: QkNormRope<'_, CudaWeight>,
        cache: &CudaKvCache,
        layer: usize,
        inputs: &StepInputs,
    ) {
        let (mut pages, shape) = (cache.pages(layer), self.layer_heads(layer));
        if shape.is_latent() {
            // A key is rotated in place like queries, and written afterwards.
            if heads.rope.is_some() {
                let all = Pages { heads: 0, head_size: shape.head_size(), ..pages };
                self.rotate_and_write_kv(qkv, heads, (cache, layer, all), shape.heads() + 1, inputs);
            }
            return self.write_kv(qkv, pages, cache, layer, inputs);
        }
        if qkv.cols == shape.heads() * shape.head_size() {
            pages.heads = 0;
        }
        if let Some(norms) = heads.norms.take_if(|norms| norms.rows) {
            self.norm_rows_of_heads(qkv, shape, pages, &norms);
        }
        let only_writes = self.paper.is_none() && heads.norms.is_none() && heads.rope.is_none();
        if only_writes && pages.heads == 0 {
            return;
        }
        if only_writes && heads.value_eps.is_none() && !pages.format.is_coded() {
            return self.write_kv(qkv, pages, cache, layer, inputs);
        }
        // Queries that do not change need not be processed.
        let query_heads = if only_writes { 0 } else { shape.heads() };
        self.rotate_and_write_kv(qkv, heads, (cache, layer, pages), query_heads, inputs);
    }

    /// Writes keys and values to a layer of the cache as they are.
    fn write_kv(&self, qkv: &CudaTensor, pages: Pages, cache: &CudaKvCache, layer: usize, inputs: &StepInputs) {
        let shape = self.layer_heads(layer);
        let stride = qkv.stride / VECTOR;
        let row: DevicePtrMut<Vector> = qkv.ptr();
        let key = row.offset((shape.heads() * shape.head_size() / VECTOR) as usize).cast_const();
        let call = reshape_and_cache {
            key,
            value: key.offset(pages.token_vectors() as usize),
            cache: cache.layer(layer),
            slots: inputs.slots(cache.group(layer)).cast_const(),
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
    }

    /// Normalises and rotates heads, and writes keys and values to a layer of the cache. `pages` has no heads if the rows
    /// have no keys. Without `query_heads`, queries do not change.
    fn rotate_and_write_kv(
        &self,
        qkv: &CudaTensor,
        heads: QkNormRope<'_, CudaWeight>,
        (cache, layer, pages): (&CudaKvCache, usize, Pages),
        query_heads: u32,
        inputs: &StepInputs,
    ) {
        let (shape, stride) = (self.layer_heads(layer), qkv.stride / VECTOR);
        let row: DevicePtrMut<Vector> = qkv.ptr();
        let query_vectors = (shape.heads() * shape.head_size() / VECTOR) as usize;
        let norm = |weight: Option<&CudaWeight>| weight.map_or(DevicePtr::NULL, CudaWeight::ptr);
        let row = if query_heads == 0 { row.offset(query_vectors) } else { row };
        let norms_eps = heads.norms.as_ref().map(|norms| norms.eps);
        let args = rope_and_cache {
            qkv: row.cast_const(),
            query: row,
            cache: if self.paper.is_some() { cache.keys(layer) } else { cache.layer(layer) },
            angles: heads.rope.as_ref().map_or(DevicePtr::NULL, |rope| rope.angles.ptr()),
            positions: inputs.positions().cast_const(),
            slots: inputs.slots(cache.group(layer)).cast_const(),
            query_norm: norm(heads.norms.as_ref().map(|norms| norms.query)),
            key_norm: norm(heads.norms.as_ref().and_then(|norms| norms.key)),
            eps: norms_eps.or(heads.value_eps).unwrap_or(0.0),
            tokens: qkv.rows,
            qkv_stride: stride,
            query_stride: stride,
            heads: query_heads,
            kv_heads: pages.heads,
            head_size: pages.head_size,
            block_size: pages.block_size,
            padding: pages.padding,
        };
        let floor = || Floor { bytes: rope::floor_bytes(qkv.rows.into(), query_heads.into(), pages), flops: 0 };
        let call = match (general_options(&heads, pages.head_size), self.paper) {
            (Some(_), Some(_)) => {
                return self.fail(Error::Unsupported("the paper's kernels cannot change heads in this way".into()));
            }
            (Some(options), None) => options.call(self.element, pages.format, args),
            (None, Some(_)) => {
                let args = apart(args, cache.values(layer).cast());
                with_element!(self.element, T => args.instance::<T>())
            }
            (None, None) => rope::call(self.element, pages.format, args),
        };
        // SAFETY: rows consist of whole vectors, and the block pool has no slot beyond the end of the cache. The table
        // of angles has a row for each position, and the backend was created for a head size and rotations with
        // kernels.
        unsafe { self.queue.launch(rope::shape(qkv.rows, query_heads, pages.heads), call, floor) };
    }

    /// Normalises all query heads of a row together, and all key heads, including the heads of other workers.
    fn norm_rows_of_heads(
        &self,
        qkv: &CudaTensor,
        shape: AttentionShape,
        pages: Pages,
        norms: &QkNorms<'_, CudaWeight>,
    ) {
        let [queries, keys] = [shape.heads(), pages.heads].map(|heads| heads * shape.head_size());
        let squares = (!self.shard.is_whole()).then(|| self.squares_of_rows(qkv, [queries, keys]));
        self.norm_part(qkv, (0, 0, queries), (norms.query, norms.eps), squares.as_ref());
        if let Some(key) = norms.key.filter(|_| keys > 0) {
            self.norm_part(qkv, (1, queries, keys), (key, norms.eps), squares.as_ref());
        }
    }

    /// Normalises the `width` columns of `x` from `first` on. With `squares`, rows are divided among workers, and this is
    /// part 0 or 1 of them.
    pub(super) fn norm_part(
        &self,
        x: &CudaTensor,
        (part, first, width): (u32, u32, u32),
        (weight, eps): (&CudaWeight, f32),
        squares: Option<&CudaTensor>,
    ) {
        let (out, stride) = (x.ptr::<Vector>().offset((first / VECTOR) as usize), x.stride / VECTOR);
        let (rows, vectors, weight) = (x.rows, width / VECTOR, weight.ptr());
        let floor = || Floor { bytes: norms::floor_bytes(rows.into(), width.into(), false), flops: 0 };
        let x = out.cast_const();
        let (threads, call) = match squares {
            None => {
                let Some(NormShape { vectors, threads }) = self.norm_shape(width) else { return };
                let args = rms_norm_part { x, weight, out, eps, vectors, stride };
                (threads, with_element!(self.element, T => args.instance::<T>()))
            }
            Some(squares) => {
                // If workers have the same heads, their squares are counted as often as their elements.
                let ranks = self.shard.of as u32;
                let (squares, width) = (squares.ptr().cast_const(), ranks * width);
                let args = rms_norm_divided { x, weight, out, squares, part, width, eps, vectors, stride, ranks };
                (DIVIDED_THREADS, with_element!(self.element, T => args.instance::<T>()))
            }
        };
        // SAFETY: rows consist of whole vectors, and the part is within the row. Each block has a row.
        unsafe { self.queue.launch(LaunchShape::linear(rows, threads), call, floor) };
    }

    /// Returns the sums of squares of all workers' queries and keys in each row, as [`row_squares`] writes them.
    pub(super) fn squares_of_rows(&self, qkv: &CudaTensor, [queries, keys]: [u32; 2]) -> CudaTensor {
        let (rank, ranks) = (self.shard.rank as u32, self.shard.of as u32);
        let squares = self.tensor(qkv.rows, ranks * VECTOR);
        let args = row_squares {
            x: qkv.ptr().cast_const(),
            out: squares.ptr(),
            queries: queries / VECTOR,
            keys: keys / VECTOR,
            stride: qkv.stride / VECTOR,
            rank,
            ranks,
        };
        let read = 2 * u64::from(qkv.rows) * u64::from(queries + keys);
        let floor = || Floor { bytes: read + 16 * u64::from(qkv.rows) * u64::from(ranks), flops: 0 };
        let call = with_element!(self.element, T => args.instance::<T>());
        // SAFETY: rows consist of whole vectors, and each of at most 8 ranks has a vector.
        unsafe { self.queue.launch(LaunchShape::linear(qkv.rows, DIVIDED_THREADS), call, floor) };
        self.launch_all_reduce(&squares, None, None);
        squares
    }
}

/// Returns the options of the general kernel, or `None` if the kernel for whole rotations computes these heads.
fn general_options(heads: &QkNormRope<'_, CudaWeight>, head_size: u32) -> Option<HeadOptions> {
    let is_whole = |rope: &Rotation<'_, CudaWeight>| !rope.adjacent && rope.angles.cols == head_size;
    if heads.value_eps.is_none() && heads.rope.as_ref().is_none_or(is_whole) {
        return None;
    }
    let is_adjacent = heads.rope.as_ref().is_some_and(|rope| rope.adjacent);
    Some(HeadOptions {
        rotated: heads.rope.as_ref().map_or(0, |rope| rope.angles.cols),
        pairing: if is_adjacent { Pairing::Interleaved } else { Pairing::Halves },
        value_norm: heads.value_eps.is_some(),
    })
}
