//! Echoed prompts. The logprobs of their tokens equal Hugging Face's, and the generated text continues the prompt's
//! text.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::DType;
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Completion, Device, Event, Llm, Options, Prompt, SchedulerOptions};
use tests::{MODELS, complete, golden, golden_dir};

fn load(model: &str, options: Options) -> Llm {
    let files = ModelFiles::directory(golden_dir(model)).unwrap();
    // Use the CPU even if there is a GPU.
    Llm::load(&files, &Options { device: Device::Cpu, ..options }).unwrap()
}

fn echo(max_tokens: usize) -> SamplingParams {
    let logprobs = Some(3);
    SamplingParams {
        max_tokens,
        ignore_eos: true,
        echo: true,
        logprobs,
        prompt_logprobs: logprobs,
        ..SamplingParams::default()
    }
}

/// Scores given texts in two setups that cut prompts differently. Each text comes twice, so the second copy's blocks
/// are cached.
fn assert_scored(model: &str) {
    let golden = golden(model);
    let f32 = Options { dtype: Some(DType::F32), ..Options::default() };
    let small = Options {
        block_size: 8,
        scheduler: SchedulerOptions { max_batch_tokens: 13, max_num_seqs: 7, ..f32.scheduler },
        ..f32.clone()
    };
    for options in [f32, small] {
        let mut llm = load(model, options);
        let texts = golden.teacher_forced.iter().chain(&golden.teacher_forced);
        let requests = texts.clone().map(|text| (Prompt::Tokens(text.ids.clone()), echo(0)));
        for (text, done) in texts.zip(complete(&mut llm, requests)) {
            let entries = done.prompt_logprobs.unwrap();
            assert_eq!(entries.len(), text.ids.len(), "{model}");
            for (i, (entry, want)) in entries.iter().zip(&text.token_logprobs).enumerate() {
                assert_eq!(entry.is_some(), want.is_some(), "{model}, position {i}");
                let (Some(entry), Some(want)) = (entry, want) else { continue };
                assert_eq!((entry.token, entry.top[0].0), (text.ids[i], text.argmax[i - 1]), "{model}, position {i}");
                let got = entry.logprob;
                assert!((got - want).abs() < 1e-3, "{model}, position {i}: {got} is not {want}");
            }
        }
    }
}

/// Asserts that a token's logprob in a prompt has the same bits as when the token was generated.
fn assert_same_as_generated(model: &str) {
    let golden = golden(model);
    let mut llm = load(
        model,
        Options {
            scheduler: SchedulerOptions { max_num_seqs: 16, ..SchedulerOptions::default() },
            ..Options::default()
        },
    );
    for p in &golden.prompts {
        let output = llm.generate(&[Prompt::Tokens(p.ids.clone())], &echo(40)).unwrap().remove(0).outputs.remove(0);
        let all = [p.ids.as_slice(), &output.tokens].concat();
        let done = llm.generate(&[Prompt::Tokens(all)], &echo(0)).unwrap().remove(0);
        let entries = done.prompt_logprobs.unwrap().split_off(p.ids.len());
        let entries: Vec<_> = entries.into_iter().flatten().collect();
        assert_eq!(Some(entries), output.logprobs, "{model}, {}", p.name);
    }
}

/// Asserts that the texts of prompt and output join to the text of all tokens, wherever the prompt is cut and however
/// it is continued.
fn assert_texts_join(model: &str) {
    let golden = golden(model);
    let mut llm = load(model, Options::default());
    let beam = Some(Beam { width: 2, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let mut requests = Vec::new();
    for p in &golden.prompts {
        requests.push((Prompt::Text(p.text.clone()), echo(12)));
        for cut in (1..=p.ids.len()).step_by(3) {
            let prompt = || Prompt::Tokens(p.ids[..cut].to_vec());
            requests.push((prompt(), echo(if cut % 2 == 0 { 12 } else { 0 })));
            requests.push((prompt(), SamplingParams { n: 2, best_of: 2, temperature: 1.0, seed: Some(1), ..echo(5) }));
            requests.push((prompt(), SamplingParams { n: 2, best_of: 2, beam, ..echo(5) }));
        }
    }
    for Completion { prompt, prompt_tokens, outputs, .. } in complete(&mut llm, requests) {
        for output in outputs {
            let all = llm.tokenizer().decode(&[prompt_tokens.as_slice(), &output.tokens].concat(), true).unwrap();
            assert_eq!(prompt.clone() + &output.text, all, "{model}");
        }
    }
}

#[test]
fn a_space_between_prompt_and_output_is_kept() {
    let ids = golden("llama2").prompts.remove(2).ids;
    let mut llm = load("llama2", Options::default());
    let text = |ids: &[u32]| llm.tokenizer().decode(ids, true).unwrap();
    let new_word = |&i: &usize| text(&ids[..=i]) == text(&ids[..i]) + " " + &text(&ids[i..=i]);
    let cut = (2..ids.len()).find(new_word).expect("a token that begins with a space");
    let (begins, word) = (text(&ids[..cut]), text(&ids[cut..=cut]));
    // The bias leaves no other token a chance.
    let params = SamplingParams { logit_bias: vec![(ids[cut], 100.0)], ..echo(1) };
    for (echo, space) in [(true, " "), (false, "")] {
        let params = SamplingParams { echo, ..params.clone() };
        let done = llm.generate(&[Prompt::Tokens(ids[..cut].to_vec())], &params).unwrap().remove(0);
        assert_eq!((&done.prompt, &done.outputs[0].text), (&begins, &format!("{space}{word}")));
    }
}

#[test]
fn a_stream_starts_with_the_prompt() {
    let mut llm = load(
        "gpt2",
        Options {
            scheduler: SchedulerOptions { max_num_seqs: 4, ..SchedulerOptions::default() },
            ..Options::default()
        },
    );
    let text = &golden("gpt2").prompts[0].text;
    let id = llm.add(&Prompt::Text(text.clone()), SamplingParams { n: 2, best_of: 2, ..echo(2) }).unwrap();
    let mut events = Vec::new();
    while llm.has_work() {
        events.extend(llm.step().unwrap());
    }
    let Some(Event::Done(done)) = events.pop() else { panic!("{events:?}") };
    let (text, tokens, logprobs) = (done.prompt, done.prompt_tokens, done.prompt_logprobs);
    assert_eq!(events[0], Event::Prompt { id, text, tokens, logprobs });
    assert_eq!(events.len(), 1 + 2 * 2);
    assert!(events[1..].iter().all(|event| matches!(event, Event::Token { .. })));
}

macro_rules! echo_tests {
    ($($name:ident: $model:literal,)*) => {
        $(mod $name {
            #[test]
            fn scores_equal_hugging_face() {
                super::assert_scored($model);
            }

            #[test]
            fn scores_equal_those_of_generation() {
                super::assert_same_as_generated($model);
            }

            #[test]
            fn texts_join() {
                super::assert_texts_join($model);
            }
        })*

        #[test]
        fn no_model_is_left_out() {
            assert_eq!([$($model),*], MODELS);
        }
    };
}

tests::each_model!(echo_tests);
