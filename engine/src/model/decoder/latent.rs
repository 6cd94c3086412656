//! Attention over latent vectors (DeepSeek-V2, 2024): keys and values of all heads are projections of one short vector
//! per token, and only this vector and a rotated key are cached. The projections are applied to queries and results
//! instead of keys and values, which gives the same scores and sums.

use crate::backend::{Attention, Backend, HostLinear, Norm, QkNormRope, Rotation};
use crate::config::{DecoderConfig, Latent, NormKind};
use crate::error::{Error, Result};
use crate::model::layers::{Branch, Linear, Loader};

/// The epsilon of the norms of latent vectors.
const EPS: f32 = 1e-6;

/// The weights of one layer's attention.
pub struct LatentAttention<B: Backend> {
    /// A projection of the input of the queries' projections, and its norm.
    query_input: Option<(Linear<B>, Norm<B::Weight>)>,
    /// The rotated and the other part of queries.
    query: [Linear<B>; 2],
    rotated_key: Linear<B>,
    latent: Linear<B>,
    latent_norm: Norm<B::Weight>,
    heads: B::LatentWeight,
    pub out: Branch<B>,
    pub rope: Option<usize>,
    adjacent: bool,
    scale: f32,
}

impl<B: Backend> LatentAttention<B> {
    pub fn load(
        l: &mut Loader<'_, B>,
        hidden: usize,
        decoder: &DecoderConfig,
        i: usize,
        latent: Latent,
    ) -> Result<Self> {
        let (layer, name, bias) = (&decoder.layers[i], format!("layers.{i}.self_attn"), decoder.qkv_bias);
        let Latent { query_rank, rank, rotated, value, .. } = latent;
        let query_input = match query_rank {
            None => None,
            Some(query_rank) => {
                let linear = l.linear(&format!("{name}.q_a_proj"), query_rank, hidden, bias)?;
                Some((linear, l.norm(NormKind::Rms, &format!("{name}.q_a_layernorm"), query_rank, EPS)?))
            }
        };
        let part = if query_rank.is_some() { "q_b_proj" } else { "q_proj" };
        let query = l.latent_query(&format!("{name}.{part}"), layer.heads, query_rank.unwrap_or(hidden), latent)?;
        let both = l.host_linear(&format!("{name}.kv_a_proj_with_mqa"), rank + rotated, hidden, bias)?;
        let heads = l.latent_heads(&name, layer.heads, latent)?;
        let [query_rotated, query_unrotated] = query;
        Ok(LatentAttention {
            query_input,
            query: [Linear::new(l, query_rotated)?, Linear::new(l, query_unrotated)?],
            rotated_key: Linear::new(l, both.part(rank..rank + rotated))?,
            latent: Linear::new(l, both.part(0..rank))?,
            latent_norm: l.norm(NormKind::Rms, &format!("{name}.kv_a_layernorm"), rank, EPS)?,
            heads,
            out: l.attention_out(decoder, i, [hidden, layer.heads * value])?,
            rope: layer.rope,
            adjacent: layer.rope.is_some_and(|rope| decoder.ropes[rope].adjacent),
            scale: layer.scale,
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
        let projected = self.query_input.as_ref().map(|(linear, norm)| b.norm(&linear.apply(b, x, inputs), norm));
        let query_input = projected.as_ref().unwrap_or(x);
        let query = self.query.each_ref().map(|linear| linear.apply(b, query_input, inputs));
        let key = [self.rotated_key.apply(b, x, inputs), b.norm(&self.latent.apply(b, x, inputs), &self.latent_norm)];
        let mut qkv = b.latent_qkv(query.each_ref(), key.each_ref(), &self.heads);
        let rope = angles.map(|angles| Rotation { angles, adjacent: self.adjacent });
        b.norm_rope_and_write_kv(&mut qkv, QkNormRope { rope, ..QkNormRope::default() }, cache, i, inputs);
        let attended = b.attention(&qkv, cache, Attention::plain(i, self.scale), inputs);
        b.latent_values(&attended, &self.heads)
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Takes the rotated and the other part of the worker's queries. In files, the rotated part of each head is the last.
    fn latent_query(&mut self, name: &str, heads: usize, inputs: usize, latent: Latent) -> Result<[HostLinear; 2]> {
        let Latent { rotated, unrotated, .. } = latent;
        let each = rotated + unrotated;
        let own = self.backend.shard().heads(heads);
        let linear = self.host_linear(name, heads * each, inputs, false)?.outputs(own.start * each..own.end * each);
        let split = own.len() * rotated;
        let all = linear.reordered(|row| match row.checked_sub(split) {
            None => row / rotated * each + unrotated + row % rotated,
            Some(row) => row / unrotated * each + row % unrotated,
        });
        Ok([all.part(0..split), all.part(split..own.len() * each)])
    }

    /// Takes the projections from latent vectors to keys and values of the worker's heads. In GGUF files, two stacks have
    /// the matrices of keys, transposed, and of values.
    fn latent_heads(&mut self, name: &str, heads: usize, latent: Latent) -> Result<B::LatentWeight> {
        let Latent { rank, unrotated, value, .. } = latent;
        let own = self.backend.shard().heads(heads);
        let [both, keys, values] = ["kv_b", "k_b", "v_b"].map(|part| format!("{name}.{part}_proj.weight"));
        if self.weights.contains(&keys) {
            let [keys, values] = [(&keys, [rank, unrotated]), (&values, [value, rank])].map(|(name, [rows, cols])| {
                let is_flat = self.weights.shape(name).is_some_and(|shape| shape.len() == 2);
                let shape = if is_flat { vec![heads * rows, cols] } else { vec![heads, rows, cols] };
                let own = self.weights.take(name, &shape)?.into_matrices(rows).drain(own.clone()).collect();
                Ok::<Vec<_>, Error>(own)
            });
            return self.backend.latent_weight(latent, keys?, values?);
        }
        let weight = self.weights.take_elements(&both, &[heads * (unrotated + value), rank])?;
        let matrices = &weight.into_matrices(unrotated + value)[own];
        let queries = matrices.iter().map(|matrix| matrix.rows(0..unrotated).transposed()).collect();
        let values = matrices.iter().map(|matrix| matrix.rows(unrotated..unrotated + value)).collect();
        self.backend.latent_weight(latent, queries, values)
    }
}
