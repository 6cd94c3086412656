//! The attention of a layer: projections, the norms and the rotation of heads, and the projection back to the stream.

use super::latent::LatentAttention;
use super::recurrent::RecurrentLayer;
use crate::adapter::Site;
use crate::backend::{Attention, Backend, Change, HostLinear, HostQkv, QkNormRope, QkNorms, Rotation};
use crate::config::{DecoderConfig, DecoderLayer, HeadNorm, Rope};
use crate::error::Result;
use crate::model::layers::{Branch, Linear, Loader, ResidualLinear};
use crate::tensor::HostTensor;

/// The part of a layer that mixes tokens: attention over the heads' keys and values or over latent vectors, or a state.
pub enum LayerAttention<B: Backend> {
    Heads(AttentionLayer<B>),
    Latent(LatentAttention<B>),
    Recurrent(RecurrentLayer<B>),
}

impl<B: Backend> LayerAttention<B> {
    pub fn load(l: &mut Loader<'_, B>, hidden: usize, decoder: &DecoderConfig, i: usize) -> Result<Self> {
        Ok(match (decoder.layers[i].recurrent, decoder.latent) {
            (Some(layer), _) => LayerAttention::Recurrent(RecurrentLayer::load(l, hidden, decoder, i, layer)?),
            (None, None) => LayerAttention::Heads(AttentionLayer::load(l, hidden, decoder, i)?),
            (None, Some(latent)) => LayerAttention::Latent(LatentAttention::load(l, hidden, decoder, i, latent)?),
        })
    }

    /// Computes the attention of layer `i` for input `x`. `angles` is the table of its rotation.
    pub fn apply(
        &self,
        b: &B,
        cache: &mut B::KvCache,
        layer: (usize, Option<&B::Weight>),
        x: &B::Tensor,
        inputs: &B::Inputs,
    ) -> B::Tensor {
        match self {
            LayerAttention::Heads(heads) => heads.apply(b, cache, layer, x, inputs),
            LayerAttention::Latent(latent) => latent.apply(b, cache, layer, x, inputs),
            LayerAttention::Recurrent(recurrent) => recurrent.apply(b, cache, layer.0, x, inputs),
        }
    }

    /// Index of the table of angles.
    pub fn rope(&self) -> Option<usize> {
        match self {
            LayerAttention::Heads(heads) => heads.rope,
            LayerAttention::Latent(latent) => latent.rope,
            LayerAttention::Recurrent(_) => None,
        }
    }

    /// The projection of the result to the residual stream.
    pub fn out(&self) -> &Branch<B> {
        match self {
            LayerAttention::Heads(heads) => &heads.out,
            LayerAttention::Latent(latent) => &latent.out,
            LayerAttention::Recurrent(recurrent) => &recurrent.out,
        }
    }
}

/// The weights of one layer's attention, and its settings.
pub struct AttentionLayer<B: Backend> {
    qkv: B::QkvWeight,
    qkv_sites: [Option<Site>; 3],
    /// The norms of queries and, unless the layer reads another layer's cache, of keys.
    norms: Option<(B::Weight, Option<B::Weight>)>,
    norms_rows: bool,
    sinks: Option<B::Weight>,
    /// The logistic function of this projection multiplies the results of heads.
    gate: Option<Linear<B>>,
    pub out: Branch<B>,
    /// Index of the table of angles.
    pub rope: Option<usize>,
    adjacent: bool,
    eps: f32,
    value_norm: bool,
    scale: f32,
    window: Option<usize>,
    softcap: Option<f32>,
}

/// The order of the elements of query and key heads. Some devices need the elements of a rotated pair to be adjacent. The
/// same order in queries and keys does not change their dot products.
#[derive(Clone, Copy)]
struct HeadOrder {
    head_dim: usize,
    /// The first elements of a head, whose order changes: of each half, one element after the other.
    interleaved: usize,
    /// Whether the elements of a pair are adjacent, in this order.
    is_adjacent: bool,
}

impl HeadOrder {
    fn new<B: Backend>(backend: &B, decoder: &DecoderConfig, layer: &DecoderLayer) -> Self {
        let rope = layer.rope.map(|rope| &decoder.ropes[rope]);
        let changes = |rope: &&Rope| !rope.adjacent && backend.needs_adjacent_pairs(rope.rotated);
        let interleaved = rope.filter(changes).map_or(0, |rope| rope.rotated);
        let is_adjacent = interleaved > 0 || rope.is_some_and(|rope| rope.adjacent);
        HeadOrder { head_dim: layer.head_dim, interleaved, is_adjacent }
    }

