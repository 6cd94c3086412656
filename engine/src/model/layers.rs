//! What the architectures are built from, and how its weights are taken.

use std::ops::Range;

use crate::backend::{Activation, Backend, HostLinear, Norm};
use crate::error::Result;
use crate::load::Weights;
use crate::tensor::HostTensor;

/// Takes weights by name, checks their shapes and moves them to the backend.
pub struct Loader<'a, B: Backend> {
    pub backend: &'a B,
    pub weights: &'a mut Weights,
}

impl<B: Backend> Loader<'_, B> {
    /// A tensor that is no projection's. If it is quantised, it no longer is: such tensors are small.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Result<B::Weight> {
        self.backend.weight(self.weights.take_elements(name, shape)?)
    }

    /// `name.weight [outputs, inputs]` and, if there is to be one, `name.bias [outputs]`.
    pub fn linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<Linear<B>> {
        let host = self.host_linear(name, outputs, inputs, bias)?;
        Linear::new(self.backend, host)
    }

    /// The worker's even part of a projection's outputs.
    pub fn share(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<HostLinear> {
        let own = self.backend.shard().even(outputs);
        Ok(self.host_linear(name, outputs, inputs, bias)?.outputs(own))
    }

    /// The worker's even part of a projection's inputs, whose results are added to the residual stream. Inputs are those of
    /// heads, or of a feed-forward layer.
    pub fn residual(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<ResidualLinear<B>> {
        let host = self.host_linear(name, outputs, inputs, bias)?;
        ResidualLinear::new(self.backend, host)
    }

    /// A worker's heads among `heads` heads: the part of a projection to them that gives these.
    pub fn heads(&mut self, name: &str, heads: usize, dim: usize, inputs: usize, bias: bool) -> Result<HostLinear> {
        let own = self.backend.shard().heads(heads);
        let linear = self.host_linear(name, heads * dim, inputs, bias)?;
        Ok(linear.outputs(own.start * dim..own.end * dim))
    }

    /// The rows of the embedding of the worker's part of the vocabulary.
    pub fn embedding(&mut self, name: &str, vocab: usize, width: usize) -> Result<Embedding<B>> {
        let tokens = self.backend.shard().rows(vocab);
        Ok(Embedding { table: self.backend.weight(self.vocab_rows(name, vocab, width)?)?, tokens })
    }

    /// The rows of a matrix for the worker's part of the vocabulary.
    fn vocab_rows(&mut self, name: &str, vocab: usize, width: usize) -> Result<HostTensor> {
        let tokens = self.backend.shard().rows(vocab);
        Ok(self.weights.take(name, &[vocab, width])?.into_rows(tokens))
    }

    /// As [`Loader::linear`], still on the host.
    pub fn host_linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<HostLinear> {
        let weight = self.weights.take(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = if bias { Some(self.bias(name, outputs)?) } else { None };
        Ok(HostLinear { weight, bias })
    }

    fn bias(&mut self, name: &str, outputs: usize) -> Result<HostTensor> {
        self.weights.take_elements(&format!("{name}.bias"), &[outputs])
    }

    /// GPT-2 stores its projections transposed (`Conv1D`): `name.weight [inputs, outputs]`, `name.bias [outputs]`. In GGUF
    /// files, and where they are quantised, they are not.
    pub fn conv1d(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<HostLinear> {
        if self.weights.rows_are_outputs(&format!("{name}.weight")) {
            return self.host_linear(name, outputs, inputs, true);
        }
        let weight = self.weights.take(&format!("{name}.weight"), &[inputs, outputs])?.transposed();
        Ok(HostLinear { weight, bias: Some(self.bias(name, outputs)?) })
    }

    /// `name.weight [width]` and `name.bias [width]`, or neither.
    pub fn layer_norm(&mut self, name: &str, width: usize, affine: bool, eps: f32) -> Result<Norm<B::Weight>> {
        if !affine {
            return Ok(Norm::Layer { weight: None, bias: None, eps });
        }
        let weight = Some(self.weight(&format!("{name}.weight"), &[width])?);
        let bias = Some(self.weight(&format!("{name}.bias"), &[width])?);
        Ok(Norm::Layer { weight, bias, eps })
    }

    /// `name.weight [width]`
    pub fn rms_norm(&mut self, name: &str, width: usize, eps: f32) -> Result<Norm<B::Weight>> {
        Ok(Norm::Rms { weight: self.weight(&format!("{name}.weight"), &[width])?, eps })
    }

    /// The output matrix, of the worker's part of the vocabulary: `embedding` itself if the two are tied.
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
}

// Derived, it would ask the same of the backend.
impl<B: Backend> Clone for Linear<B> {
    fn clone(&self) -> Self {
        Linear { weight: self.weight.clone(), bias: self.bias.clone() }
    }
}

impl<B: Backend> Linear<B> {
    pub fn new(backend: &B, host: HostLinear) -> Result<Self> {
        let bias = host.bias.map(|bias| backend.weight(bias)).transpose()?;
        Ok(Linear { weight: backend.projection_weight(host.weight)?, bias })
    }

    pub fn apply(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        b.linear(x, &self.weight, self.bias.as_ref(), None)
    }

    pub fn apply_act(&self, b: &B, x: &B::Tensor, act: Activation) -> B::Tensor {
        b.linear(x, &self.weight, self.bias.as_ref(), Some(act))
    }
}

/// The residual stream, `[T, H]`: what layers read, each through a norm, and add their results to.
///
/// What was added last is computed when the stream is read: together with the norm, since that is how it is mostly read.
pub struct Residual<B: Backend> {
    x: B::Tensor,
    rest: Rest<B>,
}

/// What is still to be done to a stream.
enum Rest<B: Backend> {
    /// Nothing.
    None,
    /// To add a projection of this tensor.
    Projection(B::Tensor, Linear<B>),
    /// To add the sum of all workers' parts, of which this is the worker's.
    Part(B::Tensor),
    /// To add up all workers' streams.
    Sum,
}

impl<B: Backend> Residual<B> {
    /// A stream that begins with `x`, the same for all workers.
    pub fn new(x: B::Tensor) -> Self {
        Residual { x, rest: Rest::None }
    }

    /// A stream that begins with the sum of all workers' `x`.
    fn of_parts(b: &B, x: B::Tensor) -> Self {
        Residual { x, rest: if b.shard().is_whole() { Rest::None } else { Rest::Sum } }
    }

    /// What is in the stream.
    pub fn sum(&mut self, b: &B) -> &B::Tensor {
        match std::mem::replace(&mut self.rest, Rest::None) {
            Rest::None => {}
            Rest::Projection(y, linear) => b.linear_add(&mut self.x, &y, &linear.weight, linear.bias.as_ref()),
            Rest::Part(part) => b.all_reduce(&mut self.x, Some(part)),
            Rest::Sum => b.all_reduce(&mut self.x, None),
        }
        &self.x
    }

    /// The norm of what is in the stream.
    pub fn norm(&mut self, b: &B, norm: &Norm<B::Weight>) -> B::Tensor {
        match std::mem::replace(&mut self.rest, Rest::None) {
            Rest::None => b.norm(&self.x, norm),
            Rest::Projection(y, linear) => {
                let Linear { weight, bias } = &linear;
                if let Some(normed) = b.linear_add_norm(&mut self.x, &y, weight, bias.as_ref(), norm) {
                    return normed;
                }
                self.rest = Rest::Projection(y, linear);
                b.norm(self.sum(b), norm)
            }
            Rest::Part(part) => b.all_reduce_norm(&mut self.x, Some(part), norm),
            Rest::Sum => b.all_reduce_norm(&mut self.x, None, norm),
        }
    }

    /// What is in the stream at its end.
    pub fn into_sum(mut self, b: &B) -> B::Tensor {
        self.sum(b);
        self.x
    }
}

/// A projection whose inputs are divided among workers, added to the residual stream. Each computes a part of the sum; the
/// first one's includes the bias.
pub struct ResidualLinear<B: Backend>(Linear<B>);

impl<B: Backend> ResidualLinear<B> {
    /// The worker's even part of the inputs.
    pub fn new(backend: &B, host: HostLinear) -> Result<Self> {
        let (shard, inputs) = (backend.shard(), host.weight.shape()[1]);
        Ok(ResidualLinear(Linear::new(backend, host.inputs(shard.even(inputs), shard.is_first())?)?))
    }

    /// `residual += self(x)`
    pub fn add_to(&self, b: &B, residual: &mut Residual<B>, x: B::Tensor) {
        residual.sum(b);
        residual.rest =
            if b.shard().is_whole() { Rest::Projection(x, self.0.clone()) } else { Rest::Part(self.0.apply(b, &x)) };
    }
}

/// The rows of an embedding for a worker's part of the vocabulary.
pub struct Embedding<B: Backend> {
    pub table: B::Weight,
    tokens: Range<usize>,
}

impl<B: Backend> Embedding<B> {
    /// `[T, H]` of the new tokens; with a table of positions, whose rows are added, and what is added to a position there.
    pub fn apply(&self, b: &B, positions: Option<(&B::Weight, usize)>, inputs: &B::Inputs) -> Residual<B> {
        let positions = positions.filter(|_| b.shard().is_first());
        Residual::of_parts(b, b.embed_tokens(&self.table, self.tokens.clone(), positions, inputs))
    }
}
