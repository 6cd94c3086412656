//! The CPU: the reference, and the fallback where there is no GPU.
//!
//! Activations are f32; weights and the KV cache keep their own type and are widened on the way into registers; with
//! quantised weights activations are quantised as well (see `quantised`). The
//! instruction set (AVX-512, AVX2, NEON or none) is chosen when the backend is made. The result for a token does not
//! depend, to the bit, on what else is in its batch or on the number of threads.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod cache;
mod element;
mod linear;
mod math;
mod matmul;
mod pages;
mod panels;
mod product;
mod projection;
mod quantised;
mod rows;
mod stored;
mod tensor;
#[cfg(target_arch = "x86_64")]
mod terms;
#[cfg(test)]
mod tests;
mod threads;
mod tiles;
mod weight;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use pulp::Arch;

pub use cache::CpuKvCache;
pub use projection::CpuProjection;
pub use tensor::CpuTensor;
pub use weight::CpuWeight;

#[cfg(target_arch = "x86_64")]
use self::amx::Amx;
use self::element::Floats;
use self::pages::Pages;
use self::panels::Panels;
#[cfg(target_arch = "x86_64")]
use self::product::Pairs;
use self::quantised::{Isa, PackedMatrix};
use self::stored::{LayerBlocks, with_stored};
use self::tensor::Pool;
use self::threads::Threads;
use self::weight::WeightData;
use super::{Activation, Attention, Backend, Batch, HostLinear, KvLayout, Norm, QkNormRope};
use crate::error::{Error, Result};
use crate::parallel::{Shard, WorkerRank};
use crate::sampling::{SampleRow, Sampled, sample_row};
use crate::tensor::HostTensor;

/// The processor as a device.
pub struct CpuBackend {
    arch: Arch,
    #[cfg(target_arch = "x86_64")]
    amx: Option<Amx>,
    #[cfg(target_arch = "x86_64")]
    pairs: Option<Pairs>,
    isa: Isa,
    threads: Threads,
    pool: Arc<Pool>,
    pages: Pages,
    /// With `Some` this is one of several workers.
    rank: Option<WorkerRank>,
}

/// Queries, keys and values.
pub struct Qkv {
    query: CpuTensor,
    key: CpuTensor,
    value: CpuTensor,
}

impl CpuBackend {
    /// A backend that computes on `threads` threads, the caller's included; by default one for each available core.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        Ok(CpuBackend {
            arch: Arch::new(),
            #[cfg(target_arch = "x86_64")]
            amx: Amx::new(),
            #[cfg(target_arch = "x86_64")]
            pairs: None,
            isa: Isa::new(),
            threads: Threads::new(threads)?,
            pool: Pool::new(),
            pages: Pages::default(),
            rank: None,
        })
    }

    /// The same, rounding activations to bf16 before they meet weights of this type, where the processor multiplies pairs of
    /// such numbers: faster, and less exact.
    pub fn with_rounded_activations(self) -> Self {
        CpuBackend {
            #[cfg(target_arch = "x86_64")]
            pairs: Pairs::new(),
            ..self
        }
    }

    /// Whether it rounds activations: it was asked to, and the processor multiplies pairs of bf16 numbers.
    pub fn rounds_activations(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.pairs.is_some();
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// The same as one of several workers, which compute a model's parts.
    pub fn with_rank(self, rank: WorkerRank) -> Self {
        CpuBackend { rank: Some(rank), ..self }
    }

    /// Buffers allocated for activations so far. It stops growing once steps of every shape have run.
    pub fn allocations(&self) -> usize {
        self.pool.allocations()
    }

    /// Calls `run` with the index and the elements of each row of a `[_, cols]` matrix, on all threads if it is large.
    fn each_row(&self, data: &mut [f32], cols: usize, run: impl Fn(usize, &mut [f32]) + Sync) {
        if data.is_empty() {
            return;
        }
        let rows = data.len() / cols;
        // An element of these operations takes about as long as eight multiply-adds of a projection.
        let chunk = rows.div_ceil(self.threads.parts(data.len() * 8, rows));
        self.threads.each(data.chunks_mut(chunk * cols).enumerate(), |(i, rows)| {
            // Inlined all the way, to be compiled for the instruction set that is dispatched to.
            math::compiled(
                self.arch,
                #[inline(always)]
                || {
                    for (r, row) in rows.chunks_mut(cols).enumerate() {
                        run(i * chunk + r, row);
                    }
                },
            );
        });
    }

    /// Some of the rows of `x`.
    fn gather(&self, x: &CpuTensor, rows: &[u32]) -> CpuTensor {
        let mut out = self.pool.tensor(rows.len(), x.cols());
        for (to, &row) in out.as_mut_slice().chunks_mut(x.cols().max(1)).zip(rows) {
            to.copy_from_slice(&x.as_slice()[row as usize * x.cols()..][..x.cols()]);
        }
        out
    }

    /// Root-mean-square normalisation, in place, of each group of `D` elements (`weight [D]`): a row holds whole heads.
    fn head_norm(&self, x: &mut CpuTensor, weight: &CpuWeight, eps: f32) {
        let weight = Floats::new(weight.tensor(), &self.pool);
        let (cols, weight) = (x.cols(), weight.as_slice());
        self.each_row(x.as_mut_slice(), cols, |_, row| rows::head_norm(row, weight, eps));
    }

    /// Rotates each head of `x` in place by its position's angles, see [`QkNormRope::rope`].
    fn rope(&self, x: &mut CpuTensor, table: &CpuWeight, inputs: &Batch) {
        let (cols, head_dim) = (x.cols(), table.extents().1);
        let table = table.tensor().elements();
        self.each_row(x.as_mut_slice(), cols, |t, row| {
            rows::with_widened(table, inputs.positions[t] as usize * head_dim, head_dim, |a| rows::rope(row, a));
        });
    }
}

