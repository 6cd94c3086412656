//! Tiny models of every family with random weights. Most have heads and layers that divide by four, and some have heads
//! of unusual size.

#![allow(clippy::unwrap_used)] // these are parts of tests, and a failed unwrap is a failed test

use std::fs;
use std::path::Path;

use engine::ModelFiles;
use safetensors::Dtype;
use serde_json::{Value, json};
use workbench::number::ProblemRng;

use crate::golden_dir;
use crate::scores::{FileTensor, write};

/// Vocabulary size. Four workers cannot divide it evenly, so the last one has fewer tokens.
const VOCAB: usize = 515;
const HIDDEN: usize = 128;
const INNER: usize = 192;
const POSITIONS: usize = 128;
/// Decoder layers per model.
pub const LAYERS: usize = 2;

/// The models that can be divided.
pub const MODELS: [&str; 9] =
    ["opt", "opt-350m-like", "gpt2", "llama", "llama-grouped", "mistral", "qwen2", "qwen3", "one-kv-head"];

/// Models whose head size no golden model has.
pub const HEADS: [&str; 2] = ["heads-of-96", "heads-of-256"];

/// A model's `config.json`, with the names and shapes of its tensors.
struct Shape {
    config: Value,
    tensors: Vec<(String, Vec<usize>)>,
}

/// Writes a model of [`MODELS`] or [`HEADS`] into a directory.
///
/// # Panics
/// If there is no such model, or it cannot be written.
pub fn make(name: &str, directory: &Path) -> ModelFiles {
    let shape = match name {
        "opt" => opt(true, HIDDEN),
        "opt-350m-like" => opt(false, HIDDEN / 2),
        "gpt2" => gpt2(),
        // All projections have biases, and positions are rotated without scaling.
        "llama" => llama("LlamaForCausalLM", 4, &json!({ "attention_bias": true, "mlp_bias": true })),
        // Two key-value heads, fewer than four workers, and attention that is wider than the residual stream.
        "llama-grouped" => llama(
            "LlamaForCausalLM",
            2,
            &json!({
                "num_attention_heads": 8,
                "tie_word_embeddings": true,
                "rope_scaling": { "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                  "original_max_position_embeddings": 32 },
            }),
        ),
        "mistral" => llama("MistralForCausalLM", 2, &json!({ "sliding_window": 24 })),
        "qwen2" => llama("Qwen2ForCausalLM", 4, &json!({ "tie_word_embeddings": true })),
        "qwen3" => llama("Qwen3ForCausalLM", 2, &json!({ "head_dim": 64 })),
        "one-kv-head" => llama("Qwen3ForCausalLM", 1, &json!({ "attention_bias": true })),
        "heads-of-96" => llama("LlamaForCausalLM", 2, &json!({ "head_dim": 96 })),
        "heads-of-256" => llama("Qwen3ForCausalLM", 1, &json!({ "head_dim": 256 })),
        _ => panic!("there is no model {name}"),
    };
    let seed = MODELS.iter().chain(&HEADS).position(|model| *model == name).unwrap() as u64;
    let mut random = ProblemRng(seed);
    let tensors: Vec<FileTensor> = shape
        .tensors
        .into_iter()
        .map(|(name, shape)| {
            let bytes = elements(&name, &shape, &mut random).into_iter().flat_map(f32::to_le_bytes).collect();
            (name, Dtype::F32, shape, bytes)
        })
        .collect();
    fs::write(directory.join("config.json"), shape.config.to_string()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(golden_dir("opt-pre").join(file), directory.join(file)).unwrap();
    }
    write(directory, &tensors)
}

/// Returns random elements. Projections preserve the scale of their inputs, norms are near 1, and logits are some units
/// apart.
fn elements(name: &str, shape: &[usize], random: &mut ProblemRng) -> Vec<f32> {
    let is_norm = shape.len() == 1 && name.ends_with("weight");
    let is_table = ["embed_", "wte", "wpe", "lm_head"].iter().any(|part| name.contains(part));
    let (mean, spread) = match shape {
        [_] => (if is_norm { 1.0 } else { 0.0 }, 0.25),
        _ if is_table => (0.0, 0.5),
        _ => (0.0, (3.0 / shape[1] as f64).sqrt()),
    };
    (0..shape.iter().product()).map(|_| (mean + spread * random.unit()) as f32).collect()
}

/// Adds a projection, with or without a bias.
fn linear(tensors: &mut Vec<(String, Vec<usize>)>, name: String, outputs: usize, inputs: usize, bias: bool) {
    tensors.push((format!("{name}.weight"), vec![outputs, inputs]));
    if bias {
        tensors.push((format!("{name}.bias"), vec![outputs]));
    }
}

/// Adds a layer norm.
fn layer_norm(tensors: &mut Vec<(String, Vec<usize>)>, name: String) {
    tensors.push((format!("{name}.weight"), vec![HIDDEN]));
    tensors.push((format!("{name}.bias"), vec![HIDDEN]));
}

fn opt(norm_first: bool, embed: usize) -> Shape {
    let mut tensors = vec![
        ("model.decoder.embed_tokens.weight".into(), vec![VOCAB, embed]),
        ("model.decoder.embed_positions.weight".into(), vec![POSITIONS + 2, HIDDEN]),
    ];
    if norm_first {
        layer_norm(&mut tensors, "model.decoder.final_layer_norm".into());
    }
    if embed != HIDDEN {
        linear(&mut tensors, "model.decoder.project_in".into(), HIDDEN, embed, false);
        linear(&mut tensors, "model.decoder.project_out".into(), embed, HIDDEN, false);
    }
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.decoder.layers.{layer}.{part}");
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            linear(&mut tensors, name(&format!("self_attn.{part}")), HIDDEN, HIDDEN, true);
        }
        layer_norm(&mut tensors, name("self_attn_layer_norm"));
        layer_norm(&mut tensors, name("final_layer_norm"));
        linear(&mut tensors, name("fc1"), INNER, HIDDEN, true);
        linear(&mut tensors, name("fc2"), HIDDEN, INNER, true);
    }
    let config = json!({
        "architectures": ["OPTForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "ffn_dim": INNER, "max_position_embeddings": POSITIONS,
        "do_layer_norm_before": norm_first, "word_embed_proj_dim": embed,
    });
    Shape { config, tensors }
}

