//! The products of a step of a model with experts, computed from the shapes of its weights. They need no kernels.
//!
//! Which experts a step uses depends on its tokens. The estimate assumes uniform routing: each token uses `k` of `E`
//! experts, all of them equally likely, so a step of `B` tokens is expected to use `E (1 - (1 - k / E)^B)`. Trained
//! routers prefer some experts, so real steps use fewer.

use std::fmt;

use cuda_std::launch::LaunchShape;
use engine::tools::backend::cuda::{LaunchCost, NotedLaunch};
use engine::tools::config::{
    DecoderConfig, DecoderLayer, Experts, GroupSize, ModelConfig, ModelFamily, QuantFormat, SharedExpert,
};
use engine::tools::memory_plan::Rehearsal;
use kernels::floor::Floor;
use serde_json::{Value, json};

/// Bytes of an element of an activation, and of a weight that is not quantised.
const ELEMENT: f64 = 2.0;
const GIB: f64 = (1u64 << 30) as f64;
/// The tokens of steps whose bytes are displayed.
const BATCHES: [usize; 4] = [1, 8, 32, 128];

/// The products of a model's steps.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Products of each layer, in order, and the product that gives logits.
    layers: Vec<Vec<Product>>,
    head: Product,
    hidden: f64,
    /// Bytes of an embedding that is not also the output matrix.
    embedding: f64,
    /// The number of layers with experts, and the experts of each.
    with_experts: usize,
    experts: Experts,
    /// GPUs that divide each product.
    gpus: f64,
    /// The format of the weights.
    format: &'static str,
}

/// A product of activations and weights.
#[derive(Clone, Copy, Debug)]
struct Product {
    name: &'static str,
    /// Elements of the weights. Of experts, the elements of one.
    elements: f64,
    /// Bytes of an element.
    size: f64,
    /// Elements of activations that a token reads and writes.
    activations: f64,
    /// With `Some`, the number of experts, and the number that a token uses.
    routed: Option<[f64; 2]>,
}

impl Product {
    fn new(name: &'static str, [outputs, inputs]: [usize; 2], size: f64) -> Self {
        let (outputs, inputs) = (outputs as f64, inputs as f64);
        Product { name, elements: outputs * inputs, size, activations: outputs + inputs, routed: None }
    }

    /// Returns the product for an expert that tokens are routed to.
    fn of_experts(self, Experts { count, routing, .. }: &Experts) -> Self {
        Product { routed: Some([*count as f64, routing.top_k as f64]), ..self }
    }

    /// Returns the elements of all experts, and of those that a token uses.
    fn all_and_active(&self) -> [f64; 2] {
        self.routed.unwrap_or([1.0; 2]).map(|experts| experts * self.elements)
    }

    /// Returns the bytes of weights that a step of `tokens` tokens is expected to read.
    fn weights(&self, tokens: f64) -> f64 {
        self.routed.map_or(1.0, |[count, used]| touched(count, used, tokens)) * self.elements * self.size
    }

    fn cost(&self, tokens: f64, gpus: f64) -> LaunchCost {
        let weights = self.weights(tokens) / gpus;
        let used = self.routed.map_or(1.0, |[_, used]| used);
        let bytes = weights + tokens * used * self.activations * ELEMENT / gpus;
        let flops = 2.0 * tokens * self.all_and_active()[1] / gpus;
        let floor = Floor { bytes: bytes as u64, flops: flops as u64 };
        LaunchCost { floor, weights: weights as u64, ..LaunchCost::default() }
    }
}

/// Returns the number of experts that `tokens` tokens are expected to use, under uniform routing.
fn touched(count: f64, used: f64, tokens: f64) -> f64 {
    count * (1.0 - (1.0 - used / count).powf(tokens))
}

/// Returns a name of the format of a model's weights, and bytes per element of projections and of experts.
fn format(config: &ModelConfig) -> (&'static str, [f64; 2]) {
    // Scales of two bytes, and zeros of half a byte.
    let int4 = |group: GroupSize| match group {
        GroupSize::Of(group) => 0.5 + 2.5 / group as f64,
        GroupSize::Row | GroupSize::Various => 0.5,
    };
    match config.quantization.as_ref().map(|quantization| quantization.format) {
        None => ("16 bits", [ELEMENT; 2]),
        Some(QuantFormat::Mxfp4) => ("16 bits, with experts in mxfp4,", [ELEMENT, 17.0 / 32.0]),
        Some(QuantFormat::Fp8(_)) => ("fp8", [1.0; 2]),
        Some(QuantFormat::Awq { group } | QuantFormat::Gptq { group, .. }) => ("4 bits", [int4(group); 2]),
        Some(QuantFormat::CompressedTensors { int4: Some(group), .. }) => ("4 bits", [int4(group); 2]),
        Some(QuantFormat::CompressedTensors { .. }) => ("8 bits", [1.0; 2]),
    }
}

