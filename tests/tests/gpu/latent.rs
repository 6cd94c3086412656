//! Attention over latent vectors, in models of one dense layer. Logprobs agree with the CPU's in f32.

use engine::ModelFiles;
use engine::{DType, Preemption};
use engine::{Device, Llm, Options, Prompt, SchedulerOptions};
use tests::complete;
use tests::families::{committed_dir, family_golden, first_layers};

use crate::{greedy, options, samples, score};

/// Runs all prompts in one batch, each greedily and with three samples. Logprobs may differ by `allowed`.
fn assert_layer(family: &str, options: &Options, allowed: f32) -> Llm {
    let directory = tempfile::tempdir().unwrap();
    first_layers(family, 1, directory.path());
    let load = |options: &Options| Llm::load(&ModelFiles::directory(directory.path()).unwrap(), options).unwrap();
    let mut llm = load(options);
    let mut oracle = load(&Options { device: Device::Cpu, dtype: Some(DType::F32), ..Options::default() });
    let prompts = family_golden(&committed_dir(family)).prompts;
    let requests = prompts.iter().flat_map(|p| [greedy(), samples()].map(|params| (Prompt::Tokens(p.ids.clone()), params)));
    let mut done = complete(&mut llm, requests).into_iter();
    let mut most = 0.0_f32;
    for prompt in &prompts {
        for output in [done.next().unwrap(), done.next().unwrap()].into_iter().flat_map(|done| done.outputs) {
            let text = [prompt.ids.as_slice(), &output.tokens].concat();
            let reported = output.logprobs.unwrap();
            for (got, want) in reported.iter().zip(score(&mut oracle, &text, prompt.ids.len())) {
                most = most.max((got.logprob - want).abs());
            }
        }
    }
    println!("{family}: {most}");
    assert!(most <= allowed, "{family}: {most}");
    llm
}

#[test]
fn one_layer_agrees_with_the_cpu() {
    let llm = assert_layer("deepseek2", &options(DType::F16), 0.02);
    assert!(llm.stats().copied_blocks > 0, "no block was copied");
    assert_eq!(llm.kv_layout().groups[0].to_string(), "1 layer, 1 latent vector of 48, all tokens");
}

#[test]
fn chunks_drafts_and_preemption_agree_too() {
    let scheduler = SchedulerOptions { max_batch_tokens: 48, draft_tokens: 3, ..SchedulerOptions::default() };
    assert_layer("deepseek3", &Options { block_size: 32, scheduler, ..options(DType::Bf16) }, 0.15);
    for preemption in [Preemption::Swap, Preemption::Recompute] {
        let scheduler = SchedulerOptions { preemption, prefix_caching: false, ..SchedulerOptions::default() };
        let kv_memory = Some((100 + 3 * 40 + 4 * 8) * 2 * 48);
        let options = Options { block_size: 8, kv_memory, scheduler, ..options(DType::F16) };
        assert!(assert_layer("deepseek3", &options, 0.02).stats().preemptions > 0);
    }
}

#[test]
fn latent_vectors_are_replicated_on_two_gpus() {
    let llm = assert_layer("deepseek2", &Options { tensor_parallel_size: 2, ..options(DType::F16) }, 0.02);
    assert_eq!(llm.kv_layout().groups[0].to_string(), "1 layer, 2 latent vectors of 48, all tokens");
}