fn gpt2() -> Shape {
    let mut tensors = vec![
        ("transformer.wte.weight".into(), vec![VOCAB, HIDDEN]),
        ("transformer.wpe.weight".into(), vec![POSITIONS, HIDDEN]),
    ];
    layer_norm(&mut tensors, "transformer.ln_f".into());
    for layer in 0..LAYERS {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        layer_norm(&mut tensors, name("ln_1"));
        layer_norm(&mut tensors, name("ln_2"));
        for (part, outputs, inputs) in [
            ("attn.c_attn", 3 * HIDDEN, HIDDEN),
            ("attn.c_proj", HIDDEN, HIDDEN),
            ("mlp.c_fc", INNER, HIDDEN),
            ("mlp.c_proj", HIDDEN, INNER),
        ] {
            // GPT-2's projections are stored transposed.
            tensors.push((format!("{}.weight", name(part)), vec![inputs, outputs]));
            tensors.push((format!("{}.bias", name(part)), vec![outputs]));
        }
    }
    let config = json!({
        "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4,
        "n_inner": INNER, "n_positions": POSITIONS,
    });
    Shape { config, tensors }
}

/// Describes a LLaMA-like model with `kv_heads` key-value heads. `more` overrides fields of its configuration.
fn llama(class: &str, kv_heads: usize, more: &Value) -> Shape {
    let mut config = json!({
        "architectures": [class], "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": kv_heads, "head_dim": 32, "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": false,
    });
    more.as_object().unwrap().iter().for_each(|(field, value)| config[field] = value.clone());
    let size = |field: &str| config[field].as_u64().unwrap() as usize;
    let is = |field: &str| config[field] == true;
    let (q, kv) = (size("num_attention_heads") * size("head_dim"), kv_heads * size("head_dim"));
    let qkv_bias = is("attention_bias") || class == "Qwen2ForCausalLM";
    let mut tensors =
        vec![("model.embed_tokens.weight".into(), vec![VOCAB, HIDDEN]), ("model.norm.weight".into(), vec![HIDDEN])];
    if !is("tie_word_embeddings") {
        tensors.push(("lm_head.weight".into(), vec![VOCAB, HIDDEN]));
    }
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        tensors.push((name("input_layernorm.weight"), vec![HIDDEN]));
        tensors.push((name("post_attention_layernorm.weight"), vec![HIDDEN]));
        linear(&mut tensors, name("self_attn.q_proj"), q, HIDDEN, qkv_bias);
        linear(&mut tensors, name("self_attn.k_proj"), kv, HIDDEN, qkv_bias);
        linear(&mut tensors, name("self_attn.v_proj"), kv, HIDDEN, qkv_bias);
        linear(&mut tensors, name("self_attn.o_proj"), HIDDEN, q, is("attention_bias"));
        if class == "Qwen3ForCausalLM" {
            tensors.push((name("self_attn.q_norm.weight"), vec![size("head_dim")]));
            tensors.push((name("self_attn.k_norm.weight"), vec![size("head_dim")]));
        }
        linear(&mut tensors, name("mlp.gate_proj"), INNER, HIDDEN, is("mlp_bias"));
        linear(&mut tensors, name("mlp.up_proj"), INNER, HIDDEN, is("mlp_bias"));
        linear(&mut tensors, name("mlp.down_proj"), HIDDEN, INNER, is("mlp_bias"));
    }
    Shape { config, tensors }
}
