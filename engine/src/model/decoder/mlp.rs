//! The gated unit of a layer without experts, or next to them.

use std::ops::Range;

use crate::adapter::Site;
use crate::backend::{Activation, Backend, HostLinear};
use crate::config::DecoderConfig;
use crate::error::Result;
use crate::model::layers::{Branch, Loader};

/// The weights of one layer's gated unit.
pub struct Mlp<B: Backend> {
    gate_up: B::GatedWeight,
    sites: [Option<Site>; 2],
    activation: Activation,
    pub down: Branch<B>,
}

impl<B: Backend> Mlp<B> {
    /// Loads the unit of layer `i`. `after` is the norm of its result.
    pub fn load(
        l: &mut Loader<'_, B>,
        hidden: usize,
        decoder: &DecoderConfig,
        i: usize,
        after: Option<&str>,
    ) -> Result<Self> {
        let (inner, bias) = (decoder.layers[i].inner, decoder.mlp_bias);
        let mut name = format!("layers.{i}.mlp");
        if decoder.layers[i].experts.is_none() && l.weights.contains(&format!("{name}.shared_expert.down_proj.weight"))
        {
            // A model without experts may still have the shared one.
            name.push_str(".shared_expert");
        }
        let own = l.backend.shard().even(inner);
        let gate_up = l.gate_up(&name, (inner, own), hidden, bias)?;
        let sites = [&gate_up[0], &gate_up[1]].map(|part| l.site(part));
        Ok(Mlp {
            sites,
            gate_up: l.backend.gated_weight(gate_up)?,
            activation: decoder.activation,
            down: Branch {
                linear: l.residual(&format!("{name}.down_proj"), hidden, inner, bias)?,
                norm: l.layer_part_norm(decoder, &format!("layers.{i}"), after, hidden)?,
                multiplier: decoder.residual_multiplier,
            },
        })
    }

    pub fn apply(&self, b: &B, x: &B::Tensor, inputs: &B::Inputs) -> B::Tensor {
        if b.is_adapted(&self.sites, inputs) {
            return b.gated_adapted(x, &self.gate_up, self.activation, self.sites, inputs);
        }
        b.gated(x, &self.gate_up, self.activation)
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Takes the worker's part, `own`, of the `inner` outputs of the gate and up projections. They are separate or fused in one
    /// matrix.
    pub fn gate_up(
        &mut self,
        name: &str,
        (inner, own): (usize, Range<usize>),
        inputs: usize,
        bias: bool,
    ) -> Result<[HostLinear; 2]> {
        let fused = format!("{name}.gate_up_proj");
        if !self.weights.contains(&format!("{fused}.weight")) {
            let gate = self.host_linear(&format!("{name}.gate_proj"), inner, inputs, bias)?.outputs(own.clone());
            return Ok([gate, self.host_linear(&format!("{name}.up_proj"), inner, inputs, bias)?.outputs(own)]);
        }
        let fused = self.host_linear(&fused, 2 * inner, inputs, bias)?;
        Ok([0, inner].map(|first| fused.part(first + own.start..first + own.end)))
    }
}