impl Backend for CpuBackend {
    type Tensor = CpuTensor;
    type Weight = CpuWeight;
    type QkvWeight = [CpuProjection; 3];
    type GatedWeight = [CpuProjection; 2];
    type Qkv = Qkv;
    type KvCache = CpuKvCache;
    type Inputs = Batch;

    fn weight(&self, tensor: HostTensor) -> Result<CpuWeight> {
        match tensor.shape().len() {
            2 if tensor.quantised().is_some() => {
                let packed = PackedMatrix::new(&tensor, &self.threads, &self.pages)?;
                Ok(CpuWeight(WeightData::Quantised(Arc::new(packed))))
            }
            1 | 2 => Ok(CpuWeight(WeightData::Elements(Arc::new(tensor.into_elements())))),
            n => Err(Error::Unsupported(format!("a weight of {n} dimensions"))),
        }
    }

    fn to_projection(&self, weight: CpuWeight, is_embedding: bool) -> Result<CpuWeight> {
        let WeightData::Elements(tensor) = weight.0 else { return Ok(weight) };
        let panels = Arc::new(Panels::new(&tensor, &self.threads, &self.pages)?);
        Ok(CpuWeight(WeightData::Panels(panels, is_embedding.then_some(tensor))))
    }

    fn qkv_weight(&self, [query, key, value]: [HostLinear; 3]) -> Result<[CpuProjection; 3]> {
        Ok([self.projection(query)?, self.projection(key)?, self.projection(value)?])
    }

    fn gated_weight(&self, [gate, up]: [HostLinear; 2]) -> Result<[CpuProjection; 2]> {
        Ok([self.projection(gate)?, self.projection(up)?])
    }

    fn kv_cache(&self, layout: KvLayout, num_blocks: usize, swap_blocks: usize) -> Result<CpuKvCache> {
        CpuKvCache::new(layout, num_blocks, swap_blocks)
    }

