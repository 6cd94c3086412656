//! The [`Backend`] for a CPU, implemented with the crate `cpu`. It is the reference, and the device of machines without
//! a GPU.

mod adapters;
mod cache;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use cpu::{Cpu, CpuExpert, GatedUnit};
pub use cpu::{CpuExperts, CpuLatent, CpuProjection, CpuTensor, CpuWeight};

pub use self::adapters::CpuAdapter;
pub use self::cache::CpuKvCache;
use super::{
    Activation, Attention, Backend, Batch, Change, HostExpert, HostExperts, HostLinear, HostQkv, HostRecurrent,
    KvLayout, Latent, Norm, QkNormRope, QkNorms,
};
use crate::adapter::Site;
use crate::config::RecurrentKind;
use crate::error::{Error, Result};
use crate::load::adapter::LowRank;
use crate::parallel::{Shard, WorkerRank};
use crate::sampling::{Map, SampleRow, Sampled, Softmax};
use crate::tensor::HostTensor;

/// The processor as a device.
pub struct CpuBackend {
    cpu: Cpu,
    /// Whether experts stay in their file where possible.
    stores_experts: bool,
    /// `Some` if this is one of several workers.
    rank: Option<WorkerRank>,
}

/// The projections to query, key and value.
pub struct QkvProjections {
    query: CpuProjection,
    key: Option<CpuProjection>,
    value: Option<CpuProjection>,
}

/// The weights of a layer that keeps a state, and the norm of its results.
pub struct RecurrentWeight {
    state: cpu::CpuRecurrent,
    norm: Option<CpuWeight>,
    eps: f32,
}

/// Queries, and keys and values if the layer computes any. Values are `None` if keys contain them.
pub struct Qkv {
    query: CpuTensor,
    kv: Option<(CpuTensor, Option<CpuTensor>)>,
}

/// A batch, and its sequences in the form that the crate `cpu` uses.
pub struct Inputs {
    batch: Batch,
    spans: Vec<cpu::Span>,
    /// The rows of sequences with an adapter, ascending.
    adapted: Vec<(Range<usize>, Arc<CpuAdapter>)>,
}

impl CpuBackend {
    /// Creates a backend that computes on `threads` threads, including the caller's. The default is one for each
    /// available core.
    ///
    /// # Errors
    /// See [`Cpu::new`].
    pub fn new(threads: Option<usize>) -> Result<Self> {
        Ok(CpuBackend { cpu: Cpu::new(threads)?, stores_experts: false, rank: None })
    }

    /// Leaves experts in their file if it is mapped. Each use of an expert copies it into memory.
    pub fn with_stored_experts(self) -> Self {
        CpuBackend { stores_experts: true, ..self }
    }

    /// See [`Cpu::with_rounded_activations`].
    pub fn with_rounded_activations(self) -> Self {
        CpuBackend { cpu: self.cpu.with_rounded_activations(), ..self }
    }

    /// See [`Cpu::rounds_activations`].
    pub fn rounds_activations(&self) -> bool {
        self.cpu.rounds_activations()
    }

    /// Makes this backend one of several workers that compute parts of a model.
    pub fn with_rank(self, rank: WorkerRank) -> Self {
        CpuBackend { rank: Some(rank), ..self }
    }

    fn projection(&self, host: HostLinear) -> Result<CpuProjection> {
        self.cpu.projection(host.weight, host.bias)
    }

    /// Normalises heads, or whole rows of heads, of which this worker has a part.
    fn norm_heads(&self, x: &mut CpuTensor, weight: &CpuWeight, eps: f32, rows: bool) {
        match &self.rank {
            Some(rank) if rows => {
                let mut squares = self.cpu.squares(x);
                rank.sum(squares.as_mut());
                // If workers have the same heads, their squares are counted as often as their elements.
                self.cpu.norm_by(x, &squares, rank.shard().of * x.cols(), weight, eps);
            }
            _ => self.cpu.head_norm(x, weight, eps),
        }
    }
}

