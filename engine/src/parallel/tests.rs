//! Compares workers on the CPU with the whole model.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::path::Path;
use std::sync::Arc;
use std::thread;

use super::{ParallelRunner, RankGroup, Shard};
use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::batch::{Batch, Span};
use crate::config::ModelConfig;
use crate::kv::KvLayout;
use crate::load::ModelFiles;
use crate::model::{self, Model};
use crate::runner::{ModelRunner, Runner};
use crate::sampling::{SampleRow, SamplingParams};
use crate::tensor::DType;

const BLOCKS: usize = 8;

/// A golden model's part on a backend, and the layout of its cache.
type Part = (CpuBackend, Box<dyn Model<CpuBackend>>, KvLayout);

fn config(name: &str) -> (ModelFiles, ModelConfig) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/golden").join(name);
    let files = ModelFiles::directory(path).unwrap();
    let config = files.config().unwrap();
    (files, config)
}

fn part(name: &str, backend: CpuBackend) -> Part {
    let (files, config) = config(name);
    let mut weights = files.weights(Some(DType::F32)).unwrap();
    weights.strip_prefix(config.family.weight_prefixes());
    let own = backend.shard().config(&config).unwrap();
    let layout = KvLayout::uniform(own.layers, own.kv_heads, own.head_dim, 16, DType::F32.into());
    let model = model::load(&backend, &config, &mut weights, config.max_positions).unwrap();
    (backend, model, layout)
}

fn worker(name: &str, group: &Arc<RankGroup>, rank: usize) -> Part {
    part(name, CpuBackend::new(Some(1)).unwrap().with_rank(group.rank(rank)))
}

/// Returns a step of two prompts.
fn batch() -> Batch {
    let mut batch = Batch::new(1);
    for (first, len) in [(1u32, 19), (3, 5)] {
        batch.spans.push(Span { start: batch.tokens.len(), len, context: len, table: batch.table_len() });
        batch.groups[0].blocks.extend((0..len.div_ceil(16) as u32).map(|block| first + block));
        batch.tokens.extend((0..len as u32).map(|i| 40 + 23 * i % 400));
        batch.positions.extend(0..len as u32);
        batch.groups[0].slots.extend((0..len as u32).map(|i| 16 * first + i));
        batch.logit_rows.push(batch.tokens.len() as u32 - 1);
    }
    batch
}

/// Computes the hidden states and the gathered logits of [`batch`].
fn compute((backend, model, layout): Part) -> (Vec<f32>, Vec<f32>) {
    let mut cache = backend.kv_cache(layout, BLOCKS, 0).unwrap();
    let inputs = backend.upload(batch(), &[]);
    let hidden = model.forward(&backend, &mut cache, &inputs);
    let logits = backend.gather_logits(model.logits(&backend, backend.logit_rows(&hidden, &inputs)));
    (hidden.as_slice().to_vec(), logits.as_slice().to_vec())
}

#[test]
fn workers_match_the_whole_model_with_two_sums_per_layer() {
    for (name, of) in [("llama3", 2), ("llama3", 8), ("opt-350m-like", 2), ("gpt2", 3), ("mistral", 4), ("qwen3", 2)] {
        let (hidden, logits) = compute(part(name, CpuBackend::new(Some(1)).unwrap()));
        let group = RankGroup::new(of);
        let parts = thread::scope(|scope| {
            let start = |rank| {
                let group = &group;
                scope.spawn(move || compute(worker(name, group, rank)))
            };
            let threads: Vec<_> = (0..of).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let layers = config(name).1.layers;
        assert_eq!(group.sums(), 1 + 2 * layers, "{name}, {of} workers");
        assert!(parts.iter().all(|(own, _)| *own == parts[0].0), "{name}, {of} workers: different bits");
        let near = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-3);
        assert!(near(&parts[0].0, &hidden) && near(&parts[0].1, &logits), "{name}, {of} workers");
    }
}

#[test]
fn a_worker_has_its_heads_of_every_block() {
    let kv_heads = |of| Shard { rank: 0, of, ..Shard::WHOLE }.config(&config("llama3").1).unwrap().kv_heads;
    // The model has eight query heads and two key-value heads, so with two or more workers each has one key-value head.
    assert_eq!([1, 2, 4, 8].map(kv_heads), [2, 1, 1, 1]);
}

#[test]
fn an_indivisible_model_is_refused_with_its_numbers() {
    let refusal =
        |name: &str, of| Shard { rank: 0, of, ..Shard::WHOLE }.config(&config(name).1).unwrap_err().to_string();
    assert!(refusal("llama2", 2).contains("3 attention heads cannot be divided among 2 workers"));
    assert!(refusal("llama2", 3).contains("256 elements cannot be divided among 3 workers"));
    let whole_experts = Shard { whole_experts: true, ..Shard::WHOLE };
    let error = whole_experts.config(&config("llama2").1).unwrap_err().to_string();
    assert!(error.contains("expert-parallel: the model has no experts"), "{error}");
}

fn rows<'a>(params: &'a SamplingParams, batch: &Batch) -> Vec<SampleRow<'a>> {
    vec![SampleRow::new(params, 0); batch.logit_rows.len()]
}

/// Returns a runner of two workers. The second has `blocks` blocks.
fn runner(blocks: usize) -> ParallelRunner<CpuBackend> {
    let group = RankGroup::new(2);
    let [first, second] = [(0, BLOCKS), (1, blocks)].map(|(rank, blocks)| {
        let (backend, model, layout) = worker("llama3", &group, rank);
        let cache = backend.kv_cache(layout, blocks, 0).unwrap();
        ModelRunner::new(backend, model, cache)
    });
    ParallelRunner::new(first, vec![second], group).unwrap()
}

#[test]
fn a_step_is_sampled_once() {
    let params = SamplingParams::default();
    let mut runner = runner(BLOCKS);
    let computed = runner.run(batch(), &rows(&params, &batch())).unwrap();
    assert_eq!(computed.sampled.len(), 2);
    // A step without logits, and a step without tokens.
    assert!(runner.run(Batch { logit_rows: Vec::new(), ..batch() }, &[]).unwrap().sampled.is_empty());
    assert!(runner.run(Batch::default(), &[]).unwrap().sampled.is_empty());
    assert_eq!(runner.run(batch(), &rows(&params, &batch())).unwrap(), computed);
}

#[test]
fn a_panicking_worker_fails_the_step_and_blocks_no_other() {
    let params = SamplingParams::default();
    // Block 3 does not exist.
    let mut runner = runner(3);
    for _ in 0..2 {
        let error = runner.run(batch(), &rows(&params, &batch())).unwrap_err().to_string();
        assert!(error.contains("worker 1 of 2 has failed"), "{error}");
    }
}
