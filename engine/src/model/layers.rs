//! The building blocks of the architectures, and loading their weights.

use std::ops::Range;

use crate::adapter::{Origin, Site, Sites};
use crate::backend::{Activation, Backend, Change, HostLinear, HostQkv, Norm};
use crate::config::{DecoderConfig, NormKind};
use crate::error::Result;
use crate::load::Weights;
use crate::tensor::HostTensor;

/// Takes weights by name, checks their shapes and copies them to the backend.
pub struct Loader<'a, B: Backend> {
    pub backend: &'a B,
    pub weights: &'a mut Weights,
    /// The matrices that adapters can change.
    pub sites: Sites,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub fn new(backend: &'a B, weights: &'a mut Weights) -> Self {
        Loader { backend, weights, sites: Sites::default() }
    }

    /// Lets adapters change a matrix, if it has an origin. Returns its site.
    pub fn site(&mut self, host: &HostLinear) -> Option<Site> {
        host.origin.clone().map(|origin| self.sites.add(origin))
    }
    /// Takes a tensor that is not a projection. If it is quantised it is decoded, because such tensors are small.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Result<B::Weight> {
        self.backend.weight(self.weights.take_elements(name, shape)?)
    }

    /// Takes a projection: `name.weight [outputs, inputs]` and, if `bias` is set, `name.bias [outputs]`.
    pub fn linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<Linear<B>> {
        let host = self.host_linear(name, outputs, inputs, bias)?;
        Linear::new(self, host)
    }

    /// Takes a projection without a bias that adapters cannot change.
    pub fn fixed_linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Linear<B>> {
        let host = self.host_linear(name, outputs, inputs, false)?;
        Linear::new(self, HostLinear::fixed(host.weight, None))
    }

    /// The sites of the projections to query, key and value.
    pub fn qkv_sites(&mut self, HostQkv { query, key, value }: &HostQkv) -> [Option<Site>; 3] {
        let [query, key, value] = [Some(query), key.as_ref(), value.as_ref()].map(|part| self.site(part?));
        // If the key's projection also gives the values, its adapter changes them too.
        [query, key, value.or(key)]
    }

    /// Takes the worker's part of a projection's outputs, divided evenly.
    pub fn share(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<HostLinear> {
        let own = self.backend.shard().even(outputs);
        Ok(self.host_linear(name, outputs, inputs, bias)?.outputs(own))
    }

    /// Takes the worker's part of a projection's inputs, divided evenly. The results are added to the residual stream.
    /// The inputs are heads or elements of a feed-forward layer.
    pub fn residual(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<ResidualLinear<B>> {
        let host = self.host_linear(name, outputs, inputs, bias)?;
        ResidualLinear::new(self, host)
    }

    /// Takes the part of a projection that computes the worker's heads among `heads` heads.
    pub fn heads(&mut self, name: &str, heads: usize, dim: usize, inputs: usize, bias: bool) -> Result<HostLinear> {
        let own = self.backend.shard().heads(heads);
        let linear = self.host_linear(name, heads * dim, inputs, bias)?;
        Ok(linear.outputs(own.start * dim..own.end * dim))
    }

    /// Takes the rows of an embedding for the worker's part of the vocabulary.
    pub fn embedding(&mut self, name: &str, vocab: usize, width: usize) -> Result<Embedding<B>> {
        let tokens = self.backend.shard().rows(vocab);
        Ok(Embedding { table: self.backend.weight(self.vocab_rows(name, vocab, width)?)?, tokens })
    }

    /// Takes the rows of a matrix for the worker's part of the vocabulary.
    fn vocab_rows(&mut self, name: &str, vocab: usize, width: usize) -> Result<HostTensor> {
        let tokens = self.backend.shard().rows(vocab);
        Ok(self.weights.take(name, &[vocab, width])?.into_rows(tokens))
    }

    /// Like [`Loader::linear`], but keeps the projection on the host.
    pub fn host_linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<HostLinear> {
        let weight = self.weights.take(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = if bias { Some(self.bias(name, outputs)?) } else { None };
        Ok(HostLinear { weight, bias, origin: Some(Origin::whole(name, outputs, inputs)) })
    }

    fn bias(&mut self, name: &str, outputs: usize) -> Result<HostTensor> {
        self.weights.take_elements(&format!("{name}.bias"), &[outputs])
    }

    /// Takes one of GPT-2's projections, which are stored transposed (`Conv1D`): `name.weight [inputs, outputs]`,
    /// `name.bias [outputs]`. In GGUF files and in quantised checkpoints they are not transposed.
    pub fn conv1d(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<HostLinear> {
        if self.weights.rows_are_outputs(&format!("{name}.weight")) {
            return self.host_linear(name, outputs, inputs, true);
        }
        let weight = self.weights.take(&format!("{name}.weight"), &[inputs, outputs])?.transposed();
        let origin = Some(Origin::whole(name, outputs, inputs));
        Ok(HostLinear { weight, bias: Some(self.bias(name, outputs)?), origin })
    }

    /// Takes the worker's part of the outputs of one of GPT-2's projections, divided evenly.
    pub fn conv1d_share(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Linear<B>> {
        let own = self.backend.shard().even(outputs);
        let host = self.conv1d(name, outputs, inputs)?.outputs(own);
        Linear::new(self, host)
    }

    /// Takes the worker's part of the inputs of one of GPT-2's projections, as [`Loader::residual`] does.
    pub fn conv1d_residual(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<ResidualLinear<B>> {
        let host = self.conv1d(name, outputs, inputs)?;
        ResidualLinear::new(self, host)
    }

    /// Takes `name.weight [width]` and `name.bias [width]`, or neither if `affine` is false.
    pub fn layer_norm(&mut self, name: &str, width: usize, affine: bool, eps: f32) -> Result<Norm<B::Weight>> {
        if !affine {
            return Ok(Norm::Layer { weight: None, bias: None, eps });
        }
        let weight = Some(self.weight(&format!("{name}.weight"), &[width])?);
        let bias = Some(self.weight(&format!("{name}.bias"), &[width])?);
        Ok(Norm::Layer { weight, bias, eps })
    }

    /// Takes the norm `name`: `name.weight [width]`.
    pub fn norm(&mut self, kind: NormKind, name: &str, width: usize, eps: f32) -> Result<Norm<B::Weight>> {
        let weight = self.norm_weight(kind, &format!("{name}.weight"), width)?;
        Ok(match kind {
            NormKind::Rms | NormKind::RmsPlusOne => Norm::Rms { weight, eps },
            NormKind::Layer => Norm::Layer { weight: Some(weight), bias: None, eps },
        })
    }

    /// Takes the factors of a norm, `[width]`.
    pub fn norm_weight(&mut self, kind: NormKind, name: &str, width: usize) -> Result<B::Weight> {
        let weight = self.host_norm_weight(kind, name, width)?;
        self.backend.norm_weight(weight)
    }

    /// Like [`Loader::norm_weight`], but keeps the factors on the host.
    pub fn host_norm_weight(&mut self, kind: NormKind, name: &str, width: usize) -> Result<HostTensor> {
        let weight = self.weights.take_elements(name, &[width])?;
        Ok(match kind {
            NormKind::Rms | NormKind::Layer => weight,
            // In f32, because the sum with 1 would lose the last bits of a 16-bit weight.
            NormKind::RmsPlusOne => {
                let factors = weight.elements().to_f32().into_iter().map(|w| 1.0 + w).collect();
                HostTensor::from_f32(vec![width], factors)
            }
        })
    }

    /// Takes the norm `part` of the layer `name`, if the layer has it.
    pub fn layer_part_norm(
        &mut self,
        decoder: &DecoderConfig,
        name: &str,
        part: Option<&str>,
        width: usize,
    ) -> Result<Option<Norm<B::Weight>>> {
        part.map(|part| self.norm(decoder.norm, &format!("{name}.{part}"), width, decoder.eps)).transpose()
    }

    /// Takes the `len` elements of a tensor. Other programs' files may store it with another shape.
    pub fn flat(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let fitting = self.weights.shape(name).filter(|shape| shape.iter().product::<usize>() == len);
        let shape = fitting.map_or_else(|| vec![len], <[usize]>::to_vec);
        Ok(self.weights.take_elements(name, &shape)?.elements().to_f32())
    }

    /// Takes a tensor of one number.
    pub fn scalar(&mut self, name: &str) -> Result<f32> {
        Ok(self.weights.take_elements(name, &[1])?.elements().to_f32()[0])
    }

    /// Takes the output matrix for the worker's part of the vocabulary. If it is tied, this is `embedding` itself.
    pub fn output(&mut self, tied: bool, embedding: &Embedding<B>, vocab: usize, width: usize) -> Result<B::Weight> {
        if tied {
            return self.backend.to_projection(embedding.table.clone(), true);
        }
        let rows = self.vocab_rows("lm_head.weight", vocab, width)?;
        self.backend.projection_weight(rows)
    }
}

/// A projection. Cloning shares its weights.
pub struct Linear<B: Backend> {
    pub weight: B::Weight,
    pub bias: Option<B::Weight>,
    /// `None` if adapters cannot change it.
    pub site: Option<Site>,
}

// A derived implementation would require `B: Clone`.
impl<B: Backend> Clone for Linear<B> {
    fn clone(&self) -> Self {
        Linear { weight: self.weight.clone(), bias: self.bias.clone(), site: self.site }
    }
}

impl<B: Backend> Linear<B> {
    pub fn new(l: &mut Loader<'_, B>, host: HostLinear) -> Result<Self> {
        let site = l.site(&host);
        let bias = host.bias.map(|bias| l.backend.weight(bias)).transpose()?;
        Ok(Linear { weight: l.backend.projection_weight(host.weight)?, bias, site })
    }

    pub fn apply(&self, b: &B, x: &B::Tensor, inputs: &B::Inputs) -> B::Tensor {
        self.project(b, x, None, inputs)
    }

    pub fn apply_act(&self, b: &B, x: &B::Tensor, act: Activation, inputs: &B::Inputs) -> B::Tensor {
        self.project(b, x, Some(act), inputs)
    }

    /// Like [`Linear::apply`], with results in f32.
    pub fn apply_f32(&self, b: &B, x: &B::Tensor, inputs: &B::Inputs) -> B::Tensor {
        let mut y = b.linear_f32(x, &self.weight, self.bias.as_ref());
        if b.is_adapted(&[self.site], inputs) {
            b.add_adapted(&mut y, x, self.site, inputs);
        }
        y
    }

    fn project(&self, b: &B, x: &B::Tensor, act: Option<Activation>, inputs: &B::Inputs) -> B::Tensor {
        if b.is_adapted(&[self.site], inputs) {
            return b.linear_adapted(x, (&self.weight, self.bias.as_ref()), act, self.site, inputs);
        }
        b.linear(x, &self.weight, self.bias.as_ref(), act)
    }
}

/// The residual stream, `[T, H]`. Layers read it through a norm and add their results to it.
///
/// The last addition is pending until the stream is read. It can then be computed together with the norm that usually
/// follows.
pub struct Residual<B: Backend> {
    x: B::Tensor,
    pending: Pending<B>,
}

/// An addition to the stream that has not been computed yet.
enum Pending<B: Backend> {
    /// No addition.
    None,
    /// Add a projection of this tensor.
    Projection(B::Tensor, Linear<B>),
    /// Add the sum of all workers' parts. This is the worker's part.
    Part(B::Tensor),
    /// Replace the stream by the sum of all workers' streams.
    Sum,
    /// Add this tensor, which is the same for all workers.
    Addend(B::Tensor),
}

impl<B: Backend> Residual<B> {
    /// Creates a stream from `x`, which is the same for all workers.
    pub fn new(x: B::Tensor) -> Self {
        Residual { x, pending: Pending::None }
    }

    /// Creates a stream from the sum of all workers' `x`.
    fn of_parts(b: &B, x: B::Tensor) -> Self {
        Residual { x, pending: if b.shard().is_whole() { Pending::None } else { Pending::Sum } }
    }

    /// Completes the pending addition and returns the stream.
    pub fn sum(&mut self, b: &B) -> &B::Tensor {
        match std::mem::replace(&mut self.pending, Pending::None) {
            Pending::None => {}
            Pending::Projection(y, linear) => b.linear_add(&mut self.x, &y, &linear.weight, linear.bias.as_ref()),
            Pending::Part(part) => b.all_reduce(&mut self.x, Some(part)),
            Pending::Sum => b.all_reduce(&mut self.x, None),
            Pending::Addend(y) => b.change(&mut self.x, Change::Add(&y)),
        }
        &self.x
    }

    /// Adds the sum of all workers' `part` to the stream.
    pub fn add_part(&mut self, b: &B, part: B::Tensor) {
        if b.shard().is_whole() {
            return self.add(b, part);
        }
        self.sum(b);
        self.pending = Pending::Part(part);
    }

    /// Multiplies the stream by a factor.
    pub fn scale(&mut self, b: &B, factor: f32) {
        if factor != 1.0 {
            self.sum(b);
            b.change(&mut self.x, Change::Scale(factor));
        }
    }

    /// Adds `y`, which is the same for all workers, to the stream.
    pub fn add(&mut self, b: &B, y: B::Tensor) {
        self.sum(b);
        self.pending = Pending::Addend(y);
    }

    /// Completes the pending addition and returns the norm of the stream.
    pub fn norm(&mut self, b: &B, norm: &Norm<B::Weight>) -> B::Tensor {
        match std::mem::replace(&mut self.pending, Pending::None) {
            Pending::None => b.norm(&self.x, norm),
            Pending::Projection(y, linear) => {
                let Linear { weight, bias, .. } = &linear;
                if let Some(normed) = b.linear_add_norm(&mut self.x, &y, weight, bias.as_ref(), norm) {
                    return normed;
                }
                self.pending = Pending::Projection(y, linear);
                b.norm(self.sum(b), norm)
            }
            Pending::Part(part) => b.all_reduce_norm(&mut self.x, Some(part), norm),
            Pending::Sum => b.all_reduce_norm(&mut self.x, None, norm),
            Pending::Addend(y) => b.add_norm(&mut self.x, y, norm),
        }
    }

    /// Completes the pending addition and returns the stream by value.
    pub fn into_sum(mut self, b: &B) -> B::Tensor {
        self.sum(b);
        self.x
    }
}

/// A projection whose inputs are divided among workers, added to the residual stream. Each worker computes a part of
/// the sum. The first worker's part includes the bias.
pub struct ResidualLinear<B: Backend>(Linear<B>);

impl<B: Backend> ResidualLinear<B> {
    /// Takes the worker's part of the inputs, divided evenly.
    pub fn new(l: &mut Loader<'_, B>, host: HostLinear) -> Result<Self> {
        let (shard, inputs) = (l.backend.shard(), host.weight.shape()[1]);
        let own = host.inputs(shard.even(inputs))?;
        Ok(ResidualLinear(Linear::new(l, own)?))
    }

    /// Adds `self(x)` to the residual stream.
    pub fn add_to(&self, b: &B, residual: &mut Residual<B>, x: B::Tensor, inputs: &B::Inputs) {
        residual.sum(b);
        let Linear { weight, bias, site } = &self.0;
        if !b.shard().is_whole() {
            residual.pending = Pending::Part(self.0.apply(b, &x, inputs));
        } else if b.is_adapted(&[*site], inputs) {
            // Other tokens get the same bits as in a step without adapters.
            b.linear_add(&mut residual.x, &x, weight, bias.as_ref());
            b.add_adapted(&mut residual.x, &x, *site, inputs);
        } else {
            residual.pending = Pending::Projection(x, self.0.clone());
        }
    }
}

/// The end of a part of a layer: a projection whose result is normalised, scaled and added to the residual stream.
pub struct Branch<B: Backend> {
    pub linear: ResidualLinear<B>,
    pub norm: Option<Norm<B::Weight>>,
    pub multiplier: f32,
}

impl<B: Backend> Branch<B> {
    /// Adds the branch for input `x` to the stream.
    pub fn add_to(&self, b: &B, residual: &mut Residual<B>, x: B::Tensor, inputs: &B::Inputs) {
        if self.norm.is_none() && self.multiplier == 1.0 {
            return self.linear.add_to(b, residual, x, inputs);
        }
        let y = self.compute(b, &x, inputs);
        residual.add(b, y);
    }

    /// Computes the branch for input `x`.
    pub fn compute(&self, b: &B, x: &B::Tensor, inputs: &B::Inputs) -> B::Tensor {
        finish(b, sum_parts(b, self.linear.0.apply(b, x, inputs)), self.norm.as_ref(), self.multiplier)
    }
}

/// Returns the sum of all workers' `part`.
pub fn sum_parts<B: Backend>(b: &B, mut part: B::Tensor) -> B::Tensor {
    if !b.shard().is_whole() {
        b.all_reduce(&mut part, None);
    }
    part
}

/// Returns the norm of `x`, times a factor.
pub fn finish<B: Backend>(b: &B, x: B::Tensor, norm: Option<&Norm<B::Weight>>, multiplier: f32) -> B::Tensor {
    let mut y = match norm {
        Some(norm) => b.norm(&x, norm),
        None => x,
    };
    if multiplier != 1.0 {
        b.change(&mut y, Change::Scale(multiplier));
    }
    y
}

/// The rows of an embedding for a worker's part of the vocabulary.
pub struct Embedding<B: Backend> {
    pub table: B::Weight,
    tokens: Range<usize>,
}

impl<B: Backend> Embedding<B> {
    /// Embeds the new tokens: `[T, H]`. `positions` is an optional table whose rows are added, and the offset from
    /// positions to its rows.
    pub fn apply(&self, b: &B, positions: Option<(&B::Weight, usize)>, inputs: &B::Inputs) -> Residual<B> {
        let positions = positions.filter(|_| b.shard().is_first());
        Residual::of_parts(b, b.embed_tokens(&self.table, self.tokens.clone(), positions, inputs))
    }
}