    /// Reorders the rows of a matrix, or the elements of a vector, that consists of heads.
    fn rows(self, tensor: HostTensor) -> HostTensor {
        if self.interleaved == 0 { tensor } else { tensor.reordered(|row| self.row(row)) }
    }

    /// The row that comes to the place of `row`.
    fn row(self, row: usize) -> usize {
        match row % self.head_dim {
            i if i < self.interleaved => row - i + i % 2 * (self.interleaved / 2) + i / 2,
            _ => row,
        }
    }

    /// Reorders the outputs of a projection to heads.
    fn linear(self, linear: HostLinear) -> HostLinear {
        if self.interleaved == 0 { linear } else { linear.reordered(|row| self.row(row)) }
    }
}

impl<B: Backend> AttentionLayer<B> {
    pub fn load(l: &mut Loader<'_, B>, hidden: usize, decoder: &DecoderConfig, i: usize) -> Result<Self> {
        let (layer, name) = (&decoder.layers[i], format!("layers.{i}.self_attn"));
        let writes = layer.source == i;
        let order = HeadOrder::new(l.backend, decoder, layer);
        let gate =
            if decoder.attention_gate { Some(l.gated_query(&name, layer, hidden, decoder.qkv_bias)?) } else { None };
        let (query, gate) = gate.unzip();
        let mut qkv = l.qkv(&name, (layer, query), writes, hidden, decoder.qkv_bias)?;
        qkv.query = order.linear(qkv.query);
        qkv.key = qkv.key.map(|key| order.linear(key));
        let DecoderLayer { heads, kv_heads, head_dim, .. } = *layer;
        let norms = if decoder.head_norm == HeadNorm::None {
            None
        } else {
            let query = l.head_weight(decoder, &format!("{name}.q_norm.weight"), heads, order)?;
            let key = || l.head_weight(decoder, &format!("{name}.k_norm.weight"), kv_heads, order);
            Some((query, writes.then(key).transpose()?))
        };
        Ok(AttentionLayer {
            qkv_sites: l.qkv_sites(&qkv),
            qkv: l.backend.qkv_weight(qkv)?,
            norms,
            norms_rows: decoder.head_norm == HeadNorm::Row,
            sinks: if decoder.sinks { Some(l.per_head(&format!("{name}.sinks"), heads)?) } else { None },
            gate: gate.map(|gate| Linear::new(l, gate)).transpose()?,
            out: l.attention_out(decoder, i, [hidden, heads * head_dim])?,
            rope: layer.rope,
            adjacent: order.is_adjacent,
            eps: decoder.eps,
            value_norm: decoder.value_norm,
            scale: layer.scale,
            window: layer.window,
            softcap: decoder.softcap,
        })
    }