/// Returns the products of a layer. `size` has bytes per element of projections and of experts.
fn products(decoder: &DecoderConfig, hidden: usize, at: usize, [size, of_expert]: [f64; 2]) -> Vec<Product> {
    let layer = &decoder.layers[at];
    let DecoderLayer { heads, kv_heads, head_dim, value_is_key, source, .. } = *layer;
    let mut list = Vec::new();
    let mut add = |name, shape, size| list.push(Product::new(name, shape, size));
    if let Some(latent) = decoder.latent {
        let of_head = latent.rotated + latent.unrotated;
        match latent.query_rank {
            Some(rank) => {
                add("queries", [rank, hidden], size);
                add("queries", [heads * of_head, rank], size);
            }
            None => add("queries", [heads * of_head, hidden], size),
        }
        add("latent vectors", [latent.rank + latent.rotated, hidden], size);
        add("keys and values of heads", [heads * (latent.unrotated + latent.value), latent.rank], ELEMENT);
        add("attention output", [hidden, heads * latent.value], size);
    } else {
        let kv = if source == at { kv_heads * if value_is_key { 1 } else { 2 } } else { 0 };
        add("queries, keys and values", [(heads + kv) * head_dim, hidden], size);
        add("attention output", [hidden, heads * head_dim], size);
    }
    if layer.is_dense() {
        add("gate and up", [2 * layer.inner, hidden], size);
        add("down", [hidden, layer.inner], size);
    }
    if let Some(experts) = &layer.experts {
        add("router", [experts.count, hidden], ELEMENT);
        if let Some(SharedExpert { inner, .. }) = experts.shared {
            add("gate and up of the shared expert", [2 * inner, hidden], size);
            add("down of the shared expert", [hidden, inner], size);
        }
        let gate_up = Product::new("gate and up of experts", [2 * experts.inner, hidden], of_expert);
        let down = Product::new("down of experts", [hidden, experts.inner], of_expert);
        list.extend([gate_up, down].map(|product| product.of_experts(experts)));
    }
    list
}

impl Estimate {
    /// Describes a model that is divided among `gpus` GPUs. Returns `None` if it has no experts.
    pub fn new(config: &ModelConfig, gpus: usize) -> Option<Self> {
        let ModelFamily::Decoder(decoder) = &config.family else { return None };
        let (experts, hidden) = (*decoder.experts()?, config.hidden);
        let (format, sizes) = format(config);
        let embedding = Product::new("output matrix", [config.vocab_size, hidden], ELEMENT);
        Some(Estimate {
            layers: (0..decoder.layers.len()).map(|at| products(decoder, hidden, at, sizes)).collect(),
            head: embedding,
            hidden: hidden as f64,
            embedding: if config.tie_word_embeddings { 0.0 } else { embedding.elements * ELEMENT },
            with_experts: decoder.layers.iter().filter(|layer| layer.experts.is_some()).count(),
            experts,
            gpus: gpus as f64,
            format,
        })
    }

