//! The bundled model's outputs equal those in Hugging Face transformers.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::DType;
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Continuation, Device, Llm, Options, Prompt, SchedulerOptions};
use serde::Deserialize;
use tests::constrained::constrained_searches;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: String,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_text: String,
    greedy_ids_ignoring_eos: Vec<u32>,
    top5: Vec<Top>,
    beams: Vec<Beamed>,
}

#[derive(Deserialize)]
struct Top {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

#[derive(Deserialize)]
struct Beamed {
    ids: Vec<u32>,
    text: String,
    score: f64,
}

fn cases() -> Vec<Case> {
    let golden: Golden = serde_json::from_str(include_str!("../fixtures/opt-story-3m/golden.json")).unwrap();
    golden.cases
}

fn llm(options: Options) -> Llm {
    Llm::load(&ModelFiles::bundled(), &Options { device: Device::Cpu, dtype: Some(DType::F32), ..options }).unwrap()
}

#[test]
fn greedy_text_equals_hugging_face() {
    let cases = cases();
    let prompts: Vec<Prompt> = cases.iter().map(|c| Prompt::Text(c.prompt.clone())).collect();
    let params = SamplingParams { max_tokens: 100, logprobs: Some(5), ..SamplingParams::default() };
    for options in [
        Options::default(),
        Options {
            scheduler: SchedulerOptions { max_batch_tokens: 7, ..SchedulerOptions::default() },
            ..Options::default()
        },
    ] {
        for (c, done) in cases.iter().zip(llm(options).generate(&prompts, &params).unwrap()) {
            assert_eq!(done.prompt_tokens, c.prompt_ids);
            assert_eq!(done.outputs[0].tokens, c.greedy_ids, "{}", c.prompt);
            assert_eq!(done.outputs[0].text, c.greedy_text);
            for (got, want) in done.outputs[0].logprobs.as_ref().unwrap().iter().zip(&c.top5) {
                // The fixture has logits. Their differences equal the differences of logprobs.
                for k in 0..5 {
                    assert_eq!(got.top[k].0, want.ids[k], "{}", c.prompt);
                    let (got, want) = (got.top[k].1 - got.top[0].1, want.logits[k] - want.logits[0]);
                    assert!((got - want).abs() < 1e-3, "{}: {got} is not {want}", c.prompt);
                }
            }
        }
    }
}

#[test]
fn end_of_sequence_can_be_ignored() {
    for c in cases() {
        let params = SamplingParams { max_tokens: 100, ignore_eos: true, ..SamplingParams::default() };
        let done = llm(Options::default()).generate(&[Prompt::Tokens(c.prompt_ids)], &params).unwrap();
        assert_eq!(done[0].outputs[0].tokens, c.greedy_ids_ignoring_eos, "{}", c.prompt);
    }
}

#[test]
fn beams_equal_hugging_face() {
    let cases = cases();
    let prompts: Vec<Prompt> = cases.iter().map(|c| Prompt::Text(c.prompt.clone())).collect();
    let beam = Some(Beam { width: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let params = SamplingParams { n: 4, best_of: 4, max_tokens: 40, beam, ..SamplingParams::default() };
    let mut llm = llm(Options::default());
    for (c, done) in cases.iter().zip(llm.generate(&prompts, &params).unwrap()) {
        assert_eq!(done.outputs.len(), c.beams.len());
        for (got, want) in done.outputs.iter().zip(&c.beams) {
            assert_eq!(got.tokens, want.ids, "{}", c.prompt);
            assert_eq!(got.text, want.text);
            assert!((got.score.unwrap() - want.score).abs() < 1e-3);
        }
    }
}

#[test]
fn constrained_beams_equal_hugging_face() {
    for (search, done) in constrained_searches(&mut llm(Options::default())) {
        assert_eq!(done.outputs.len(), search.beams.len());
        for (got, want) in done.outputs.iter().zip(&search.beams) {
            assert_eq!(got.tokens, want.ids, "{}", search.regex);
            assert!((got.score.unwrap() - want.score).abs() < 1e-3, "{:?} is not {}", got.score, want.score);
        }
    }
}

/// Tokens drafted beyond a completed stop string are discarded.
#[test]
fn drafts_change_nothing_but_the_number_of_steps() {
    let text = "Tom saw a red ball.";
    let words = llm(Options::default()).tokenizer().encode(text).unwrap();
    // With so few words to choose from, the text soon repeats itself. `words[0]` is the token that starts and ends
    // texts.
    let params = |stop: &str, n: usize| SamplingParams {
        max_tokens: 60,
        n,
        best_of: n,
        temperature: if n > 1 { 0.3 } else { 0.0 },
        seed: Some(11),
        logprobs: Some(1),
        logit_bias: words[1..].iter().map(|&word| (word, 60.0)).collect(),
        stop: if stop.is_empty() { Vec::new() } else { vec![stop.into()] },
        ..SamplingParams::default()
    };
    let run = |draft_tokens: usize, params: &SamplingParams| {
        let scheduler = SchedulerOptions { draft_tokens, ..SchedulerOptions::default() };
        let mut llm = llm(Options { scheduler, ..Options::default() });
        let outputs = llm.generate(&[Prompt::Text(text.into())], params).unwrap().remove(0).outputs;
        (outputs, llm.stats())
    };
    let (plain, _) = run(0, &params("", 1));
    // Stop at different beginnings of the text. Some of them end in the middle of a step.
    let beginnings = (20..32).filter_map(|end| plain[0].text.get(..end));
    let kinds = [params("", 1), params("", 3)].into_iter().chain(beginnings.map(|stop| params(stop, 1)));
    for params in kinds {
        let ((plain, single), (drafted, several)) = (run(0, &params), run(6, &params));
        assert_eq!(format!("{plain:?}"), format!("{drafted:?}"));
        assert!(several.accepted_tokens > 0 && several.steps < single.steps, "{several:?}");
        let stopped = |output: &Continuation| output.stop_reason.is_some();
        assert_eq!(plain.iter().all(stopped), !params.stop.is_empty(), "{plain:?}");
    }
}
