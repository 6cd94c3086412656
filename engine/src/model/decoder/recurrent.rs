//! Layers that keep a state: gated delta nets (Yang et al., 2024), Mamba-2 (Dao and Gu, 2024) and short convolutions with
//! gates (LFM2). Each projects its input, passes a part of it through the state, and projects the result back.

use std::ops::Range;

use crate::backend::{Backend, Change, HostLinear, HostRecurrent};
use crate::config::{DecoderConfig, Recurrent, RecurrentKind};
use crate::error::Result;
use crate::model::layers::{Branch, Linear, Loader};
use crate::tensor::HostTensor;

/// The weights of one layer.
pub struct RecurrentLayer<B: Backend> {
    /// The input of the convolution: queries, keys and values if the layer has heads.
    mixed: Linear<B>,
    /// The gate of the result. In a layer without heads, the gate of the convolution's input precedes it.
    gate: Linear<B>,
    /// The columns of heads that control their decay and rate of change.
    steps: Option<Linear<B>>,
    state: B::RecurrentWeight,
    /// Elements of the worker's result.
    width: usize,
    pub out: Branch<B>,
}

/// A worker's part of a layer.
struct Part {
    /// The layer's sizes, and the worker's.
    whole: Recurrent,
    own: Recurrent,
    heads: Range<usize>,
    key_heads: Range<usize>,
}

impl<B: Backend> RecurrentLayer<B> {
    pub fn load(
        l: &mut Loader<'_, B>,
        hidden: usize,
        decoder: &DecoderConfig,
        i: usize,
        layer: Recurrent,
    ) -> Result<Self> {
        let name = format!("layers.{i}.{}", module(layer.kind));
        let part = Part::new(l, layer)?;
        let projections = match layer.kind {
            RecurrentKind::DeltaNet => l.delta_net(&name, hidden, &part)?,
            RecurrentKind::Mamba => l.mamba(&name, hidden, &part)?,
            RecurrentKind::Convolution => l.short_convolution(&name, hidden, &part)?,
        };
        // In files with tiled heads, the rows and the inputs of the last projection are in another order than in adapters.
        let Projections { mixed, gate, steps } = if layer.tiled { projections.fixed() } else { projections };
        let mut out = l.host_linear(&format!("{name}.out_proj"), hidden, layer.inner(), layer.bias)?;
        out.origin.take_if(|_| layer.tiled);
        let state = l.recurrent_state(&name, &part, decoder.eps)?;
        Ok(RecurrentLayer {
            mixed: Linear::new(l, mixed)?,
            gate: Linear::new(l, gate)?,
            steps: steps.map(|steps| Linear::new(l, steps)).transpose()?,
            state: l.backend.recurrent_weight(state)?,
            width: part.own.inner(),
            out: l.branch(decoder, i, out)?,
        })
    }

    /// Computes layer `i` for input `x`.
    pub fn apply(&self, b: &B, cache: &mut B::KvCache, i: usize, x: &B::Tensor, inputs: &B::Inputs) -> B::Tensor {
        let (mut mixed, gate) = (self.mixed.apply(b, x, inputs), self.gate.apply(b, x, inputs));
        let Some(steps) = &self.steps else {
            b.change(&mut mixed, Change::Multiply { by: &gate, first: 0, sigmoid: false });
            let mut convolved = b.recurrent(&mixed, None, &self.state, (cache, i), inputs);
            b.change(&mut convolved, Change::Multiply { by: &gate, first: self.width, sigmoid: false });
            return convolved;
        };
        let steps = steps.apply_f32(b, x, inputs);
        b.recurrent(&mixed, Some([&steps, &gate]), &self.state, (cache, i), inputs)
    }
}

/// The name of the module that contains the layer's tensors.
fn module(kind: RecurrentKind) -> &'static str {
    match kind {
        RecurrentKind::DeltaNet => "linear_attn",
        RecurrentKind::Mamba => "mamba",
        RecurrentKind::Convolution => "conv",
    }
}

/// A worker's part of the projections from the stream.
struct Projections {
    mixed: HostLinear,
    gate: HostLinear,
    steps: Option<HostLinear>,
}

impl Projections {
    /// The same projections, which adapters cannot change.
    fn fixed(self) -> Self {
        let fixed = |linear: HostLinear| HostLinear { origin: None, ..linear };
        Projections { mixed: fixed(self.mixed), gate: fixed(self.gate), steps: self.steps.map(fixed) }
    }
}

impl Part {
    fn new<B: Backend>(l: &Loader<'_, B>, whole: Recurrent) -> Result<Self> {
        let shard = l.backend.shard();
        let own = whole.part(shard.of)?;
        let heads = shard.even(whole.heads);
        let first = match whole.key_heads {
            0 => 0,
            count if whole.tiled => heads.start % count,
            count => heads.start * count / whole.heads,
        };
        Ok(Part { whole, own, heads, key_heads: first..first + own.key_heads })
    }

    /// The worker's elements of values.
    fn values(&self) -> Range<usize> {
        self.heads.start * self.whole.value_dim..self.heads.end * self.whole.value_dim
    }

