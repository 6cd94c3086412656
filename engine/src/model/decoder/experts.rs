//! Experts: gated units, and a router that chooses a few of them for each token. A layer may also have a dense unit
//! next to its experts.

use std::ops::Range;

use super::mlp::Mlp;
use super::read;
use crate::backend::{Backend, Change, HostExpert, HostExperts, HostLinear, Norm};
use crate::config::{BesideNorms, DecoderConfig, Experts};
use crate::error::Result;
use crate::model::layers::{Linear, Loader, Residual, finish, sum_parts};
use crate::tensor::HostTensor;

type Iter<'a, T> = Box<dyn Iterator<Item = T> + 'a>;

/// The weights of one layer's experts.
pub struct ExpertBlock<B: Backend> {
    /// Logits of experts. If a shared expert has a gate, the last logit belongs to the gate.
    router: Linear<B>,
    /// Normalises the input of the router.
    router_norm: Option<Norm<B::Weight>>,
    experts: B::ExpertsWeight,
    beside: Option<Beside<B>>,
    /// Normalises the result.
    norm: Option<Norm<B::Weight>>,
    multiplier: f32,
}

/// A dense unit next to the experts, and the norms of the experts.
struct Beside<B: Backend> {
    dense: Mlp<B>,
    before_experts: Norm<B::Weight>,
    after_experts: Norm<B::Weight>,
}

impl<B: Backend> ExpertBlock<B> {
    pub fn load(
        l: &mut Loader<'_, B>,
        hidden: usize,
        decoder: &DecoderConfig,
        i: usize,
        experts: &Experts,
    ) -> Result<Self> {
        let (layer, name, routing) = (format!("layers.{i}"), format!("layers.{i}.mlp"), experts.routing);
        let vector =
            |l: &mut Loader<'_, B>, part: &str| l.weights.take_elements(&format!("{name}.{part}"), &[experts.count]);
        let settings = HostExperts {
            count: experts.count,
            own: l.backend.shard().experts(experts.count),
            routing,
            correction: if routing.correction { Some(vector(l, "gate.e_score_correction_bias")?) } else { None },
            scale: if routing.expert_scale { Some(vector(l, "experts.down_proj.scale")?) } else { None },
            activation: decoder.activation,
            clamp: experts.clamp,
            shared: experts.shared,
        };
        let beside = experts.beside.map(|norms| Beside::load(l, hidden, decoder, i, norms)).transpose()?;
        Ok(ExpertBlock {
            router: l.router(&name, hidden, experts)?,
            router_norm: if routing.norm { Some(l.router_norm(&name, hidden, decoder.eps)?) } else { None },
            experts: l.experts(&name, hidden, experts, settings)?,
            beside,
            norm: l.layer_part_norm(decoder, &layer, decoder.layer_norms.after_mlp, hidden)?,
            multiplier: decoder.residual_multiplier,
        })
    }

    /// Adds the result to the stream. The input is `h`, or the stream itself if it is not normalised.
    pub fn add_to(&self, b: &B, x: &mut Residual<B>, h: &Option<B::Tensor>, inputs: &B::Inputs) {
        let y = match &self.beside {
            None => {
                let input = read(b, h, x);
                let part = self.apply(b, input, input, inputs);
                if self.norm.is_none() && self.multiplier == 1.0 {
                    return x.add_part(b, part);
                }
                sum_parts(b, part)
            }
            Some(Beside { dense, before_experts, after_experts }) => {
                let mut y = dense.down.compute(b, &dense.apply(b, read(b, h, x), inputs), inputs);
                let stream = x.sum(b);
                let part = self.apply(b, &b.norm(stream, before_experts), stream, inputs);
                b.change(&mut y, Change::Add(&b.norm(&sum_parts(b, part), after_experts)));
                y
            }
        };
        let y = finish(b, y, self.norm.as_ref(), self.multiplier);
        x.add(b, y);
    }

    /// Returns the worker's part of the experts' result for input `x`.
    fn apply(&self, b: &B, x: &B::Tensor, router_input: &B::Tensor, inputs: &B::Inputs) -> B::Tensor {
        let normed = self.router_norm.as_ref().map(|norm| b.norm(router_input, norm));
        let input = normed.as_ref().unwrap_or(router_input);
        let logits = b.linear_f32(input, &self.router.weight, self.router.bias.as_ref());
        b.experts(x, &logits, &self.experts, inputs)
    }
}