impl Backend for CpuBackend {
    type Tensor = CpuTensor;
    type Weight = CpuWeight;
    type QkvWeight = QkvProjections;
    type GatedWeight = [CpuProjection; 2];
    type ExpertsWeight = CpuExperts;
    type LatentWeight = CpuLatent;
    type RecurrentWeight = RecurrentWeight;
    type Qkv = Qkv;
    type KvCache = CpuKvCache;
    type Adapter = CpuAdapter;
    type Inputs = Inputs;

    const HAS_ADAPTERS: bool = true;

    fn weight(&self, tensor: HostTensor) -> Result<CpuWeight> {
        self.cpu.weight(tensor)
    }

    fn to_projection(&self, weight: CpuWeight, is_embedding: bool) -> Result<CpuWeight> {
        self.cpu.to_projection(weight, is_embedding)
    }

    fn qkv_weight(&self, HostQkv { query, key, value }: HostQkv) -> Result<QkvProjections> {
        let part = |host: Option<HostLinear>| host.map(|host| self.projection(host)).transpose();
        Ok(QkvProjections { query: self.projection(query)?, key: part(key)?, value: part(value)? })
    }

    fn gated_weight(&self, [gate, up]: [HostLinear; 2]) -> Result<[CpuProjection; 2]> {
        Ok([self.projection(gate)?, self.projection(up)?])
    }

    fn experts_weight(
        &self,
        settings: HostExperts,
        experts: &mut dyn Iterator<Item = Result<HostExpert>>,
    ) -> Result<CpuExperts> {
        let HostExperts { count, own, routing, correction, scale, activation, clamp, shared } = settings;
        let unit = clamp.map_or(GatedUnit::Plain(activation), GatedUnit::Clamped);
        let numbers = |tensor: HostTensor| tensor.elements().to_f32();
        let (correction, scale) = (correction.map(numbers), scale.map(numbers));
        let router = cpu::Router { routing, correction, scale, shared };
        let mut all = Vec::new();
        for (at, expert) in experts.enumerate() {
            let HostExpert { gate_up: [gate, up], down } = expert?;
            // Every step uses the shared expert, which is the last one.
            let is_shared = at == own.len();
            let is_mapped = [&gate, &up, &down].iter().all(|part| part.weight.is_mapped());
            all.push(if self.stores_experts && is_mapped && !is_shared {
                let stored = |part: HostLinear| self.cpu.stored_projection(part.weight, part.bias);
                CpuExpert::Stored([stored(gate)?, stored(up)?, stored(down)?])
            } else {
                CpuExpert::Loaded([self.projection(gate)?, self.projection(up)?, self.projection(down)?])
            });
        }
        Ok(CpuExperts { router, unit, count, own, experts: all })
    }

    fn latent_weight(&self, _: Latent, queries: Vec<HostTensor>, values: Vec<HostTensor>) -> Result<CpuLatent> {
        let all = |parts: Vec<HostTensor>| {
            parts.into_iter().map(|part| self.cpu.projection(part, None)).collect::<Result<_>>()
        };
        Ok(CpuLatent { queries: all(queries)?, values: all(values)? })
    }

    fn recurrent_weight(&self, weights: HostRecurrent) -> Result<RecurrentWeight> {
        let HostRecurrent { layer, kernel, bias, decay, step_bias, skip, norm, eps } = weights;
        let kernel = kernel.transposed().elements().to_f32();
        let norm = norm.map(|norm| self.cpu.weight(norm)).transpose()?;
        let state = cpu::CpuRecurrent { shape: layer, kernel, bias, decay, step_bias, skip };
        Ok(RecurrentWeight { state, norm, eps })
    }

    fn adapter(&self, products: Vec<Option<LowRank>>) -> Result<CpuAdapter> {
        Ok(CpuAdapter::new(products))
    }

