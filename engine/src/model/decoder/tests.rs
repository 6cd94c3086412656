//! Attention with sinks, a window, biases and YaRN, as in gpt-oss, compared with a computation in f64.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::f64::consts::PI;

use serde_json::json;

use super::attention::AttentionLayer;
use super::rope;
use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::config::{DecoderConfig, ModelConfig, ModelFamily};
use crate::kv::KvLayout;
use crate::load::Weights;
use crate::model::layers::Loader;
use crate::model::tests::batch;
use crate::tensor::{DType, HostTensor};

const HIDDEN: usize = 24;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 32;
const WINDOW: usize = 20;
const TOKENS: usize = 90;
const THETA: f64 = 150_000.0;
/// The scaling's factor, and the length that the model was first trained with.
const FACTOR: f64 = 8.0;
const ORIGINAL: f64 = 64.0;

/// Deterministic numbers between -1 and 1.
fn noise(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed * 7919 + i * 104_729) as f64 * 0.618_033_988_75).fract() as f32 * 2.0 - 1.0).collect()
}

/// The tensors of the layer: name, shape and elements.
fn tensors() -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
    let (q, kv) = (HEADS * DIM, KV_HEADS * DIM);
    let of = |name, shape: &[usize], seed| (name, shape.to_vec(), noise(seed, shape.iter().product()));
    vec![
        of("q_proj.weight", &[q, HIDDEN], 1),
        of("q_proj.bias", &[q], 2),
        of("k_proj.weight", &[kv, HIDDEN], 3),
        of("k_proj.bias", &[kv], 4),
        of("v_proj.weight", &[kv, HIDDEN], 5),
        of("v_proj.bias", &[kv], 6),
        of("o_proj.weight", &[HIDDEN, q], 7),
        of("o_proj.bias", &[HIDDEN], 8),
        of("sinks", &[HEADS], 9),
    ]
}

/// The layer's tensors in a safetensors file.
fn weights() -> Weights {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, elements) in tensors() {
        let begin = data.len();
        data.extend(elements.iter().flat_map(|x| x.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(format!("layers.0.self_attn.{name}"), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let file = tempfile::Builder::new().suffix(".safetensors").tempfile().unwrap();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(file.path(), bytes).unwrap();
    Weights::from_safetensors(file.path(), None).unwrap()
}

fn config(window: Option<usize>) -> ModelConfig {
    let yarn = json!({"rope_type": "yarn", "factor": FACTOR, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": ORIGINAL, "rope_theta": THETA});
    let json = json!({"model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": HEADS, "head_dim": DIM,
        "num_key_value_heads": KV_HEADS, "num_hidden_layers": 1, "attention_bias": true, "rope_parameters": yarn});
    let mut config = ModelConfig::from_json(json.to_string().as_bytes()).unwrap();
    let ModelFamily::Decoder(decoder) = &mut config.family else { unreachable!() };
    decoder.sinks = true;
    decoder.layers[0].window = window;
    config
}

fn computed(config: &ModelConfig, decoder: &DecoderConfig, x: &[f32]) -> Vec<f32> {
    let (backend, mut weights) = (CpuBackend::new(Some(2)).unwrap(), weights());
    let mut loader = Loader::new(&backend, &mut weights);
    let layer = AttentionLayer::load(&mut loader, HIDDEN, decoder, 0).unwrap();
    let table = backend.weight(rope::table(&decoder.ropes[0], TOKENS).unwrap()).unwrap();
    let layout = KvLayout::new(&config.memory_layers(), 16, DType::F32.into());
    let (batch, pages) = batch(&[0; TOKENS], &layout);
    let mut cache = backend.kv_cache(layout, pages, 0).unwrap();
    let input = backend.weight(HostTensor::from_f32(vec![TOKENS, HIDDEN], x.to_vec())).unwrap();
    // Every token is a row of a table of inputs.
    let rows = crate::batch::Batch { tokens: (0..TOKENS as u32).collect(), ..batch };
    let inputs = backend.upload(rows, &[]);
    let x = backend.embed_tokens(&input, 0..TOKENS, None, &inputs);
    layer.apply(&backend, &mut cache, (0, Some(&table)), &x, &inputs).as_slice().to_vec()
}

/// The frequency of pair `i`: the definition of YaRN.
fn frequency(i: usize) -> f64 {
    let plain = THETA.powf(-2.0 * i as f64 / DIM as f64);
    let pair = |turns: f64| DIM as f64 * (ORIGINAL / (turns * 2.0 * PI)).ln() / (2.0 * THETA.ln());
    let (low, high) = (pair(32.0).max(0.0), pair(1.0).min(DIM as f64 - 1.0));
    let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
    plain / FACTOR * divided + plain * (1.0 - divided)
}

fn rotated(head: &[f64], position: usize) -> Vec<f64> {
    let (half, magnitude) = (DIM / 2, 0.1 * FACTOR.ln() + 1.0);
    let mut out = vec![0.0; DIM];
    for i in 0..half {
        let (sin, cos) = (position as f64 * frequency(i)).sin_cos();
        out[i] = (head[i] * cos - head[i + half] * sin) * magnitude;
        out[i + half] = (head[i + half] * cos + head[i] * sin) * magnitude;
    }
    out
}

fn reference(x: &[f32], window: Option<usize>) -> Vec<f64> {
    let tensors = tensors();
    let tensor = |name: &str| &tensors.iter().find(|tensor| tensor.0 == name).unwrap().2;
    let project = |part: &str, row: usize| -> Vec<f64> {
        let (weight, bias) = (tensor(&format!("{part}.weight")), tensor(&format!("{part}.bias")));
        let x = &x[row * HIDDEN..][..HIDDEN];
        let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
        weight.chunks(HIDDEN).zip(bias).map(|(w, b)| dot(w) + f64::from(*b)).collect()
    };
    let rows = |part: &'static str| (0..TOKENS).map(move |row| project(part, row)).collect::<Vec<_>>();
    let (queries, keys, values) = (rows("q_proj"), rows("k_proj"), rows("v_proj"));
    let mut out = Vec::new();
    for (t, queries) in queries.iter().enumerate() {
        for h in 0..HEADS {
            let part = |row: &[f64], head: usize| row[head * DIM..][..DIM].to_vec();
            let (query, kv) = (rotated(&part(queries, h), t), h / (HEADS / KV_HEADS));
            let first = window.map_or(0, |window| (t + 1).saturating_sub(window));
            let score = |p: usize| {
                let key = rotated(&part(&keys[p], kv), p);
                query.iter().zip(&key).map(|(q, k)| q * k).sum::<f64>() / (DIM as f64).sqrt()
            };
            let weights: Vec<f64> = (first..=t).map(|p| score(p).exp()).collect();
            let norm = weights.iter().sum::<f64>() + f64::from(tensor("sinks")[h]).exp();
            let value = |i: usize| (first..=t).zip(&weights).map(|(p, w)| w * values[p][kv * DIM + i]).sum::<f64>();
            out.extend((0..DIM).map(|i| value(i) / norm));
        }
    }
    out
}

#[test]
fn attention_with_sinks_and_yarn_matches_f64() {
    let x = noise(20, TOKENS * HIDDEN);
    for window in [None, Some(WINDOW)] {
        let config = config(window);
        let ModelFamily::Decoder(decoder) = &config.family else { unreachable!() };
        let (got, want) = (computed(&config, decoder, &x), reference(&x, window));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let token = i / (HEADS * DIM);
            assert!((f64::from(*got) - want).abs() < 1e-4, "window {window:?}, token {token}: {got} is not {want}");
        }
    }
}
