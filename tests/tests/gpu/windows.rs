//! A model of which only some layers have a window, so that its layers form two groups. Its weights are Qwen 3's. There
//! are no recorded results, so all outputs are scored on the CPU in f32.

use std::fs;

use engine::Preemption;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// Copies Qwen 3 and gives windows to its first and last layer.
fn model() -> TempDir {
    let (from, to) = (golden_dir("qwen3"), tempfile::tempdir().unwrap());
    for file in fs::read_dir(&from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
    }
    let path = to.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let windows = json!({
        "use_sliding_window": true,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    });
    config.as_object_mut().unwrap().extend(windows.as_object().unwrap().clone());
    fs::write(path, config.to_string()).unwrap();
    to
}

/// The pages of a cache that holds this many tokens in every layer.
fn pool(tokens: usize, options: &Options) -> Option<usize> {
    let token = 3 * 2 * 2 * 128;
    Some(tokens.next_multiple_of(2 * options.block_size) * token)
}

/// Runs the prompts of Qwen 3 greedily and with three samples each. Returns the number of preemptions.
fn assert_scores(options: &Options, factor: f32) -> usize {
    let directory = model();
    let golden = golden("qwen3");
    let (_, drift) = record(&golden, options.dtype.unwrap());
    let load = |options: &Options| Llm::load(&ModelFiles::directory(directory.path()).unwrap(), options).unwrap();
    let (mut llm, mut oracle) = (load(options), load(&Options { device: Device::Cpu, ..Options::default() }));
    assert_eq!(llm.kv_layout().groups.len(), 2);
    let methods = [SamplingParams { max_tokens: 30, ..greedy() }, samples()];
    let requests: Vec<_> = golden
        .prompts
        .iter()
        .flat_map(|p| methods.iter().map(|m| (Prompt::Tokens(p.ids.clone()), m.clone())))
        .collect();
    let done = complete(&mut llm, requests.clone());
    for ((prompt, _), done) in requests.into_iter().zip(done) {
        let Prompt::Tokens(ids) = prompt else { panic!("prompts are tokens") };
        for output in done.outputs {
            let text = [ids.as_slice(), &output.tokens].concat();
            let reported = output.logprobs.unwrap();
            for (step, want) in score(&mut oracle, &text, ids.len()).into_iter().enumerate() {
                let got = reported[step].logprob;
                assert!((got - want).abs() <= factor * drift, "{} tokens, step {step}: {got}, {want}", ids.len());
            }
        }
    }
    assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
    assert!(llm.stats().copied_blocks > 0, "no block was copied");
    llm.stats().preemptions
}

#[test]
fn two_groups_in_one_batch() {
    assert_scores(&options(DType::F16), 1.5);
}

#[test]
fn two_groups_swapped_out_in_chunks() {
    for cuda_graphs in [true, false] {
        let scheduler = SchedulerOptions {
            max_batch_tokens: 13,
            preemption: Preemption::Swap,
            prefix_caching: false,
            ..options(DType::F16).scheduler
        };
        let options = Options { block_size: 8, cuda_graphs, scheduler, ..options(DType::F16) };
        let options = Options { kv_memory: pool(200, &options), ..options };
        assert!(assert_scores(&options, 1.5) > 0);
    }
}

#[test]
fn two_groups_in_bf16_with_drafts() {
    let scheduler = SchedulerOptions { max_batch_tokens: 48, draft_tokens: 3, ..options(DType::Bf16).scheduler };
    assert_scores(&Options { block_size: 32, scheduler, ..options(DType::Bf16) }, 1.5);
}

#[test]
fn two_groups_with_the_papers_kernels() {
    for attention in [AttentionKernels::V1, AttentionKernels::V2] {
        let options = Options { attention, block_size: 8, ..options(DType::F16) };
        let options = Options { kv_memory: pool(300, &options), ..options };
        assert_scores(&options, 1.5);
    }
}

#[test]
fn two_groups_on_two_gpus() {
    assert_scores(&Options { tensor_parallel_size: 2, ..options(DType::F16) }, 1.5);
}