    fn adapt(&self, inputs: &mut Inputs, spans: &[Option<Arc<CpuAdapter>>]) {
        inputs.set_adapters(spans);
    }

    fn is_adapted(&self, sites: &[Option<Site>], inputs: &Inputs) -> bool {
        inputs.is_adapted(sites)
    }

    fn add_adapted(&self, y: &mut CpuTensor, x: &CpuTensor, site: Option<Site>, inputs: &Inputs) {
        self.cpu.add_low_rank(y, x, &inputs.products(site));
    }

    fn add_adapted_qkv(&self, qkv: &mut Qkv, x: &CpuTensor, [query, key, value]: [Option<Site>; 3], inputs: &Inputs) {
        self.add_adapted(&mut qkv.query, x, query, inputs);
        if let Some((keys, values)) = &mut qkv.kv {
            self.add_adapted(keys, x, key, inputs);
            values.iter_mut().for_each(|values| self.add_adapted(values, x, value, inputs));
        }
    }

    fn linear_adapted(
        &self,
        x: &CpuTensor,
        (weight, bias): (&CpuWeight, Option<&CpuWeight>),
        act: Option<Activation>,
        site: Option<Site>,
        inputs: &Inputs,
    ) -> CpuTensor {
        let mut y = self.cpu.linear(x, weight, bias, None);
        self.add_adapted(&mut y, x, site, inputs);
        act.iter().for_each(|act| self.cpu.activate(&mut y, *act));
        y
    }

    fn gated_adapted(
        &self,
        x: &CpuTensor,
        weights: &[CpuProjection; 2],
        act: Activation,
        sites: [Option<Site>; 2],
        inputs: &Inputs,
    ) -> CpuTensor {
        let [gate, up] = [0, 1].map(|i| {
            let mut y = self.cpu.apply(&weights[i], x);
            self.add_adapted(&mut y, x, sites[i], inputs);
            y
        });
        self.cpu.multiply_gated(gate, &up, act)
    }

    fn kv_cache(&self, layout: KvLayout, num_blocks: usize, swap_blocks: usize) -> Result<CpuKvCache> {
        CpuKvCache::new(layout, num_blocks, swap_blocks)
    }