impl<B: Backend> Beside<B> {
    fn load(
        l: &mut Loader<'_, B>,
        hidden: usize,
        decoder: &DecoderConfig,
        i: usize,
        BesideNorms { after_dense, before_experts, after_experts }: BesideNorms,
    ) -> Result<Self> {
        let mut dense = Mlp::load(l, hidden, decoder, i, Some(after_dense))?;
        // The factor applies to the sum with the experts' result.
        dense.down.multiplier = 1.0;
        let mut norm = |part: &str| l.norm(decoder.norm, &format!("layers.{i}.{part}"), hidden, decoder.eps);
        Ok(Beside { dense, before_experts: norm(before_experts)?, after_experts: norm(after_experts)? })
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Takes the router in f32, because small errors can change its choices.
    fn router(&mut self, name: &str, hidden: usize, experts: &Experts) -> Result<Linear<B>> {
        let rows = experts.count;
        let mut weight =
            self.weights.take_elements(&format!("{name}.gate.weight"), &[rows, hidden])?.elements().to_f32();
        let mut bias = match experts.routing.bias {
            true => Some(self.weights.take_elements(&format!("{name}.gate.bias"), &[rows])?.elements().to_f32()),
            false => None,
        };
        if experts.shared.is_some_and(|shared| shared.gated) {
            weight.extend(self.flat(&format!("{name}.shared_expert_gate.weight"), hidden)?);
            bias.iter_mut().for_each(|bias| bias.push(0.0));
        }
        let rows = weight.len() / hidden;
        let bias = bias.map(|bias| self.backend.norm_weight(HostTensor::from_f32(vec![rows], bias))).transpose()?;
        let weight = self.backend.projection_weight(HostTensor::from_f32(vec![rows, hidden], weight))?;
        Ok(Linear { weight, bias, site: None })
    }

    /// Takes the norm of the router's input. It also divides by the root of the input's size.
    fn router_norm(&mut self, name: &str, hidden: usize, eps: f32) -> Result<Norm<B::Weight>> {
        let factor = (hidden as f32).powf(-0.5);
        let weight = self.weights.take_elements(&format!("{name}.gate.scale"), &[hidden])?.elements().to_f32();
        let weight = HostTensor::from_f32(vec![hidden], weight.into_iter().map(|w| w * factor).collect());
        Ok(Norm::Rms { weight: self.backend.norm_weight(weight)?, eps })
    }

    /// Takes the worker's part of all experts: some experts, or a part of the elements of each. The shared expert is
    /// always divided.
    fn experts(
        &mut self,
        name: &str,
        hidden: usize,
        experts: &Experts,
        settings: HostExperts,
    ) -> Result<B::ExpertsWeight> {
        let (backend, shard) = (self.backend, self.backend.shard());
        let shared = experts.shared.map(|shared| {
            let own = (shared.inner, shard.even(shared.inner));
            self.expert(&format!("{name}.shared_expert"), hidden, own, false)
        });
        let routed = self.routed(format!("{name}.experts"), hidden, experts)?;
        backend.experts_weight(settings, &mut routed.chain(shared))
    }

    /// Takes the worker's part, `own`, of the `inner` elements of an expert with separate tensors.
    fn expert(
        &mut self,
        name: &str,
        hidden: usize,
        (inner, own): (usize, Range<usize>),
        bias: bool,
    ) -> Result<HostExpert> {
        let down = self.host_linear(&format!("{name}.down_proj"), hidden, inner, bias)?;
        let gate_up = self.gate_up(name, (inner, own.clone()), hidden, bias)?;
        Ok(HostExpert { gate_up, down: down.inputs(own)? })
    }

    /// Takes the worker's part of the experts that tokens are routed to. Their tensors are separate, or all experts share
    /// a tensor for each projection, or one for gate and up.
    fn routed(&mut self, name: String, hidden: usize, experts: &Experts) -> Result<Iter<'_, Result<HostExpert>>> {
        let Experts { count, inner, bias, alternating, .. } = *experts;
        let (own, ours) = (self.backend.shard().of_expert(inner), self.backend.shard().experts(count));
        let [fused, gate, up, down] = ["gate_up", "gate", "up", "down"].map(|part| format!("{name}.{part}_proj"));
        let gate_up: Iter<'_, [HostLinear; 2]> = if self.weights.contains(&format!("{fused}.weight")) {
            let both = self.stack(&fused, [count, 2 * inner, hidden], bias, alternating)?;
            let own = own.clone();
            let part = move |both: &HostLinear, first| both.part(first + own.start..first + own.end);
            let split = move |both| [0, inner].map(|first| part(&both, first));
            Box::new(both.map(move |both| if alternating { in_halves(&both, inner) } else { both }).map(split))
        } else if self.weights.contains(&format!("{gate}.weight")) {
            let [gate, up] = [gate, up].map(|name| self.stack(&name, [count, inner, hidden], bias, false));
            let own = own.clone();
            Box::new(gate?.zip(up?).map(move |both| <[_; 2]>::from(both).map(|linear| linear.outputs(own.clone()))))
        } else {
            let expert = move |e| self.expert(&format!("{name}.{e}"), hidden, (inner, own.clone()), bias);
            return Ok(Box::new(ours.map(expert)));
        };
        let down = self.stack(&down, [count, hidden, inner], bias, alternating)?;
        let expert = move |(gate_up, down): ([HostLinear; 2], HostLinear)| {
            Ok(HostExpert { gate_up, down: down.inputs(own.clone())? })
        };
        Ok(Box::new(gate_up.zip(down).map(expert)))
    }

    /// Takes a projection of the worker's experts from the tensor of all experts. In some files its rows are inputs.
    fn stack(
        &mut self,
        name: &str,
        [count, outputs, inputs]: [usize; 3],
        bias: bool,
        transposed: bool,
    ) -> Result<Iter<'static, HostLinear>> {
        let weight = format!("{name}.weight");
        let transposed = transposed && !self.weights.rows_are_outputs(&weight);
        let (rows, cols) = if transposed { (inputs, outputs) } else { (outputs, inputs) };
        let ours = self.backend.shard().experts(count);
        let matrices = self.weights.take(&weight, &[count, rows, cols])?.into_matrices(rows);
        let bias = match bias {
            true => Some(self.weights.take_elements(&format!("{name}.bias"), &[count, outputs])?.elements().to_f32()),
            false => None,
        };
        let bias = move |e: usize| {
            let own = bias.as_ref()?[e * outputs..][..outputs].to_vec();
            Some(HostTensor::from_f32(vec![outputs], own))
        };
        let ours = matrices.into_iter().enumerate().skip(ours.start).take(ours.len());
        Ok(Box::new(
            ours.map(move |(e, matrix)| {
                HostLinear::fixed(if transposed { matrix.transposed() } else { matrix }, bias(e))
            }),
        ))
    }
}

/// Reorders the outputs of a projection: first all even outputs, then all odd ones. Each half has `half` outputs.
fn in_halves(linear: &HostLinear, half: usize) -> HostLinear {
    linear.reordered(|output| output % half * 2 + output / half)
}
