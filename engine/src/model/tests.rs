//! Compares the forward passes of tiny models of the families with transformers. Each prompt is computed with its answer
//! in one pass, without the engine.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, CpuTensor};
use crate::batch::{Batch, Span};
use crate::kv::{CacheGroup, KvLayout};
use crate::load::ModelFiles;
use crate::tensor::DType;

const BLOCK: usize = 16;

fn directory(family: &str) -> PathBuf {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/families");
    std::env::var_os("QUIRE_FAMILIES").map_or(committed, PathBuf::from).join(family)
}

/// Returns a batch of one sequence, and the number of pages that it needs. The groups' blocks are in different pages.
pub fn batch(tokens: &[u32], layout: &KvLayout) -> (Batch, usize) {
    let mut batch = Batch::new(layout.groups.len());
    batch.tokens = tokens.to_vec();
    batch.positions = (0..tokens.len() as u32).collect();
    batch.logit_rows = batch.positions.clone();
    batch.spans = vec![Span { start: 0, len: tokens.len(), context: tokens.len(), table: 0 }];
    let (blocks, mut pages) = (tokens.len().div_ceil(BLOCK), 0);
    for (group, CacheGroup { blocks_per_page, id_step, .. }) in batch.groups.iter_mut().zip(layout.cache_groups()) {
        let first = pages * blocks_per_page;
        pages += blocks.div_ceil(blocks_per_page);
        group.blocks = (first..first + blocks).map(|id| (id * id_step) as u32).collect();
        let slot = |p: usize| group.blocks[p / BLOCK] * BLOCK as u32 + (p % BLOCK) as u32;
        group.slots = (0..tokens.len()).map(slot).collect();
    }
    (batch, pages)
}

fn logits(files: &ModelFiles, tokens: &[u32]) -> CpuTensor {
    let (config, backend) = (files.config().unwrap(), CpuBackend::new(Some(1)).unwrap());
    let mut weights = files.weights(Some(DType::F32)).unwrap();
    weights.strip_prefix(config.family.weight_prefixes());
    let model = super::load(&backend, &config, &mut weights, config.max_positions).unwrap();
    let layout = KvLayout::new(&config.memory_layers(), BLOCK, DType::F32.into());
    let (batch, pages) = batch(tokens, &layout);
    let mut cache = backend.kv_cache(layout, pages, 0).unwrap();
    let inputs = backend.upload(batch, &[]);
    let hidden = model.forward(&backend, &mut cache, &inputs);
    model.logits(&backend, backend.logit_rows(&hidden, &inputs))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Compares the likeliest tokens and their logprobs after each token of the recorded answers.
fn assert_forward_pass_matches(family: &str) {
    let files = ModelFiles::directory(directory(family)).unwrap();
    let golden: Value = serde_json::from_slice(&std::fs::read(directory(family).join("golden.json")).unwrap()).unwrap();
    let allowed = if family.starts_with("gemma4") { 1e-2 } else { 1e-3 };
    for prompt in golden["prompts"].as_array().unwrap() {
        let (start, greedy) = (ids(&prompt["ids"]), &prompt["greedy"]);
        let answer = ids(&greedy["ids"]);
        let tokens = [&start[..], &answer[..answer.len() - 1]].concat();
        let logits = logits(&files, &tokens);
        for (step, want) in greedy["top5"].as_array().unwrap().iter().enumerate() {
            let row = &logits.as_slice()[(start.len() - 1 + step) * logits.cols()..][..logits.cols()];
            let at = format!("{family}, {} prompt tokens, step {step}", start.len());
            let likeliest = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
            assert_eq!(likeliest.0 as u32, answer[step], "{at}");
            let norm: f64 = row.iter().map(|x| f64::from(x - likeliest.1).exp()).sum();
            for (id, logprob) in ids(&want["ids"]).into_iter().zip(want["logprobs"].as_array().unwrap()) {
                let got = f64::from(row[id as usize] - likeliest.1) - norm.ln();
                let off = (got - logprob.as_f64().unwrap()).abs();
                assert!(off < allowed, "{at}: token {id} is off by {off}");
            }
        }
    }
}

#[test]
fn layers_with_different_heads_and_shared_caches_match_transformers() {
    for family in ["gemma4", "gemma4-e"] {
        assert_forward_pass_matches(family);
    }
}

#[test]
fn layers_with_experts_match_transformers() {
    for family in ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "gemma4-moe", "granitemoe", "deepseek2", "deepseek3"]
    {
        assert_forward_pass_matches(family);
    }
}