    fn upload(&self, batch: Batch, _rows: &[SampleRow<'_>]) -> Batch {
        batch
    }

    fn move_blocks(&self, cache: &mut CpuKvCache, inputs: &Batch) {
        cache.move_blocks(&inputs.moves);
    }

    fn shard(&self) -> Shard {
        self.rank.as_ref().map_or(Shard::WHOLE, WorkerRank::shard)
    }

    fn all_reduce(&self, x: &mut CpuTensor, part: Option<CpuTensor>) {
        let sum = |x: &mut CpuTensor| {
            if let Some(rank) = &self.rank {
                rank.sum(x.as_mut_slice());
            }
        };
        match part {
            None => sum(x),
            Some(mut part) => {
                sum(&mut part);
                x.as_mut_slice().iter_mut().zip(part.as_slice()).for_each(|(x, y)| *x += y);
            }
        }
    }

    fn gather_logits(&self, part: CpuTensor) -> CpuTensor {
        let Some(rank) = &self.rank else { return part };
        let rows = part.rows();
        rank.gather(rows, part.as_slice(), |cols| self.pool.tensor(rows, cols)).unwrap_or(part)
    }

    fn embed_tokens(
        &self,
        table: &CpuWeight,
        vocab: Range<usize>,
        positions: Option<(&CpuWeight, usize)>,
        inputs: &Batch,
    ) -> CpuTensor {
        let cols = table.extents().1;
        let mut out = self.pool.tensor(inputs.tokens.len(), cols);
        self.each_row(out.as_mut_slice(), cols, |t, row| match inputs.tokens[t] as usize {
            token if vocab.contains(&token) => table.read_row(token - vocab.start, row),
            _ => row.fill(0.0),
        });
        if let Some((table, offset)) = positions {
            self.add_positions(&mut out, table, offset, inputs);
        }
        out
    }

    fn add_positions(&self, x: &mut CpuTensor, table: &CpuWeight, offset: usize, inputs: &Batch) {
        let cols = x.cols();
        let table = table.tensor().elements();
        self.each_row(x.as_mut_slice(), cols, |t, row| {
            rows::with_widened(table, (inputs.positions[t] as usize + offset) * cols, cols, |p| {
                row.iter_mut().zip(p).for_each(|(x, p)| *x += p);
            });
        });
    }

    fn linear(
        &self,
        x: &CpuTensor,
        weight: &CpuWeight,
        bias: Option<&CpuWeight>,
        act: Option<Activation>,
    ) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), weight.extents().0);
        self.project(&mut out, x, weight, bias, (act, false));
        out
    }

    fn linear_add(&self, residual: &mut CpuTensor, x: &CpuTensor, weight: &CpuWeight, bias: Option<&CpuWeight>) {
        self.project(residual, x, weight, bias, (None, true));
    }

    fn gated(&self, x: &CpuTensor, [gate, up]: &[CpuProjection; 2], act: Activation) -> CpuTensor {
        let (mut gate, up) = (self.apply(gate, x), self.apply(up, x));
        let (cols, up) = (gate.cols(), up.as_slice());
        self.each_row(
            gate.as_mut_slice(),
            cols,
            #[inline(always)]
            |t, row| {
                math::activate(row, act);
                row.iter_mut().zip(&up[t * cols..]).for_each(|(g, u)| *g *= u);
            },
        );
        gate
    }

    fn qkv(&self, x: &CpuTensor, [query, key, value]: &[CpuProjection; 3]) -> Qkv {
        Qkv { query: self.apply(query, x), key: self.apply(key, x), value: self.apply(value, x) }
    }

    fn norm(&self, x: &CpuTensor, norm: &Norm<CpuWeight>) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), x.cols());
        let (cols, x) = (x.cols(), x.as_slice());
        match norm {
            Norm::Layer { weight, bias, eps } => {
                let [weight, bias] = [weight, bias].map(|w| w.as_ref().map(|w| Floats::new(w.tensor(), &self.pool)));
                let [weight, bias] = [&weight, &bias].map(|w| w.as_ref().map(Floats::as_slice));
                self.each_row(out.as_mut_slice(), cols, |t, row| {
                    rows::layer_norm(&x[t * cols..][..cols], weight, bias, *eps, row);
                });
            }
            Norm::Rms { weight, eps } => {
                let weight = Floats::new(weight.tensor(), &self.pool);
                let weight = weight.as_slice();
                self.each_row(
                    out.as_mut_slice(),
                    cols,
                    #[inline(always)]
                    |t, row| {
                        rows::rms_norm(&x[t * cols..][..cols], weight, *eps, row);
                    },
                );
            }
        }
        out
    }

    fn write_kv(
        &self,
        qkv: &mut Qkv,
        heads: QkNormRope<'_, CpuWeight>,
        cache: &mut CpuKvCache,
        layer: usize,
        inputs: &Batch,
    ) {
        if let Some((query, key, eps)) = heads.norms {
            self.head_norm(&mut qkv.query, query, eps);
            self.head_norm(&mut qkv.key, key, eps);
        }
        if let Some(table) = heads.rope {
            self.rope(&mut qkv.query, table, inputs);
            self.rope(&mut qkv.key, table, inputs);
        }
        cache.write(layer, qkv.key.as_slice(), qkv.value.as_slice(), &inputs.slots);
    }

    fn attention(&self, Qkv { query, .. }: &Qkv, cache: &CpuKvCache, params: Attention, inputs: &Batch) -> CpuTensor {
        let mut out = self.pool.tensor(query.rows(), query.cols());
        let layout = &cache.layout;
        let group = query.cols() / (layout.heads * layout.head_dim);
        let query = query.as_slice();
        with_stored!(layout.dtype, E => {
            let blocks = LayerBlocks::<E>::new(cache.layer(params.layer), layout);
            let job = attention::Job { query, blocks, layout, params, batch: inputs, group };
            job.run(self.arch, &self.threads, out.as_mut_slice());
        });
        out
    }

    fn logit_rows(&self, x: &CpuTensor, inputs: &Batch) -> CpuTensor {
        self.gather(x, &inputs.logit_rows)
    }

    fn hidden_rows(&self, x: &CpuTensor, inputs: &Batch) -> CpuTensor {
        self.gather(x, &inputs.hidden_rows)
    }

    fn download(&self, x: &CpuTensor) -> Result<Vec<f32>> {
        Ok(x.as_slice().to_vec())
    }

    fn logits(&self, x: &CpuTensor, weight: &CpuWeight) -> CpuTensor {
        self.linear(x, weight, None, None)
    }

    fn sample(&self, logits: &CpuTensor, _inputs: &Batch, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        thread_local! {
            static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let mut out: Vec<Option<Result<Sampled>>> = rows.iter().map(|_| None).collect();
        let tasks = logits.as_slice().chunks(logits.cols().max(1)).zip(rows).zip(&mut out);
        self.threads.each(tasks, |((logits, row), out)| {
            *out = SCRATCH.with_borrow_mut(|scratch| Some(sample_row(logits, row, scratch)));
        });
        out.into_iter().flatten().collect()
    }
}
