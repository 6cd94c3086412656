//! What the architectures are built from, and how its weights are taken.

use crate::backend::{Activation, Backend, HostLinear};
use crate::error::Result;
use crate::load::Weights;

/// Takes weights by name, checks their shapes and moves them to the backend.
pub struct Loader<'a, B: Backend> {
    pub backend: &'a B,
    pub weights: &'a mut Weights,
}

impl<B: Backend> Loader<'_, B> {
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Result<B::Weight> {
        let tensor = self.weights.take(name, shape)?;
        self.backend.weight(tensor)
    }

    /// `name.weight [outputs, inputs]` and, if there is to be one, `name.bias [outputs]`.
    pub fn linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<Linear<B>> {
        let host = self.host_linear(name, outputs, inputs, bias)?;
        Linear::new(self.backend, host)
    }

    /// As [`Loader::linear`], still on the host.
    pub fn host_linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<HostLinear> {
        let weight = self.weights.take(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = if bias { Some(self.weights.take(&format!("{name}.bias"), &[outputs])?) } else { None };
        Ok(HostLinear { weight, bias })
    }

    /// GPT-2 stores its projections transposed (`Conv1D`): `name.weight [inputs, outputs]`, `name.bias [outputs]`.
    pub fn conv1d(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<HostLinear> {
        let weight = self.weights.take(&format!("{name}.weight"), &[inputs, outputs])?.transposed();
        let bias = Some(self.weights.take(&format!("{name}.bias"), &[outputs])?);
        Ok(HostLinear { weight, bias })
    }

    /// `name.weight [width]` and `name.bias [width]`, or neither.
    pub fn layer_norm(&mut self, name: &str, width: usize, affine: bool, eps: f32) -> Result<LayerNorm<B>> {
        if !affine {
            return Ok(LayerNorm { weight: None, bias: None, eps });
        }
        let weight = Some(self.weight(&format!("{name}.weight"), &[width])?);
        let bias = Some(self.weight(&format!("{name}.bias"), &[width])?);
        Ok(LayerNorm { weight, bias, eps })
    }

    /// The output matrix: `embedding` itself if the two are tied.
    pub fn output(&mut self, tied: bool, embedding: &B::Weight, vocab: usize, width: usize) -> Result<B::Weight> {
        if tied { Ok(embedding.clone()) } else { self.weight("lm_head.weight", &[vocab, width]) }
    }
}

/// A projection.
pub struct Linear<B: Backend> {
    pub weight: B::Weight,
    pub bias: Option<B::Weight>,
}

impl<B: Backend> Linear<B> {
    pub fn new(backend: &B, host: HostLinear) -> Result<Self> {
        let bias = host.bias.map(|bias| backend.weight(bias)).transpose()?;
        Ok(Linear { weight: backend.weight(host.weight)?, bias })
    }

    pub fn apply(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        b.linear(x, &self.weight, self.bias.as_ref(), None)
    }

    pub fn apply_act(&self, b: &B, x: &B::Tensor, act: Activation) -> B::Tensor {
        b.linear(x, &self.weight, self.bias.as_ref(), Some(act))
    }

    /// `residual += self(x)`
    pub fn add_to(&self, b: &B, residual: &mut B::Tensor, x: &B::Tensor) {
        b.linear_add(residual, x, &self.weight, self.bias.as_ref());
    }
}

/// A layer normalisation.
pub struct LayerNorm<B: Backend> {
    weight: Option<B::Weight>,
    bias: Option<B::Weight>,
    eps: f32,
}

impl<B: Backend> LayerNorm<B> {
    pub fn apply(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        b.layer_norm(x, self.weight.as_ref(), self.bias.as_ref(), self.eps)
    }
}
