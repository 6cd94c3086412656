//! Adapters: a request with one has the results of a model whose weights the adapter is merged into, whatever else is in
//! the batch.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod batches;
mod files;
mod memory;
mod merged;
mod reloads;

use std::path::Path;

use engine::{AdapterHandle, Completion, Device, Llm, ModelFiles, Options, Prompt, SamplingParams};
use tests::adapters::RandomAdapter;
use tests::model_dir;

fn files(model: &str) -> ModelFiles {
    ModelFiles::directory(model_dir(model)).unwrap()
}

/// Options of an engine on the CPU.
fn options() -> Options {
    Options { device: Device::Cpu, threads: Some(2), ..Options::default() }
}

/// Writes a random adapter for a model to a directory, and gives it a name.
fn load(llm: &Llm, files: &ModelFiles, (name, seed, rank): (&str, u64, usize), directory: &Path) -> AdapterHandle {
    let path = directory.join(format!("{name}-{seed}-{rank}"));
    RandomAdapter::new(files, seed, rank).write(&path);
    llm.adapters().load(name, &path).unwrap()
}

/// A greedy request of 24 tokens with logprobs.
fn greedy(adapter: Option<&AdapterHandle>) -> SamplingParams {
    SamplingParams {
        max_tokens: 24,
        ignore_eos: true,
        logprobs: Some(0),
        adapter: adapter.cloned(),
        ..SamplingParams::default()
    }
}

/// A prompt of `len` tokens.
fn prompt(seed: u32, len: u32) -> Prompt {
    Prompt::Tokens((0..len).map(|i| 3 + (seed * 97 + i * i * 7 + i) % 400).collect())
}

/// The tokens of a request's outputs, with the bits of their logprobs.
fn bits(completion: &Completion) -> Vec<Vec<(u32, u32)>> {
    let of_output = |output: &engine::Continuation| {
        let logprobs = output.logprobs.as_ref().unwrap();
        logprobs.iter().map(|token| (token.token, token.logprob.to_bits())).collect()
    };
    completion.outputs.iter().map(of_output).collect()
}
