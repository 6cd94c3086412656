//! Requests whose outputs do not fit the KV cache at once, on the bundled model. Texts, streams and stop strings equal
//! those of a run with enough room.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::collections::BTreeMap;

use engine::FinishReason;
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Completion, Event, Llm, Options, Preemption, Prompt, SchedulerOptions};

fn llm(num_blocks: usize, options: &Options) -> Llm {
    let files = ModelFiles::bundled();
    let block = Llm::load(&files, options).unwrap().kv_layout().block_bytes();
    Llm::load(&files, &Options { kv_memory: Some(num_blocks * block), ..options.clone() }).unwrap()
}

fn sampled(n: usize, best_of: usize) -> SamplingParams {
    SamplingParams { n, best_of, max_tokens: 60, temperature: 1.0, seed: Some(3), ..SamplingParams::default() }
}

fn prompt() -> Prompt {
    Prompt::Text("Once upon a time there was a fox who".into())
}

/// Returns the completion, and the streamed tokens and text of each output.
fn run(llm: &mut Llm, params: &SamplingParams) -> (Completion, BTreeMap<usize, (Vec<u32>, String)>) {
    llm.add(&prompt(), params.clone()).unwrap();
    let mut streamed = BTreeMap::<usize, (Vec<u32>, String)>::new();
    loop {
        for event in llm.step().unwrap() {
            match event {
                Event::Prompt { .. } => assert!(streamed.is_empty(), "a prompt comes before its outputs"),
                Event::Token { index, token, text, .. } => {
                    let output = streamed.entry(index).or_default();
                    output.0.push(token);
                    output.1.push_str(&text);
                }
                Event::Done(done) => return (done, streamed),
            }
        }
        assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
    }
}

#[test]
fn outputs_in_parts_equal_outputs_together() {
    for params in [
        SamplingParams { ignore_eos: true, ..sampled(24, 24) },
        SamplingParams { stop: vec!["day".into(), ". ".into()], ..sampled(24, 24) },
        SamplingParams { echo: true, prompt_logprobs: Some(2), logprobs: Some(2), ..sampled(16, 16) },
        sampled(2, 24),
    ] {
        let (want, _) = run(&mut llm(1000, &Options::default()), &params);
        for (preemption, prefix_caching) in
            [(Preemption::Auto, true), (Preemption::Swap, false), (Preemption::Recompute, false)]
        {
            let mut tight = llm(
                20,
                &Options {
                    scheduler: SchedulerOptions { preemption, prefix_caching, ..SchedulerOptions::default() },
                    ..Options::default()
                },
            );
            let (got, streamed) = run(&mut tight, &params);
            assert_eq!(got.outputs, want.outputs, "{preemption:?}");
            assert_eq!(got.prompt_logprobs, want.prompt_logprobs);
            assert!(tight.stats().preemptions > 0);
            assert_eq!(streamed.len(), if params.best_of == params.n { params.n } else { 0 });
            for (index, (tokens, text)) in streamed {
                assert_eq!(tokens, got.outputs[index].tokens);
                assert!(got.outputs[index].text.starts_with(&text));
            }
            if params.ignore_eos {
                let is_whole =
                    |o: &engine::Continuation| o.tokens.len() == 60 && o.finish_reason == FinishReason::Length;
                assert!(got.outputs.iter().all(is_whole));
            }
        }
    }
}