    fn upload(&self, batch: Batch, _rows: &[SampleRow<'_>]) -> Inputs {
        let spans = batch.spans.iter().map(|span| cpu::Span {
            start: span.start,
            len: span.len,
            context: span.context,
            table: span.table,
        });
        Inputs { spans: spans.collect(), batch, adapted: Vec::new() }
    }

    fn move_blocks(&self, cache: &mut CpuKvCache, inputs: &Inputs) {
        cache.move_blocks(&inputs.batch.moves);
    }

    fn shard(&self) -> Shard {
        self.rank.as_ref().map_or(Shard::WHOLE, WorkerRank::shard)
    }

    fn all_reduce(&self, x: &mut CpuTensor, part: Option<CpuTensor>) {
        let sum = |x: &mut CpuTensor| {
            if let Some(rank) = &self.rank {
                rank.sum(x.as_mut());
            }
        };
        match part {
            None => sum(x),
            Some(mut part) => {
                sum(&mut part);
                x.as_mut().iter_mut().zip(part.as_slice()).for_each(|(x, y)| *x += y);
            }
        }
    }

    fn gather_logits(&self, part: CpuTensor) -> CpuTensor {
        let Some(rank) = &self.rank else { return part };
        let rows = part.rows();
        rank.gather(rows, part.as_slice(), |cols| self.cpu.tensor(rows, cols)).unwrap_or(part)
    }

    fn embed_tokens(
        &self,
        table: &CpuWeight,
        vocab: Range<usize>,
        positions: Option<(&CpuWeight, usize)>,
        inputs: &Inputs,
    ) -> CpuTensor {
        let mut out = self.cpu.embed(table, vocab, &inputs.batch.tokens);
        if let Some((table, offset)) = positions {
            self.add_positions(&mut out, table, offset, inputs);
        }
        out
    }

    fn add_positions(&self, x: &mut CpuTensor, table: &CpuWeight, offset: usize, inputs: &Inputs) {
        self.cpu.add_positions(x, table, offset, &inputs.batch.positions);
    }

    fn linear(
        &self,
        x: &CpuTensor,
        weight: &CpuWeight,
        bias: Option<&CpuWeight>,
        act: Option<Activation>,
    ) -> CpuTensor {
        self.cpu.linear(x, weight, bias, act)
    }

    fn linear_add(&self, residual: &mut CpuTensor, x: &CpuTensor, weight: &CpuWeight, bias: Option<&CpuWeight>) {
        self.cpu.linear_add(residual, x, weight, bias);
    }

    fn gated(&self, x: &CpuTensor, weight: &[CpuProjection; 2], act: Activation) -> CpuTensor {
        self.cpu.gated(x, weight, act)
    }

    fn experts(&self, x: &CpuTensor, logits: &CpuTensor, weight: &CpuExperts, _: &Inputs) -> CpuTensor {
        self.cpu.experts(x, logits, weight)
    }

    fn qkv(&self, x: &CpuTensor, weight: &QkvProjections) -> Qkv {
        let query = self.cpu.apply(&weight.query, x);
        let kv = weight.key.as_ref().map(|key| {
            let key = self.cpu.apply(key, x);
            let value = match &weight.value {
                Some(value) => self.cpu.apply(value, x),
                None => self.cpu.copy(&key),
            };
            (key, Some(value))
        });
        Qkv { query, kv }
    }

    fn latent_qkv(&self, query: [&CpuTensor; 2], key: [&CpuTensor; 2], weight: &CpuLatent) -> Qkv {
        Qkv { query: self.cpu.latent_queries(query, weight), kv: Some((self.cpu.join(key), None)) }
    }

    fn latent_values(&self, attended: &CpuTensor, weight: &CpuLatent) -> CpuTensor {
        self.cpu.latent_values(attended, weight)
    }

    fn recurrent(
        &self,
        x: &CpuTensor,
        heads: Option<[&CpuTensor; 2]>,
        RecurrentWeight { state, norm, eps }: &RecurrentWeight,
        (cache, layer): (&mut CpuKvCache, usize),
        inputs: &Inputs,
    ) -> CpuTensor {
        let place = cache.layout.place(layer);
        let block_size = cache.layout.block_size;
        let (blocks, stride) = cache.states(place);
        let tables = &inputs.batch.groups[place.group].blocks;
        let states = cpu::States { blocks, stride, block_size, spans: &inputs.spans, tables };
        let mut y = self.cpu.recurrent(x, heads.map(|[steps, _]| steps), state, states);
        let (Some([_, gate]), Some(norm)) = (heads, norm) else { return y };
        if state.shape.kind == RecurrentKind::Mamba {
            self.cpu.gate(&mut y, gate);
            self.norm_heads(&mut y, norm, *eps, true);
        } else {
            self.cpu.head_norm(&mut y, norm, *eps);
            self.cpu.gate(&mut y, gate);
        }
        y
    }

    fn change(&self, x: &mut CpuTensor, change: Change<'_, CpuTensor>) {
        match change {
            Change::Scale(factor) => self.cpu.scale(x, factor),
            Change::Softcap(cap) => self.cpu.softcap(x, cap),
            Change::Add(y) => self.cpu.add(x, y),
            Change::Multiply { by, first, sigmoid } => self.cpu.multiply_by(x, by, first, sigmoid),
        }
    }

    fn norm(&self, x: &CpuTensor, norm: &Norm<CpuWeight>) -> CpuTensor {
        match norm {
            Norm::Layer { weight, bias, eps } => self.cpu.layer_norm(x, weight.as_ref(), bias.as_ref(), *eps),
            Norm::Rms { weight, eps } => self.cpu.rms_norm(x, weight, *eps),
        }
    }

    fn norm_rope_and_write_kv(
        &self,
        qkv: &mut Qkv,
        heads: QkNormRope<'_, CpuWeight>,
        cache: &mut CpuKvCache,
        layer: usize,
        inputs: &Inputs,
    ) {
        let place = cache.layout.place(layer);
        let head_dim = cache.layout.layer_shape(place.group).head_dim;
        if let Some(QkNorms { query, eps, rows, .. }) = heads.norms {
            self.norm_heads(&mut qkv.query, query, eps, rows);
        }
        let rotate = |x: &mut CpuTensor| {
            if let Some(rope) = &heads.rope {
                self.cpu.rope(x, head_dim, rope.angles, rope.adjacent, &inputs.batch.positions);
            }
        };
        rotate(&mut qkv.query);
        let Some((key, value)) = &mut qkv.kv else { return };
        if let Some(QkNorms { key: Some(weight), eps, rows, .. }) = heads.norms {
            self.norm_heads(key, weight, eps, rows);
        }
        rotate(key);
        if let (Some(eps), Some(value)) = (heads.value_eps, value.as_mut()) {
            self.cpu.unweighted_head_norm(value, head_dim, eps);
        }
        let value = value.as_ref().map_or(&[][..], CpuTensor::as_slice);
        cache.write(place, key.as_slice(), value, &inputs.batch.groups[place.group].slots);
    }

    fn attention(&self, qkv: &Qkv, cache: &CpuKvCache, params: Attention<'_, CpuWeight>, inputs: &Inputs) -> CpuTensor {
        let place = cache.layout.place(params.layer);
        let shape = cache.layout.layer_shape(place.group);
        let sinks = params.sinks.map(|sinks| sinks.to_f32());
        let params = cpu::Attention {
            layer: cache.layer(place),
            shape: &shape,
            spans: &inputs.spans,
            tables: &inputs.batch.groups[place.group].blocks,
            scale: params.scale,
            window: params.window,
            softcap: params.softcap,
            sinks: sinks.as_deref(),
        };
        self.cpu.attention(&qkv.query, params)
    }

    fn logit_rows(&self, x: &CpuTensor, inputs: &Inputs) -> CpuTensor {
        self.cpu.gather(x, &inputs.batch.logit_rows)
    }

    fn hidden_rows(&self, x: &CpuTensor, inputs: &Inputs) -> CpuTensor {
        self.cpu.gather(x, &inputs.batch.hidden_rows)
    }

    fn download(&self, x: &CpuTensor) -> Result<Vec<f32>> {
        Ok(x.as_slice().to_vec())
    }

    fn logits(&self, x: &CpuTensor, weight: &CpuWeight) -> CpuTensor {
        self.linear(x, weight, None, None)
    }

    fn sample(&self, logits: &CpuTensor, _inputs: &Inputs, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        thread_local! {
            static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let (logits, vocab) = (logits.as_slice(), logits.cols().max(1));
        let softmaxes = Softmax::of_rows(logits, vocab, self);
        let sampled = self.map(rows, |i, row| {
            let softmax = softmaxes[i].ok_or(Error::NotANumber)?;
            let logits = &logits[i * vocab..][..vocab];
            Ok(SCRATCH.with_borrow_mut(|scratch| softmax.sample(logits, row, scratch)))
        });
        sampled.into_iter().collect()
    }
}

impl Map for CpuBackend {
    fn map<T: Sync, R: Send>(&self, items: &[T], run: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
        let mut out: Vec<Option<R>> = items.iter().map(|_| None).collect();
        self.cpu.each(items.iter().zip(&mut out).enumerate(), |(i, (item, out))| *out = Some(run(i, item)));
        out.into_iter().flatten().collect()
    }
}