    /// The format of the weights.
    pub fn format(&self) -> &'static str {
        self.format
    }

    fn products(&self) -> impl Iterator<Item = &Product> {
        self.layers.iter().flatten().chain([&self.head])
    }

    /// Returns the bytes of the weights on one GPU.
    pub fn weight_bytes(&self) -> f64 {
        let bytes: f64 = self.products().map(|product| product.all_and_active()[0] * product.size).sum();
        (bytes + self.embedding) / self.gpus
    }

    /// Returns the number of parameters, and of those that a token uses. A row of the embedding does not count.
    fn parameters(&self) -> [f64; 2] {
        let sum = |which: usize| self.products().map(|product| product.all_and_active()[which]).sum::<f64>();
        [sum(0) + self.embedding / ELEMENT, sum(1)]
    }

    /// Returns the bytes of weights that a step of `tokens` tokens is expected to read on all GPUs together.
    fn read_bytes(&self, tokens: f64) -> f64 {
        self.products().map(|product| product.weights(tokens)).sum()
    }

    /// Returns the bytes of the activations of a step on one GPU: the inputs and outputs of the largest products that
    /// exist at a time, and logits.
    pub fn activation_bytes(&self, tokens: usize, rows: usize) -> f64 {
        let of_layer = |layer: &Vec<Product>| -> f64 {
            let each = layer.iter().map(|product| product.routed.map_or(1.0, |[_, used]| used) * product.activations);
            each.sum()
        };
        let widest = self.layers.iter().map(of_layer).fold(0.0, f64::max);
        let logits = rows as f64 * (self.head.activations - self.hidden) * 4.0;
        (tokens as f64 * (widest / self.gpus + 2.0 * self.hidden) * ELEMENT) + logits
    }

    /// Returns the products of a step, as launches. `attention` returns the attention of a layer.
    pub fn launches(&self, step: Rehearsal, attention: impl Fn(usize) -> NotedLaunch) -> Vec<NotedLaunch> {
        let tokens = (step.decodes + step.drafted + step.prompt) as f64;
        let note = |kernel, cost| NotedLaunch { kernel, shape: LaunchShape::new([0; 3], 0), cost };
        let mut list = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            for product in layer {
                if product.name == "attention output" {
                    list.push(attention(at));
                }
                list.push(note(product.name, product.cost(tokens, self.gpus)));
            }
            if self.gpus > 1.0 {
                // The sums of attention and of the feed-forward layer.
                let peers = 2.0 * (self.gpus - 1.0) / self.gpus * tokens * self.hidden * ELEMENT;
                list.extend([note("all-reduce", LaunchCost { peers: peers as u64, ..LaunchCost::default() }); 2]);
            }
        }
        if step.logits > 0 {
            list.push(note(self.head.name, self.head.cost(step.logits as f64, self.gpus)));
        }
        list
    }

    /// Returns the figures as JSON.
    pub fn json(&self) -> Value {
        let Experts { count, routing, .. } = self.experts;
        let [all, active] = self.parameters();
        let steps = BATCHES.map(|tokens| {
            let experts = touched(count as f64, routing.top_k as f64, tokens as f64);
            json!({"tokens": tokens, "experts_per_layer": experts, "weight_bytes_read": self.read_bytes(tokens as f64)})
        });
        json!({
            "experts": count,
            "experts_per_token": routing.top_k,
            "layers": self.with_experts,
            "parameters": all,
            "active_parameters": active,
            "routing": "uniform: E (1 - (1 - k / E)^B) experts are expected",
            "steps": steps,
        })
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Experts { count, routing, .. } = self.experts;
        let [all, active] = self.parameters().map(|parameters| parameters / 1e9);
        writeln!(
            f,
            "experts       {:>8} of {count} per token in {} layers: {active:.1} of {all:.1} billion parameters",
            routing.top_k, self.with_experts
        )?;
        for (at, tokens) in BATCHES.into_iter().enumerate() {
            let name = if at == 0 { "weights read" } else { "" };
            let experts = touched(count as f64, routing.top_k as f64, tokens as f64);
            let gib = self.read_bytes(tokens as f64) / GIB;
            write!(f, "{name:<14}{gib:>8.2} GiB per step of {tokens}, with {experts:.1} experts in each layer")?;
            writeln!(f, "{}", if at == 0 { " (expected with uniform routing)" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use crate::model::ModelShape;

    #[test]
    fn published_models_have_their_published_parameters() {
        for (model, billions, active, gib) in [
            ("gpt-oss-20b", 20.9, 3.6, 12.8),
            ("gpt-oss-120b", 116.8, 5.1, 60.8),
            ("qwen3-30b-a3b", 30.5, 3.0, 56.9),
            ("mixtral-8x7b", 46.7, 12.9, 87.0),
            ("deepseek-v2-lite", 15.7, 2.4, 29.3),
            ("deepseek-v3", 671.0, 37.0, 627.0),
            ("gemma-4-26b-a4b", 25.2, 3.8, 47.0),
            ("granite-3.1-3b-a800m", 3.3, 0.88, 6.1),
        ] {
            let estimate = Estimate::new(&ModelShape::find(model).unwrap().config, 1).unwrap();
            let found = estimate.parameters().map(|parameters| parameters / 1e9);
            println!("{model}: {found:?} {:.2}", estimate.weight_bytes() / GIB);
            for (found, want) in [(found[0], billions), (found[1], active), (estimate.weight_bytes() / GIB, gib)] {
                assert!((found / want - 1.0).abs() < 0.05, "{model}: {found} for {want}");
            }
        }
    }

    #[test]
    fn more_tokens_use_more_experts_up_to_all() {
        assert_eq!(touched(8.0, 2.0, 1.0), 2.0);
        assert_eq!(touched(8.0, 2.0, 2.0), 3.5);
        assert!(touched(128.0, 8.0, 1000.0) > 127.99);
        let config = ModelShape::find("mixtral-8x7b").unwrap().config;
        let [one, two] = [1, 2].map(|gpus| Estimate::new(&config, gpus).unwrap());
        assert_eq!(one.weight_bytes(), 2.0 * two.weight_bytes());
        let read = |tokens| one.read_bytes(tokens) / one.weight_bytes();
        assert!(read(1.0) < 0.3 && read(8.0) > 0.9 && read(1000.0) < 1.0);
    }
}
