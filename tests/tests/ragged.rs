//! Models whose rows are not whole vectors. Golden models with feed-forward layers cut to 172 elements give the same
//! scores on the emulator as on the CPU.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::collections::HashMap;
use std::fs;

use engine::DType;
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Device, Llm, Options, Prompt};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tests::{golden, golden_dir};

/// Size of a cut feed-forward layer: neither a multiple of 16 nor of 8.
const LEFT: usize = 172;

/// Tensors that keep only their first rows, and tensors that keep only their first columns. Elements of a vector count
/// as rows.
struct Cut {
    model: &'static str,
    config: &'static str,
    rows: &'static [&'static str],
    cols: &'static [&'static str],
}

const CUTS: [Cut; 4] = [
    Cut {
        model: "llama3",
        config: "intermediate_size",
        rows: &["gate_proj.weight", "up_proj.weight"],
        cols: &["down_proj.weight"],
    },
    Cut {
        model: "mistral",
        config: "intermediate_size",
        rows: &["gate_proj.weight", "up_proj.weight"],
        cols: &["down_proj.weight"],
    },
    Cut { model: "opt-pre", config: "ffn_dim", rows: &["fc1.weight", "fc1.bias"], cols: &["fc2.weight"] },
    // GPT-2's weights are stored transposed.
    Cut { model: "gpt2", config: "n_inner", rows: &["mlp.c_proj.weight", "c_fc.bias"], cols: &["c_fc.weight"] },
];

/// Writes the cut model to a temporary directory.
fn cut(cut: &Cut) -> tempfile::TempDir {
    let (from, to) = (golden_dir(cut.model), tempfile::tempdir().unwrap());
    for entry in fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    let config = to.path().join("config.json");
    let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    fields[cut.config] = LEFT.into();
    fs::write(&config, fields.to_string()).unwrap();

    let weights = to.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    let mut smaller = HashMap::new();
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
        let mut shape = tensor.shape().to_vec();
        let is = |names: &[&str]| names.iter().any(|end| name.ends_with(end));
        let (rows, cols) = (is(cut.rows), is(cut.cols));
        let element = tensor.data().len() / shape.iter().product::<usize>();
        let width = element * shape[1..].iter().product::<usize>();
        let part = |all: usize, is_cut: bool| if is_cut { LEFT } else { all };
        let kept_rows = part(shape[0], rows);
        let kept_cols = part(width / element, cols);
        let data: Vec<u8> =
            tensor.data().chunks(width).take(kept_rows).flat_map(|row| &row[..kept_cols * element]).copied().collect();
        shape[0] = kept_rows;
        if cols {
            shape[1] = kept_cols;
        }
        smaller.insert(name.to_owned(), (tensor.dtype(), shape, data));
    }
    let views = smaller
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(&weights, safetensors::serialize(views, None).unwrap()).unwrap();
    to
}

#[test]
fn rows_of_partial_vectors_give_the_cpus_scores() {
    emulator::driver::configure(emulator::driver::DeviceOptions { multiprocessors: 4, ..Default::default() });
    for one in &CUTS {
        let (dir, prompts) = (cut(one), golden(one.model).prompts);
        let load = |device| {
            let options = Options { device, dtype: Some(DType::F16), kv_memory: Some(16 << 20), ..Options::default() };
            Llm::load(&ModelFiles::directory(dir.path()).unwrap(), &options).unwrap()
        };
        let [mut cpu, mut gpu] = [Device::Cpu, Device::Emulator].map(load);
        for prompt in prompts.iter().take(2) {
            // Score the golden continuation. Each of its tokens depends on all layers, with many rows and with few.
            let text = [prompt.ids.as_slice(), &prompt.greedy.ids].concat();
            let params = SamplingParams { max_tokens: 4, prompt_logprobs: Some(1), ..SamplingParams::default() };
            let scores = |llm: &mut Llm| {
                let done = llm.generate(&[Prompt::Tokens(text.clone())], &params).unwrap().remove(0);
                done.prompt_logprobs.unwrap()[1..].iter().map(|e| e.as_ref().unwrap().logprob).collect::<Vec<_>>()
            };
            let (cpu, gpu) = (scores(&mut cpu), scores(&mut gpu));
            assert_eq!(cpu.len(), gpu.len());
            for (step, (want, got)) in cpu.iter().zip(&gpu).enumerate() {
                assert!((want - got).abs() < 0.05, "{}, {}, token {step}: {got}, {want}", one.model, prompt.name);
            }
        }
    }
}
