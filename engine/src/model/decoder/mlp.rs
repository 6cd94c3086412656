//! The gated feed-forward part of a layer.

use crate::backend::{Activation, Backend, HostLinear};
use crate::config::DecoderConfig;
use crate::error::Result;
use crate::model::layers::{Branch, Loader};

/// The weights of one layer's feed-forward part.
pub struct Mlp<B: Backend> {
    gate_up: B::GatedWeight,
    activation: Activation,
    pub down: Branch<B>,
}

impl<B: Backend> Mlp<B> {
    pub fn load(l: &mut Loader<'_, B>, hidden: usize, decoder: &DecoderConfig, i: usize) -> Result<Self> {
        let (inner, bias, name) = (decoder.layers[i].inner, decoder.mlp_bias, format!("layers.{i}.mlp"));
        let after = decoder.layer_norms.after_mlp;
        let gate_up = l.gate_up(&name, inner, hidden, bias)?;
        Ok(Mlp {
            gate_up: l.backend.gated_weight(gate_up)?,
            activation: decoder.activation,
            down: Branch {
                linear: l.residual(&format!("{name}.down_proj"), hidden, inner, bias)?,
                norm: l.layer_part_norm(decoder, &format!("layers.{i}"), after, hidden)?,
                multiplier: decoder.residual_multiplier,
            },
        })
    }

    pub fn apply(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        b.gated(x, &self.gate_up, self.activation)
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Takes the worker's part of the gate and up projections. They are separate or fused in one matrix.
    fn gate_up(&mut self, name: &str, inner: usize, inputs: usize, bias: bool) -> Result<[HostLinear; 2]> {
        let fused = format!("{name}.gate_up_proj");
        if !self.weights.contains(&format!("{fused}.weight")) {
            let gate = self.share(&format!("{name}.gate_proj"), inner, inputs, bias)?;
            return Ok([gate, self.share(&format!("{name}.up_proj"), inner, inputs, bias)?]);
        }
        let (own, fused) = (self.backend.shard().even(inner), self.host_linear(&fused, 2 * inner, inputs, bias)?);
        Ok([0, inner].map(|first| fused.part(first + own.start..first + own.end)))
    }
}
