//! Every golden model under memory pressure. All prompts run at once with all decoding methods, in pools that start at
//! the size of one request. However requests are preempted and restored, each gets the same tokens as alone. There
//! are three ways to preempt. `cargo test` tries one for each model, and `.ci/run nightly` tries all three.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::DType;
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Completion, Llm, Options, Preemption, Prompt, SchedulerOptions};
use tests::{complete, golden, golden_dir};

const BLOCK_SIZE: usize = 8;
const MAX_TOKENS: usize = 16;

type Request = (Vec<u32>, SamplingParams);

/// Returns requests for each prompt: greedy, sampled, several outputs, the best of several, and beam search.
fn requests(model: &str) -> Vec<Request> {
    let base = || SamplingParams { max_tokens: MAX_TOKENS, ignore_eos: true, ..SamplingParams::default() };
    let sampled = |n: usize, best_of: usize, seed: u64| SamplingParams {
        n,
        best_of,
        temperature: 1.0,
        seed: Some(seed),
        ..base()
    };
    let beam = Some(Beam { width: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let methods = [
        base(),
        sampled(1, 1, 1),
        sampled(3, 3, 2),
        sampled(2, 5, 3),
        SamplingParams { n: 4, best_of: 4, beam, ..base() },
    ];
    let prompts = golden(model).prompts;
    prompts.iter().flat_map(|p| methods.iter().map(|m| (p.ids.clone(), m.clone()))).collect()
}

/// Returns the blocks that a request needs if its sequences share only full blocks of the prompt.
fn most_blocks((prompt, params): &Request) -> usize {
    let shared = prompt.len() / BLOCK_SIZE;
    shared + params.width() * ((prompt.len() + params.max_tokens).div_ceil(BLOCK_SIZE) - shared)
}

/// Runs all requests at once and returns their completions in order.
fn run(llm: &mut Llm, requests: &[Request]) -> Vec<Completion> {
    complete(llm, requests.iter().map(|(prompt, params)| (Prompt::Tokens(prompt.clone()), params.clone())))
}

fn outputs(done: &[Completion]) -> Vec<Vec<&[u32]>> {
    done.iter().map(|c| c.outputs.iter().map(|o| o.tokens.as_slice()).collect()).collect()
}

/// The ways to preempt requests.
const WAYS: [Preemption; 3] = [Preemption::Auto, Preemption::Swap, Preemption::Recompute];

fn assert_same_as_alone(model: &str, ways: &[Preemption]) {
    let files = ModelFiles::directory(golden_dir(model)).unwrap();
    let options = Options {
        dtype: Some(DType::F32),
        threads: Some(2),
        block_size: BLOCK_SIZE,
        scheduler: SchedulerOptions { prefix_caching: false, ..SchedulerOptions::default() },
        ..Options::default()
    };
    let requests = requests(model);
    let mut roomy = Llm::load(&files, &options).unwrap();
    let block = roomy.kv_layout().block_bytes();
    let alone: Vec<Completion> = requests.iter().flat_map(|r| run(&mut roomy, std::slice::from_ref(r))).collect();
    let fits_one = requests.iter().map(most_blocks).max().unwrap();
    for &preemption in ways {
        let mut preempted = 0;
        let mut swapped = 0;
        let mut hits = 0;
        for (i, num_blocks) in [fits_one, fits_one * 3 / 2, fits_one * 3].into_iter().enumerate() {
            // Each pool has both numbers of tokens, with and without cached blocks. The next pool swaps these.
            for (max_batch_tokens, prefix_caching) in [(2048, i % 2 == 0), (40, i % 2 == 1)] {
                let kv_memory = Some(num_blocks * block);
                let setup = Options {
                    kv_memory,
                    scheduler: SchedulerOptions { preemption, max_batch_tokens, prefix_caching, ..options.scheduler },
                    ..options.clone()
                };
                let at = format!(
                    "{model}, {num_blocks} blocks, {preemption:?}, {max_batch_tokens} tokens per step, caching {prefix_caching}"
                );
                let mut llm = Llm::load(&files, &setup).unwrap();
                let done = run(&mut llm, &requests);
                assert_eq!(outputs(&done), outputs(&alone), "{at}");
                let stats = llm.stats();
                assert_eq!(stats.exhausted, 0, "{at}");
                // Cached blocks need not move. Blocks that outputs of a request share are swapped out once, and swapped
                // in twice if the outputs return in two parts.
                assert!(prefix_caching || stats.swapped_in_blocks >= stats.swapped_out_blocks, "{at}");
                assert!(prefix_caching || stats.hit_tokens == 0);
                hits += stats.hit_tokens;
                preempted += stats.preemptions;
                swapped += stats.swapped_out;
            }
        }
        assert!(preempted > 0 && hits > 0, "{model}, {preemption:?}: {preempted} preempted, {hits} cached tokens");
        match preemption {
            Preemption::Auto => {
                assert!(swapped > 0 && swapped < preempted, "{swapped} of {preempted} were swapped out")
            }
            // A request without computed tokens has nothing to swap.
            Preemption::Swap => assert!(swapped > preempted / 2, "{swapped} of {preempted} were swapped out"),
            Preemption::Recompute => assert_eq!(swapped, 0),
        }
    }
}

macro_rules! pressure_tests {
    ($($name:ident: $model:literal,)*) => {
        $(mod $name {
            #[test]
            fn preempted_in_one_way() {
                let at = tests::MODELS.iter().position(|model| *model == $model).unwrap();
                super::assert_same_as_alone($model, &[super::WAYS[at % 3]]);
            }

            #[test]
            #[ignore = "takes a few seconds; a part of `.ci/run nightly`"]
            fn preempted_in_every_way() {
                super::assert_same_as_alone($model, &super::WAYS);
            }
        })*

        #[test]
        fn no_model_is_left_out() {
            assert_eq!([$($model),*], tests::MODELS);
        }
    };
}

tests::each_model!(pressure_tests);
