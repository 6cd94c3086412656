//! Batches of requests with different adapters and with none.

use engine::tools::sampling::{Beam, EarlyStopping};
use engine::{AdapterHandle, Completion, Llm, Options, Preemption, Prompt, SamplingParams, SchedulerOptions};
use tests::complete;

use super::{bits, files, greedy, load, options, prompt};

/// A request: the seed and length of its prompt, the index of its adapter, and its parameters.
type Request = ((u32, u32), Option<usize>, SamplingParams);

/// Requests of all kinds with two adapters and with none.
fn requests() -> Vec<Request> {
    let sampled = SamplingParams { n: 3, best_of: 3, temperature: 1.0, seed: Some(7), ..greedy(None) };
    let beam = Some(Beam { width: 3, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let beams = SamplingParams { n: 3, best_of: 3, beam, ..greedy(None) };
    let kinds = [greedy(None), sampled, beams];
    let adapters = [None, Some(0), Some(1)];
    let each = |i: usize| ((i as u32 / 4, 5 + i as u32 * 3 % 40), adapters[i % 3], kinds[i / 3 % 3].clone());
    (0..18).map(each).collect()
}

fn with((prompt_of, adapter, params): &Request, handles: &[AdapterHandle]) -> (Prompt, SamplingParams) {
    let adapter = adapter.map(|at| handles[at].clone());
    (prompt(prompt_of.0, prompt_of.1), SamplingParams { adapter, ..params.clone() })
}

/// The results of all requests, each alone in the engine or all together, and the number of preemptions.
fn answers(model: &str, options: &Options, alone: bool) -> (Vec<Completion>, usize) {
    let (files, directory) = (files(model), tempfile::tempdir().unwrap());
    let mut llm = Llm::load(&files, options).unwrap();
    let handles = [("a", 1, 4), ("b", 2, 9)].map(|adapter| load(&llm, &files, adapter, directory.path()));
    let requests = requests().into_iter().map(|request| with(&request, &handles));
    let done = match alone {
        true => requests.flat_map(|request| complete(&mut llm, [request])).collect(),
        false => complete(&mut llm, requests.collect::<Vec<_>>()),
    };
    (done, llm.stats().preemptions)
}

/// Checks that all requests have the same results together as alone. Returns the number of preemptions.
fn assert_same(model: &str, options: &Options) -> usize {
    let ((alone, _), (together, preemptions)) = (answers(model, options, true), answers(model, options, false));
    for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert_eq!(bits(together), bits(alone), "{model}, request {i}");
    }
    // The adapters matter.
    let tokens = |i: usize| &alone[i].outputs[0].tokens;
    assert!(tokens(0) != tokens(1) || tokens(1) != tokens(2));
    preemptions
}

#[test]
fn a_request_has_the_same_bits_whatever_is_in_its_batch() {
    for model in ["gpt2", "llama2", "opt-pre", "qwen3", "lfm2", "qwen3-next", "gemma4-e"] {
        assert_same(model, &options());
    }
}

#[test]
fn preempted_requests_keep_their_adapters() {
    for preemption in [Preemption::Swap, Preemption::Recompute] {
        let scheduler = SchedulerOptions { preemption, max_batch_tokens: 24, ..SchedulerOptions::default() };
        // Few blocks, so that requests are preempted and adapters are evicted.
        let options = Options { scheduler, block_size: 4, kv_memory: Some(300 << 10), ..options() };
        assert!(assert_same("llama2", &options) > 0, "nothing was preempted");
    }
}

#[test]
fn a_step_has_no_more_adapters_than_allowed() {
    let scheduler = SchedulerOptions { max_loras: 1, ..SchedulerOptions::default() };
    assert_same("llama2", &Options { scheduler, ..options() });
}

#[test]
fn a_model_in_steps_without_adapters_has_the_same_bits_as_ever() {
    let (files, directory) = (files("llama2"), tempfile::tempdir().unwrap());
    let mut llm = Llm::load(&files, &options()).unwrap();
    let ask = |llm: &mut Llm| bits(&llm.generate(&[prompt(3, 20)], &greedy(None)).unwrap()[0]);
    let before = ask(&mut llm);
    let handle = load(&llm, &files, ("a", 1, 4), directory.path());
    llm.generate(&[prompt(3, 20)], &greedy(Some(&handle))).unwrap();
    assert_eq!(ask(&mut llm), before);
}
