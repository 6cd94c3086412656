//! Layers with experts, compared with the CPU's in f32.

use std::cell::RefCell;
use std::ops::Range;

use super::operations::{Computation, host, on_cpu, on_gpu_of};
use super::*;
use crate::backend::{Activation, Clamp, HostExpert, HostExperts, HostLinear, Routing, SharedExpert};
use crate::config::{ExpertGroups, RouterScores};
use crate::quantised::{QuantType, encode};
use crate::tensor::HostTensor;

const EXPERTS: usize = 6;
const INNER: usize = 64;

/// A layer, and the tokens that use it.
#[derive(Clone)]
struct Layer {
    tokens: usize,
    hidden: usize,
    routing: Routing,
    shared: Option<SharedExpert>,
    clamp: Option<Clamp>,
    bias: bool,
    own: Range<usize>,
    /// The type of the experts' weights, or f16.
    kind: Option<QuantType>,
    /// Whether weights are dequantised when they are loaded.
    dequantised: bool,
}

const LAYER: Layer = Layer {
    tokens: 13,
    hidden: 64,
    routing: Routing::softmax(2),
    shared: None,
    clamp: None,
    bias: false,
    own: 0..EXPERTS,
    kind: None,
    dequantised: false,
};

impl Layer {
    fn linear(&self, seed: u64, rows: usize, cols: usize) -> HostLinear {
        let scale = 3.0 / (cols as f32).sqrt();
        let numbers: Vec<f32> = host(seed, &[rows, cols]).elements().to_f32().into_iter().map(|x| scale * x).collect();
        let weight = match self.kind {
            None => HostTensor::from_f32(vec![rows, cols], numbers).to_dtype(DType::F16),
            Some(kind) => {
                let mut groups = Vec::new();
                encode(kind, &numbers, &mut groups).unwrap();
                HostTensor::owned_groups(kind, vec![rows, cols], groups)
            }
        };
        let weight = if self.dequantised { weight.to_dtype(DType::F32) } else { weight };
        HostLinear::fixed(weight, self.bias.then(|| host(seed + 1, &[rows])))
    }

    fn expert(&self, seed: u64, inner: usize) -> HostExpert {
        let gate_up = [0, 2].map(|part| self.linear(seed + part, inner, self.hidden));
        HostExpert { gate_up, down: self.linear(seed + 4, self.hidden, inner) }
    }
}

impl Computation for Layer {
    fn run<B: Backend>(&self, b: &B, ready: &dyn Fn()) -> B::Tensor {
        let Layer { routing, shared, clamp, .. } = *self;
        let settings = HostExperts {
            count: EXPERTS,
            own: self.own.clone(),
            routing,
            correction: routing.correction.then(|| host(8, &[EXPERTS])),
            scale: routing.expert_scale.then(|| host(9, &[EXPERTS])),
            activation: Activation::Silu,
            clamp,
            shared,
        };
        let routed = self.own.clone().map(|e| Ok(self.expert(100 * (e as u64 + 1), INNER)));
        let of_shared = shared.map(|shared| Ok(self.expert(3, shared.inner)));
        let weight = b.experts_weight(settings, &mut routed.chain(of_shared)).unwrap();
        let table = b.weight(host(1, &[self.tokens, self.hidden])).unwrap();
        let gates = usize::from(shared.is_some_and(|shared| shared.gated));
        let router = b.projection_weight(host(2, &[EXPERTS + gates, self.hidden])).unwrap();
        ready();
        let batch = batch(&[(self.tokens, self.tokens)]);
        let inputs = b.upload(Batch { tokens: (0..self.tokens as u32).collect(), ..batch }, &[]);
        let x = b.embed_tokens(&table, 0..self.tokens, None, &inputs);
        let logits = b.linear_f32(&x, &router, None);
        b.experts(&x, &logits, &weight, &inputs)
    }
}

/// A layer on the GPU, and the kernels that it launched.
struct Noted<'a>(&'a Layer, RefCell<Vec<String>>);

impl Computation for Noted<'_> {
    fn run<B: Backend>(&self, b: &B, ready: &dyn Fn()) -> B::Tensor {
        let ready = || {
            ready();
            collect_reports(true).unwrap();
        };
        let result = self.0.run(b, &ready);
        self.1.replace(take_reports().unwrap().into_iter().map(|launch| launch.kernel.to_string()).collect());
        collect_reports(false).unwrap();
        result
    }
}

/// Compares the results of the GPU and the CPU. Returns the kernels that the GPU launched.
fn assert_same(layer: &Layer) -> Vec<String> {
    let json = r#"{"model_type": "mixtral", "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32,
        "num_key_value_heads": 1, "num_hidden_layers": 1, "intermediate_size": 64, "num_local_experts": 6}"#;
    let noted = Noted(layer, RefCell::default());
    let got = on_gpu_of(json, &noted, KvDtype::Float(DType::F16), layer.kind.is_some());
    let want = on_cpu(&Layer { dequantised: true, ..layer.clone() });
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let what = (layer.tokens, layer.kind, &layer.own, layer.clamp, layer.shared);
        assert!((got - want).abs() <= 3e-3 * scale, "{what:?}: element {i} is {got}, not {want}");
    }
    noted.1.into_inner()
}

#[test]
fn layers_equal_the_cpus() {
    let groups = Some(ExpertGroups { count: 3, top_k: 2, best: 2 });
    let sigmoid =
        Routing { scores: RouterScores::Sigmoid, groups, correction: true, scale: 2.5, ..Routing::softmax(3) };
    let shared = |gated| Some(SharedExpert { inner: 96, gated });
    for layer in [
        LAYER,
        Layer { tokens: 1, bias: true, ..LAYER },
        Layer { tokens: 70, shared: shared(true), ..LAYER },
        Layer { routing: sigmoid, shared: shared(false), ..LAYER },
        Layer { routing: Routing { expert_scale: true, renormalised: false, ..Routing::softmax(6) }, ..LAYER },
        Layer { clamp: Some(Clamp { alpha: 1.702, limit: 0.7 }), bias: true, ..LAYER },
        // Another worker has the other half.
        Layer { own: 3..6, ..LAYER },
    ] {
        assert_same(&layer);
    }
}

/// Many tokens on Hopper have another kernel, unless weights are quantised.
#[test]
fn layers_of_many_tokens_equal_the_cpus() {
    let clamp = Some(Clamp { alpha: 1.702, limit: 0.7 });
    for (layer, projections) in [
        (Layer { tokens: 97, ..LAYER }, 0),
        (Layer { tokens: 98, ..LAYER }, 2),
        (Layer { tokens: 300, clamp, bias: true, own: 3..6, ..LAYER }, 2),
        (Layer { tokens: 98, kind: Some(QuantType::Q8_0), ..LAYER }, 0),
    ] {
        let launched = assert_same(&layer);
        let on_hopper = launched.iter().filter(|kernel| kernel.starts_with("grouped_hopper"));
        assert_eq!(on_hopper.count(), projections, "{} tokens", layer.tokens);
    }
}

#[test]
fn quantised_experts_equal_their_elements() {
    for (kind, tokens) in [(QuantType::Q8_0, 13), (QuantType::Q4_0, 70), (QuantType::MXFP4, 1), (QuantType::MXFP4, 70)]
    {
        assert_same(&Layer { kind: Some(kind), tokens, ..LAYER });
    }
}
