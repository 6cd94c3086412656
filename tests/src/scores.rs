//! Likelihood of texts under a model, and its change when weights or caches are rounded.

#![allow(clippy::unwrap_used)] // these are parts of tests, and a failed unwrap is a failed test

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use engine::DType;
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Completion, Llm, Prompt};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::families::family_golden;
use crate::model_dir;

/// A tensor of a safetensors file: name, type, shape and bytes.
pub type FileTensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// Returns the logprobs of all tokens of some texts except the first token of each.
///
/// # Panics
/// If a text is refused, or a step fails.
pub fn scores(llm: &mut Llm, texts: &[Vec<u32>]) -> Vec<f32> {
    let params = SamplingParams { max_tokens: 1, prompt_logprobs: Some(0), ..SamplingParams::default() };
    let prompts: Vec<Prompt> = texts.iter().map(|text| Prompt::Tokens(text.clone())).collect();
    let done = llm.generate(&prompts, &params).unwrap();
    let logprobs = |c: Completion| c.prompt_logprobs.unwrap().into_iter().flatten().map(|p| p.logprob);
    done.into_iter().flat_map(logprobs).collect()
}

/// Returns the root mean square difference of logprobs, and the largest difference.
///
/// # Panics
/// If the lengths differ, there are 100 or fewer values, or a value is not finite.
pub fn difference(a: &[f32], b: &[f32]) -> (f32, f32) {
    let differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| (a - b).abs()).collect();
    assert!(a.len() == b.len() && a.len() > 100 && differences.iter().all(|d| d.is_finite()));
    let mean = differences.iter().map(|d| d * d).sum::<f32>() / differences.len() as f32;
    (mean.sqrt(), differences.iter().copied().fold(0.0, f32::max))
}

/// Returns the perplexity of texts whose tokens have these logprobs.
pub fn perplexity(scores: &[f32]) -> f32 {
    (-scores.iter().sum::<f32>() / scores.len() as f32).exp()
}

/// Returns the prompts of a golden model or a committed family, each with its greedy continuation.
pub fn texts(model: &str) -> Vec<Vec<u32>> {
    family_golden(&model_dir(model)).prompts.into_iter().map(|p| [p.ids, p.greedy.ids].concat()).collect()
}

/// Returns the bundled model's own greedy stories.
///
/// # Panics
/// If the fixture is malformed.
pub fn stories() -> Vec<Vec<u32>> {
    #[derive(Deserialize)]
    struct Golden {
        cases: Vec<Case>,
    }
    #[derive(Deserialize)]
    struct Case {
        prompt_ids: Vec<u32>,
        greedy_ids: Vec<u32>,
    }
    let golden: Golden = serde_json::from_str(include_str!("../fixtures/opt-story-3m/golden.json")).unwrap();
    golden.cases.into_iter().map(|c| [c.prompt_ids, c.greedy_ids].concat()).collect()
}

/// Writes the same model to `directory` in Hugging Face's format, with its weights dequantised to f32.
///
/// # Panics
/// If the model cannot be read, or the directory cannot be written.
pub fn dequantised(files: &ModelFiles, directory: &Path) -> ModelFiles {
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::write(directory.join(file), files.read(file).unwrap().unwrap()).unwrap();
    }
    let mut config: Map<String, Value> = serde_json::from_slice(&files.read("config.json").unwrap().unwrap()).unwrap();
    config.remove("quantization_config");
    fs::write(directory.join("config.json"), serde_json::to_string(&config).unwrap()).unwrap();
    let mut weights = files.weights(None).unwrap();
    let names: BTreeMap<String, Vec<usize>> =
        weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap().to_vec())).collect();
    let is_gpt_oss = config.get("model_type").is_some_and(|kind| kind == "gpt_oss");
    let tensors = names.into_iter().map(|(name, mut shape)| {
        // In Hugging Face's format, GPT-2's projections and two of gpt-oss's stacks of experts have one row per input.
        let is_stack = is_gpt_oss && shape.len() == 3 && !name.contains(".gate_proj.") && !name.contains(".up_proj.");
        let transposed = is_stack || name.contains(".c_") && shape.len() == 2;
        let transposed = transposed && weights.rows_are_outputs(&name);
        let tensor = weights.take(&name, &shape).unwrap().to_dtype(DType::F32);
        if !transposed {
            return (name, Dtype::F32, shape, tensor.bytes().to_vec());
        }
        let last = shape.len() - 1;
        let matrices = tensor.into_matrices(shape[last - 1]);
        shape.swap(last - 1, last);
        (name, Dtype::F32, shape, matrices.iter().flat_map(|matrix| matrix.transposed().bytes().to_vec()).collect())
    });
    write(directory, &tensors.collect::<Vec<_>>())
}

/// Writes these tensors as the weights of the model in `directory`, and opens the model.
///
/// # Panics
/// If they cannot be written.
pub fn write(directory: &Path, tensors: &[FileTensor]) -> ModelFiles {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &directory.join("model.safetensors")).unwrap();
    ModelFiles::directory(directory).unwrap()
}
