//! Blocks that are evicted to the host's memory and restored.

use engine::DType;
use engine::SamplingParams;
use engine::{AttentionKernels, Options, Prompt};
use tests::{complete, golden};

use crate::{greedy, load, options};

/// Runs prompts in turn in a pool that holds only one of them. In the second round they compute as many tokens as with
/// an unlimited cache, and their logprobs have the same bits. The restored blocks therefore equal the evicted ones.
fn assert_restored(model: &str, attention: AttentionKernels, swap_blocks: usize) {
    let golden = golden(model);
    let options = Options { block_size: 8, attention, ..options(DType::F16) };
    let mut prompts: Vec<_> = golden.prompts.iter().map(|prompt| prompt.ids.clone()).collect();
    prompts.sort_by_key(|ids| std::cmp::Reverse(ids.len()));
    prompts.truncate(3);
    let mut roomy = load(model, &options, None);
    let swap_space = Some(swap_blocks * roomy.kv_layout().block_bytes());
    let mut tight = load(model, &Options { swap_space, ..options }, Some(prompts[0].len() + 16));
    for turn in 0..2 {
        for ids in &prompts {
            let request = || [(Prompt::Tokens(ids.clone()), SamplingParams { max_tokens: 8, ..greedy() })];
            let [tight_done, roomy_done] = [&mut tight, &mut roomy].map(|llm| complete(llm, request()).remove(0));
            assert_eq!(tight_done.outputs, roomy_done.outputs, "{model}, turn {turn}");
        }
    }
    let (tight, roomy) = (tight.stats(), roomy.stats());
    assert_eq!((tight.computed_tokens, tight.hit_tokens), (roomy.computed_tokens, roomy.hit_tokens), "{model}");
    assert!(tight.offloaded_blocks > 0 && tight.restored_blocks > 0 && roomy.offloaded_blocks == 0, "{tight:?}");
}

#[test]
fn evicted_blocks_are_restored() {
    assert_restored("llama3", AttentionKernels::Quire, 100);
}

#[test]
fn evicted_blocks_are_restored_in_the_papers_layouts() {
    assert_restored("gpt2", AttentionKernels::V1, 100);
}
