//! Random adapters of test models, as PEFT directories and merged into the models' weights.

#![allow(clippy::unwrap_used)] // these are parts of tests, and a failed unwrap is a failed test

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use engine::tools::load::Weights;
use engine::{DType, ModelFiles};
use safetensors::Dtype;
use serde_json::json;
use workbench::number::ProblemRng;

use crate::scores::{FileTensor, write};

/// The ends of the names of projections.
const PROJECTIONS: [&str; 22] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "out_proj",
    "qkv_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj",
    "fc1",
    "fc2",
    "c_attn",
    "c_proj",
    "c_fc",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "in_proj",
    "in_proj_qkvz",
    "per_layer_input_gate",
    "feed_forward.w1",
];

/// The parts of a model whose projections adapters cannot change.
const EXCEPT: [&str; 3] = [".experts.", ".shared_expert", ".block_sparse_moe."];

/// An adapter for some projections of a model.
#[derive(Debug)]
pub struct RandomAdapter {
    rank: usize,
    alpha: f64,
    stabilised: bool,
    products: BTreeMap<String, Product>,
}

#[derive(Debug)]
struct Product {
    /// `[rank, inputs]`
    a: Vec<f32>,
    /// `[outputs, rank]`
    b: Vec<f32>,
    outputs: usize,
    inputs: usize,
}

fn tensors(files: &ModelFiles) -> (Weights, BTreeMap<String, Vec<usize>>) {
    let weights = files.weights(None).unwrap();
    let shapes = weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap().to_vec())).collect();
    (weights, shapes)
}

/// Copies the files of a model that are not weights.
fn copy_texts(files: &ModelFiles, directory: &Path) {
    let mut names: Vec<String> =
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"].map(String::from).into();
    if let Some(path) = files.path().filter(|path| path.is_dir()) {
        names
            .extend(["vocab.json", "merges.txt"].map(String::from).into_iter().filter(|name| path.join(name).exists()));
    }
    for name in names {
        if let Some(text) = files.read(&name).unwrap() {
            fs::write(directory.join(name), text).unwrap();
        }
    }
}

/// Whether the rows of a weight are inputs.
fn is_transposed(module: &str) -> bool {
    ["c_attn", "c_proj", "c_fc"].iter().any(|end| module.ends_with(end))
}

impl RandomAdapter {
    /// An adapter of this rank for all projections of a model. `seed` selects the numbers.
    pub fn new(files: &ModelFiles, seed: u64, rank: usize) -> Self {
        let (mut rng, mut products) = (ProblemRng(seed), BTreeMap::new());
        for (name, shape) in tensors(files).1 {
            let Some(module) = name.strip_suffix(".weight") else { continue };
            let is_own = PROJECTIONS.iter().any(|end| module.ends_with(&format!(".{end}")));
            if !is_own || shape.len() != 2 || EXCEPT.iter().any(|part| module.contains(part)) {
                continue;
            }
            let (outputs, inputs) = if is_transposed(module) { (shape[1], shape[0]) } else { (shape[0], shape[1]) };
            let mut noise = |count: usize, size: f64| (0..count).map(|_| (rng.unit() * size) as f32).collect();
            let a = noise(rank * inputs, (inputs as f64).powf(-0.5));
            let b = noise(outputs * rank, 0.2);
            products.insert(module.to_owned(), Product { a, b, outputs, inputs });
        }
        assert!(!products.is_empty(), "the model has no projections");
        RandomAdapter { rank, alpha: 2.0 * rank as f64, stabilised: seed.is_multiple_of(2), products }
    }

    /// Only the products for modules whose names end so.
    pub fn only(mut self, ends: &[&str]) -> Self {
        self.products.retain(|module, _| ends.iter().any(|end| module.ends_with(end)));
        self
    }

    fn scale(&self) -> f64 {
        self.alpha / if self.stabilised { (self.rank as f64).sqrt() } else { self.rank as f64 }
    }

    /// Writes the adapter as a PEFT directory.
    pub fn write(&self, directory: &Path) {
        let mut all: Vec<FileTensor> = Vec::new();
        for (module, Product { a, b, outputs, inputs }) in &self.products {
            for (half, shape, elements) in [("A", vec![self.rank, *inputs], a), ("B", vec![*outputs, self.rank], b)] {
                let bytes = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
                all.push((format!("base_model.model.{module}.lora_{half}.weight"), Dtype::F32, shape, bytes));
            }
        }
        fs::create_dir_all(directory).unwrap();
        write(directory, &all);
        fs::rename(directory.join("model.safetensors"), directory.join("adapter_model.safetensors")).unwrap();
        let config = json!({"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "bias": "none",
                            "use_rslora": self.stabilised, "target_modules": "all-linear"});
        fs::write(directory.join("adapter_config.json"), config.to_string()).unwrap();
    }

    /// Writes a copy of the model with the products added to its weights, in f32.
    pub fn merged(&self, files: &ModelFiles, directory: &Path) -> ModelFiles {
        copy_texts(files, directory);
        let (mut weights, shapes) = tensors(files);
        let merged = shapes.into_iter().map(|(name, shape)| {
            let mut elements = weights.take(&name, &shape).unwrap().to_dtype(DType::F32).elements().to_f32();
            let module = name.strip_suffix(".weight").unwrap_or_default();
            if let Some(product) = self.products.get(module) {
                self.add(product, is_transposed(module), &mut elements);
            }
            (name, Dtype::F32, shape, elements.iter().flat_map(|x| x.to_le_bytes()).collect())
        });
        write(directory, &merged.collect::<Vec<_>>())
    }

    /// Adds a product to a weight, in double precision.
    fn add(&self, Product { a, b, outputs, inputs }: &Product, is_transposed: bool, weight: &mut [f32]) {
        for row in 0..*outputs {
            for col in 0..*inputs {
                let terms = (0..self.rank).map(|r| f64::from(b[row * self.rank + r]) * f64::from(a[r * inputs + col]));
                let at = if is_transposed { col * outputs + row } else { row * inputs + col };
                weight[at] = (f64::from(weight[at]) + self.scale() * terms.sum::<f64>()) as f32;
            }
        }
    }
}