    /// Computes the attention of layer `i` for input `x`. `angles` is the table of its rotation.
    pub fn apply(
        &self,
        b: &B,
        cache: &mut B::KvCache,
        (i, angles): (usize, Option<&B::Weight>),
        x: &B::Tensor,
        inputs: &B::Inputs,
    ) -> B::Tensor {
        let mut qkv = b.qkv(x, &self.qkv);
        if b.is_adapted(&self.qkv_sites, inputs) {
            b.add_adapted_qkv(&mut qkv, x, self.qkv_sites, inputs);
        }
        let norms = self.norms.as_ref().map(|(query, key)| QkNorms {
            query,
            key: key.as_ref(),
            eps: self.eps,
            rows: self.norms_rows,
        });
        let heads = QkNormRope {
            norms,
            value_eps: self.value_norm.then_some(self.eps),
            rope: angles.map(|angles| Rotation { angles, adjacent: self.adjacent }),
        };
        b.norm_rope_and_write_kv(&mut qkv, heads, cache, i, inputs);
        let params = Attention {
            layer: i,
            scale: self.scale,
            window: self.window,
            softcap: self.softcap,
            sinks: self.sinks.as_ref(),
        };
        let mut attended = b.attention(&qkv, cache, params, inputs);
        if let Some(gate) = &self.gate {
            let gate = gate.apply(b, x, inputs);
            b.change(&mut attended, Change::Multiply { by: &gate, first: 0, sigmoid: true });
        }
        attended
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Takes the projection of layer `i` from the heads' results back to the stream.
    pub(super) fn attention_out(
        &mut self,
        decoder: &DecoderConfig,
        i: usize,
        [hidden, inputs]: [usize; 2],
    ) -> Result<Branch<B>> {
        let host = self.host_linear(&format!("layers.{i}.self_attn.o_proj"), hidden, inputs, decoder.o_bias)?;
        self.branch(decoder, i, host)
    }

    /// Makes the projection of layer `i` back to the stream.
    pub(super) fn branch(&mut self, decoder: &DecoderConfig, i: usize, host: HostLinear) -> Result<Branch<B>> {
        let (after, hidden) = (decoder.layer_norms.after_attention, host.weight.shape()[0]);
        Ok(Branch {
            linear: ResidualLinear::new(self, host)?,
            norm: self.layer_part_norm(decoder, &format!("layers.{i}"), after, hidden)?,
            multiplier: decoder.residual_multiplier,
        })
    }

    /// Takes the projections to the queries and gates of the worker's heads. They are rows of one matrix: for each head its
    /// query, then its gate.
    fn gated_query(
        &mut self,
        name: &str,
        layer: &DecoderLayer,
        inputs: usize,
        bias: bool,
    ) -> Result<(HostLinear, HostLinear)> {
        let (dim, own) = (layer.head_dim, self.backend.shard().heads(layer.heads));
        let both = self.host_linear(&format!("{name}.q_proj"), 2 * layer.heads * dim, inputs, bias)?;
        let rows = |part: usize| (own.start * dim..own.end * dim).map(move |i| (i / dim * 2 + part) * dim + i % dim);
        Ok((both.gathered(rows(0)), both.gathered(rows(1))))
    }

    /// Takes the worker's part of the projections to query, key and value. They are separate or fused in one matrix. A
    /// layer that does not write to the cache has no keys and values. `query` is the query projection if the caller has
    /// already taken it.
    fn qkv(
        &mut self,
        name: &str,
        (layer, query): (&DecoderLayer, Option<HostLinear>),
        writes: bool,
        inputs: usize,
        bias: bool,
    ) -> Result<HostQkv> {
        let DecoderLayer { heads, kv_heads, head_dim: dim, value_is_key, .. } = *layer;
        let fused = format!("{name}.qkv_proj");
        if !self.weights.contains(&format!("{fused}.weight")) {
            let mut part = |part: &str, heads| self.heads(&format!("{name}.{part}"), heads, dim, inputs, bias);
            return Ok(HostQkv {
                query: query.map_or_else(|| part("q_proj", heads), Ok)?,
                key: writes.then(|| part("k_proj", kv_heads)).transpose()?,
                value: (writes && !value_is_key).then(|| part("v_proj", kv_heads)).transpose()?,
            });
        }
        let fused = self.host_linear(&fused, (heads + 2 * kv_heads) * dim, inputs, bias)?;
        let part = |first: usize, heads: usize| -> HostLinear {
            let own = self.backend.shard().heads(heads);
            fused.part((first + own.start) * dim..(first + own.end) * dim)
        };
        // A layer that reads another layer's cache must not write to it.
        let key = writes.then(|| part(heads, kv_heads));
        let value = (writes && !value_is_key).then(|| part(heads + kv_heads, kv_heads));
        Ok(HostQkv { query: part(0, heads), key, value })
    }

    /// Takes the weight of the norm of `heads` heads: of a head, or the worker's part of a row of heads.
    fn head_weight(
        &mut self,
        decoder: &DecoderConfig,
        name: &str,
        heads: usize,
        order: HeadOrder,
    ) -> Result<B::Weight> {
        let dim = order.head_dim;
        let weight = match decoder.head_norm {
            HeadNorm::Row => {
                let own = self.backend.shard().heads(heads);
                self.host_norm_weight(decoder.norm, name, heads * dim)?.into_rows(own.start * dim..own.end * dim)
            }
            HeadNorm::Head | HeadNorm::None => self.host_norm_weight(decoder.norm, name, dim)?,
        };
        self.backend.norm_weight(order.rows(weight))
    }

    /// Takes the worker's part of a weight that has an element for each of `heads` heads. It becomes f32, the type of
    /// scores.
    fn per_head(&mut self, name: &str, heads: usize) -> Result<B::Weight> {
        let own = self.backend.shard().heads(heads);
        let weight = self.weights.take_elements(name, &[heads])?.into_rows(own);
        self.backend.weight(HostTensor::from_f32(weight.shape().to_vec(), weight.elements().to_f32()))
    }
}
