//! A model with windows in some of its layers. The layers form two groups. Its weights are Qwen 3's. There
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

/// Loads the model on a device and on the CPU.
fn load_both(options: &Options) -> [Llm; 2] {
    let directory = model();
    let load = |options: &Options| Llm::load(&ModelFiles::directory(directory.path()).unwrap(), options).unwrap();
    let both = [load(options), load(&Options { device: Device::Cpu, ..Options::default() })];
    assert_eq!(both[0].kv_layout().groups.len(), 2);
    both
}

/// Runs requests, and asserts that the CPU gives the outputs about the same logprobs.
fn assert_scores(
    [llm, oracle]: &mut [Llm; 2],
    requests: impl IntoIterator<Item = (Vec<u32>, SamplingParams)>,
    tolerance: f32,
) {
    let (prompts, params): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
    let done = complete(llm, prompts.iter().cloned().map(Prompt::Tokens).zip(params));
    for (ids, done) in prompts.into_iter().zip(done) {
        for output in done.outputs {
            let text = [ids.as_slice(), &output.tokens].concat();
            let reported = output.logprobs.unwrap();
            for (step, want) in score(oracle, &text, ids.len()).into_iter().enumerate() {
                let got = reported[step].logprob;
                assert!((got - want).abs() <= tolerance, "{} tokens, step {step}: {got}, {want}", ids.len());
            }
        }
    }
}

/// Returns the largest drift that is allowed.
fn tolerance(golden: &Golden, options: &Options) -> f32 {
    1.5 * record(golden, options.dtype.unwrap()).1
}

/// Runs the prompts of Qwen 3 greedily and with three samples each. Returns the number of preemptions.
fn assert_prompts(options: &Options) -> usize {
    let (golden, mut both) = (golden("qwen3"), load_both(options));
    let methods = [SamplingParams { max_tokens: 30, ..greedy() }, samples()];
    let requests = golden.prompts.iter().flat_map(|p| methods.iter().map(|m| (p.ids.clone(), m.clone())));
    assert_scores(&mut both, requests, tolerance(&golden, options));
    let [llm, _] = both;
    assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
    assert!(llm.stats().copied_blocks > 0, "no block was copied");
    llm.stats().preemptions
}

#[test]
fn two_groups_in_one_batch() {
    assert_prompts(&options(DType::F16));
}

fn assert_swapped_out(cuda_graphs: bool) {
    let scheduler = SchedulerOptions {
        max_batch_tokens: 13,
        preemption: Preemption::Swap,
        prefix_caching: false,
        ..options(DType::F16).scheduler
    };
    let options = Options { block_size: 8, cuda_graphs, scheduler, ..options(DType::F16) };
    let options = Options { kv_memory: pool(130, &options), ..options };
    assert!(assert_prompts(&options) > 0);
}

#[test]
fn two_groups_swapped_out_in_chunks() {
    assert_swapped_out(true);
}

#[test]
#[ignore = "takes five seconds; .ci/run has a step for it"]
fn two_groups_swapped_out_in_chunks_and_not_recorded() {
    assert_swapped_out(false);
}

#[test]
fn two_groups_in_bf16_with_drafts() {
    let scheduler = SchedulerOptions { max_batch_tokens: 48, draft_tokens: 3, ..options(DType::Bf16).scheduler };
    assert_prompts(&Options { block_size: 32, scheduler, ..options(DType::Bf16) });
}

fn assert_papers_kernels(attention: AttentionKernels) {
    let options = Options { attention, block_size: 8, ..options(DType::F16) };
    let options = Options { kv_memory: pool(300, &options), ..options };
    assert_prompts(&options);
}

#[test]
#[ignore = "takes five seconds; .ci/run has a step for it"]
fn two_groups_with_the_papers_first_kernel() {
    assert_papers_kernels(AttentionKernels::V1);
}

#[test]
fn two_groups_with_the_papers_second_kernel() {
    assert_papers_kernels(AttentionKernels::V2);
}

#[test]
fn two_groups_on_two_gpus() {
    assert_prompts(&Options { tensor_parallel_size: 2, ..options(DType::F16) });
}

#[test]
fn two_groups_in_eight_bits() {
    let options = Options { kv_dtype: Some(engine::KvDtype::Int8), ..options(DType::F16) };
    let (golden, mut both) = (golden("qwen3"), load_both(&options));
    let requests = golden.prompts.iter().map(|p| (p.ids.clone(), SamplingParams { max_tokens: 8, ..greedy() }));
    assert_scores(&mut both, requests, 0.2);
}

/// Runs prompts in turn in a small pool. Their blocks move to the host's memory and back.
#[test]
fn evicted_blocks_of_two_groups_are_restored() {
    let golden = golden("qwen3");
    let mut prompts: Vec<_> = golden.prompts.iter().map(|prompt| prompt.ids.clone()).collect();
    prompts.sort_by_key(|ids| std::cmp::Reverse(ids.len()));
    let options = Options { block_size: 8, swap_space: Some(64 << 20), ..options(DType::F16) };
    let options = Options { kv_memory: pool(prompts[0].len(), &options), ..options };
    let mut both = load_both(&options);
    for _ in 0..2 {
        for ids in &prompts {
            let request = (ids.clone(), SamplingParams { max_tokens: 8, ..greedy() });
            assert_scores(&mut both, [request], tolerance(&golden, &options));
        }
    }
    let stats = both[0].stats();
    assert!(stats.offloaded_blocks > 0 && stats.restored_blocks > 0, "{stats:?}");
}