    /// The worker's channels of the convolution, in order.
    fn channels(&self) -> Vec<usize> {
        let (dim, keys, inner) = (self.whole.key_dim, self.whole.key_width(), self.whole.inner());
        let own = self.key_heads.start * dim..self.key_heads.end * dim;
        let after = |first: usize, range: Range<usize>| first + range.start..first + range.end;
        let ranges = match self.whole.kind {
            RecurrentKind::DeltaNet => [own.clone(), after(keys, own), after(2 * keys, self.values())],
            RecurrentKind::Mamba => [self.values(), after(inner, own.clone()), after(inner + keys, own)],
            RecurrentKind::Convolution => [self.values(), 0..0, 0..0],
        };
        ranges.into_iter().flatten().collect()
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Takes the projections of a delta net. The matrices are separate, or one has the rows of each key head together.
    fn delta_net(&mut self, name: &str, hidden: usize, part: &Part) -> Result<Projections> {
        let bias = part.whole.bias;
        let (keys, inner, channels) = (part.whole.key_width(), part.whole.inner(), part.channels());
        if !self.weights.contains(&format!("{name}.in_proj_qkvz.weight")) {
            let mixed = self.host_linear(&format!("{name}.in_proj_qkv"), part.whole.channels(), hidden, bias)?;
            return Ok(Projections {
                mixed: mixed.gathered(channels),
                gate: self.host_linear(&format!("{name}.in_proj_z"), inner, hidden, bias)?.outputs(part.values()),
                steps: Some(self.delta_steps(name, hidden, part)?),
            });
        }
        let layer = part.whole;
        let all = self.host_linear(&format!("{name}.in_proj_qkvz"), 2 * (keys + inner), hidden, bias)?;
        Ok(Projections {
            mixed: all.gathered(channels.into_iter().map(|channel| layer.fused_row(channel))),
            gate: all.gathered(part.values().map(|element| layer.fused_gate(element))),
            steps: Some(self.delta_steps(name, hidden, part)?),
        })
    }

    /// Takes the projections to the rate of change and to the decay of each head, in this order. They become f32, because
    /// they control the whole state.
    fn delta_steps(&mut self, name: &str, hidden: usize, part: &Part) -> Result<HostLinear> {
        let heads = part.whole.heads;
        let both = format!("{name}.in_proj_ba.weight");
        let rows: Vec<f32> = if self.weights.contains(&both) {
            let shared = heads / part.whole.key_heads;
            let all = self.weights.take_elements(&both, &[2 * heads, hidden])?;
            let row = |i: usize| {
                let (decays, head) = (i / part.heads.len(), part.heads.start + i % part.heads.len());
                (head / shared * 2 + decays) * shared + head % shared
            };
            all.gathered((0..2 * part.heads.len()).map(row)).elements().to_f32()
        } else {
            let mut rows = Vec::new();
            for matrix in ["in_proj_b", "in_proj_a"] {
                let all = self.weights.take_elements(&format!("{name}.{matrix}.weight"), &[heads, hidden])?;
                rows.extend(all.into_rows(part.heads.clone()).elements().to_f32());
            }
            rows
        };
        Ok(HostLinear::fixed(HostTensor::from_f32(vec![2 * part.heads.len(), hidden], rows), None))
    }

    /// Takes the projections of Mamba-2, which are rows of one matrix: gate, channels of the convolution, steps.
    fn mamba(&mut self, name: &str, hidden: usize, part: &Part) -> Result<Projections> {
        let (inner, channels) = (part.whole.inner(), part.whole.channels());
        let rows = inner + channels + part.whole.heads;
        let all = self.host_linear(&format!("{name}.in_proj"), rows, hidden, part.whole.bias)?;
        Ok(Projections {
            mixed: all.gathered(part.channels().into_iter().map(|channel| inner + channel)),
            gate: all.part(part.values()),
            steps: Some(all.gathered(part.heads.clone().map(|head| inner + channels + head))),
        })
    }

    /// Takes the projections of a short convolution, which are rows of one matrix: the two gates, and the input.
    fn short_convolution(&mut self, name: &str, hidden: usize, part: &Part) -> Result<Projections> {
        let (width, own) = (part.whole.inner(), part.values());
        let all = self.host_linear(&format!("{name}.in_proj"), 3 * width, hidden, part.whole.bias)?;
        Ok(Projections {
            mixed: all.part(2 * width + own.start..2 * width + own.end),
            gate: all.gathered(own.clone().chain(width + own.start..width + own.end)),
            steps: None,
        })
    }

    /// Takes the weights that act on the state.
    fn recurrent_state(&mut self, name: &str, part: &Part, eps: f32) -> Result<HostRecurrent> {
        let (layer, channels) = (part.whole, part.whole.channels());
        let has_heads = layer.kind != RecurrentKind::Convolution;
        let kernel = format!("{name}.{}", if has_heads { "conv1d" } else { "conv" });
        let taps = self.flat(&format!("{kernel}.weight"), channels * layer.kernel)?;
        let taps = HostTensor::from_f32(vec![channels, layer.kernel], taps);
        let bias = match layer.kernel_bias {
            true => {
                let all = self.flat(&format!("{kernel}.bias"), channels)?;
                Some(part.channels().into_iter().map(|channel| all[channel]).collect())
            }
            false => None,
        };
        let mut of_heads = |tensor: &str| -> Result<Vec<f32>> {
            Ok(self.flat(&format!("{name}.{tensor}"), layer.heads)?[part.heads.clone()].to_vec())
        };
        let (mut decay, mut step_bias, mut skip, mut norm) = (Vec::new(), Vec::new(), None, None);
        if has_heads {
            decay = of_heads("A_log")?.into_iter().map(|log| -log.exp()).collect();
            step_bias = of_heads("dt_bias")?;
            let is_mamba = layer.kind == RecurrentKind::Mamba;
            skip = is_mamba.then(|| of_heads("D")).transpose()?;
            let own = if is_mamba { part.values() } else { 0..layer.value_dim };
            let size = if is_mamba { layer.inner() } else { layer.value_dim };
            norm =
                Some(HostTensor::from_f32(vec![size], self.flat(&format!("{name}.norm.weight"), size)?).into_rows(own));
        }
        let kernel = taps.gathered(part.channels());
        Ok(HostRecurrent { layer: part.own, kernel, bias, decay, step_bias, skip, norm, eps })
    }
}
