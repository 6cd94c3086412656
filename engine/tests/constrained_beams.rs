//! Beam searches with constraints. They are compared with a plain search that reads every output from its beginning,
//! and run next to other requests that are preempted.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod language;

use std::collections::BTreeMap;

use engine::tools::constraint::{Constraint, Grammar, Reading, Thoughts};
use engine::tools::engine::Engine;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::tools::scheduler::{Preemption, SchedulerOptions};
use engine::tools::sequence::{FinishReason, Output};
use language::{EOS, Language, Noise, run};
use serde_json::{Value, json};

const PROMPT: [u32; 3] = [9, 3, 5];

fn schema() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 9}},
           "required": ["a", "b"], "additionalProperties": false})
}

fn grammars() -> Vec<Grammar> {
    vec![
        Grammar::JsonSchema(schema()),
        Grammar::JsonSchema(
            json!({"type": "array", "items": {"enum": ["red", 7, null]}, "minItems": 1, "maxItems": 3}),
        ),
        Grammar::Regex("[0-9]{2,5}|[a-c]+".into()),
        Grammar::Choice(vec!["yes".into(), "no".into(), "7".into()]),
    ]
}

fn beams(width: usize, n: usize, max_tokens: usize, constraint: &Constraint) -> SamplingParams {
    let beam = Some(Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    SamplingParams { n, best_of: n, max_tokens, beam, constraint: Some(constraint.clone()), ..Default::default() }
}

/// The outputs of a search that runs alone.
fn alone(language: &Language, prompt: &[u32], params: SamplingParams) -> Vec<Output> {
    let mut engine = language.engine(4000, SchedulerOptions::default());
    engine.add(prompt.to_vec(), params).unwrap();
    run(&mut engine).into_values().next().unwrap()
}

/// An output's tokens, the sum of its logprobs, and why it ended, if it did.
type Beamed = (Vec<u32>, f64, Option<FinishReason>);

/// The tokens that may follow an output, each with its unconstrained logprob and whether it ends the output. They are
/// found by reading the output from its beginning.
fn followers(noise: &Noise, constraint: &Constraint, output: &[u32]) -> Vec<(u32, f64, bool)> {
    let mut matcher = constraint.matcher();
    assert!(output.iter().all(|&token| matcher.read(token) == Reading::Open));
    matcher.compute_mask();
    let logits = noise.logits(&PROMPT, output);
    let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    let allowed =
        (0..logits.len() as u32).filter(|token| matcher.mask()[*token as usize / 32] >> (token % 32) & 1 == 1);
    let follower = |token: u32| {
        let reading = matcher.clone().read(token);
        assert_ne!(reading, Reading::Refused, "a mask allows a token that cannot follow");
        (token, f64::from(logits[token as usize]) - sum.ln(), reading == Reading::Complete)
    };
    allowed.map(follower).collect()
}

/// Beam search by definition. The best `2 width` continuations of all beams are kept. Those that end and are among the
/// best `width` are candidates for an answer. The best `width` that do not end continue.
fn reference(noise: &Noise, params: &SamplingParams) -> Vec<Beamed> {
    let (beam, constraint) = (params.beam.unwrap(), params.constraint.as_ref().unwrap());
    let score = |(tokens, sum, _): &Beamed| sum / (tokens.len() as f64).powf(f64::from(beam.length_penalty));
    let by_score = |a: &Beamed, b: &Beamed| score(b).total_cmp(&score(a));
    let (mut running, mut ended): (Vec<Beamed>, Vec<Beamed>) = (vec![(Vec::new(), 0.0, None)], Vec::new());
    for length in 1..=params.max_tokens {
        let mut all: Vec<Beamed> = Vec::new();
        for (tokens, sum, _) in &running {
            for (token, logprob, ends) in followers(noise, constraint, tokens) {
                let cut = (length == params.max_tokens).then_some(FinishReason::Length);
                let reason = if ends { Some(FinishReason::Stop) } else { cut };
                all.push(([&tokens[..], &[token]].concat(), sum + logprob, reason));
            }
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(2 * beam.width);
        ended.extend(all.iter().take(beam.width).filter(|beamed| beamed.2.is_some()).cloned());
        ended.sort_by(by_score);
        ended.truncate(beam.width);
        running = all.into_iter().filter(|beamed| beamed.2.is_none()).take(beam.width).collect();
        let is_over = |worst: &Beamed| {
            let at = |length: usize| {
                let best = running.first().map_or(f64::NEG_INFINITY, |best| best.1);
                best / (length as f64).powf(f64::from(beam.length_penalty))
            };
            match beam.early_stopping {
                EarlyStopping::Yes => true,
                EarlyStopping::Never if beam.length_penalty > 0.0 => score(worst) >= at(params.max_tokens),
                EarlyStopping::No | EarlyStopping::Never => score(worst) >= at(length),
            }
        };
        if running.is_empty() || ended.get(beam.width - 1).is_some_and(is_over) {
            break;
        }
    }
    ended.truncate(params.n);
    ended
}

#[test]
fn a_constrained_search_matches_the_plain_search() {
    let language = Language::new();
    let noise = language.noise();
    let (mut stopped, mut cut) = (0, 0);
    for grammar in grammars() {
        let constraint = language.compile(grammar);
        for (width, n, max_tokens, length_penalty, early_stopping) in [
            (1, 1, 30, 1.0, EarlyStopping::No),
            (3, 3, 30, 1.0, EarlyStopping::No),
            (4, 2, 4, 0.0, EarlyStopping::Never),
            (4, 4, 2, 1.0, EarlyStopping::No),
            (5, 4, 25, -1.0, EarlyStopping::Yes),
            (5, 5, 25, 2.0, EarlyStopping::Never),
        ] {
            let beam = Some(Beam { width, length_penalty, early_stopping });
            let params = SamplingParams { beam, logprobs: Some(3), ..beams(width, n, max_tokens, &constraint) };
            let found = alone(&language, &PROMPT, params.clone());
            let wanted = reference(&noise, &params);
            let tokens = |found: &Output| (found.tokens.clone(), Some(found.finish_reason));
            assert_eq!(
                found.iter().map(tokens).collect::<Vec<_>>(),
                wanted.iter().map(|(tokens, _, reason)| (tokens.clone(), *reason)).collect::<Vec<_>>()
            );
            for (found, (tokens, sum, reason)) in found.iter().zip(&wanted) {
                assert!((found.cumulative_logprob - sum).abs() < 1e-3, "{} is not {sum}", found.cumulative_logprob);
                let score = found.cumulative_logprob / (tokens.len() as f64).powf(f64::from(length_penalty));
                assert_eq!(found.score, Some(score));
                // The reported alternatives are tokens that the grammar allows at this position.
                let logprobs = found.logprobs.as_ref().unwrap();
                assert!(logprobs.iter().all(|own| own.top.iter().all(|top| top.1.is_finite()) && own.top.len() <= 3));
                match reason {
                    Some(FinishReason::Stop) => stopped += 1,
                    _ => cut += 1,
                }
            }
        }
    }
    assert!(stopped > 20 && cut > 8, "{stopped} beams stopped, {cut} were cut");
}

#[test]
fn a_search_returns_no_more_sentences_than_exist() {
    let language = Language::new();
    let one = language.compile(Grammar::Choice(vec!["7".into()]));
    let digits = language.compile(Grammar::Regex("[0-9]".into()));
    for (constraint, width, sentences) in [(&one, 4, 1), (&digits, 4, 4), (&digits, 16, 10)] {
        let found = alone(&language, &PROMPT, beams(width, width, 20, constraint));
        let mut texts: Vec<String> = found.iter().map(|output| language.text(output)).collect();
        assert!(found.iter().all(|output| output.finish_reason == FinishReason::Stop));
        assert!(found.is_sorted_by(|a, b| a.score >= b.score));
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), sentences, "{texts:?}");
    }
}

#[test]
fn beams_may_think_before_the_constraint_applies() {
    let language = Language::new();
    let [begin, end] = ["<", ">"].map(|text| language.tokenizer.token_id(text).unwrap());
    let constraint = language.compile(Grammar::Regex("[0-9]{3}".into()));
    let thinks = constraint.clone().after(Thoughts::Until(end));
    let found = alone(&language, &PROMPT, beams(3, 3, 12, &thinks));
    assert_eq!(found.len(), 3);
    for output in found {
        let after = output.tokens.iter().position(|&token| token == end).map(|at| &output.tokens[at + 1..]);
        let mut matcher = constraint.matcher();
        assert!(after.is_none_or(|said| said.iter().all(|&token| matcher.read(token) != Reading::Refused)));
        assert!(!output.tokens.contains(&EOS) || output.finish_reason == FinishReason::Stop);
        assert!(
            output.tokens.first() != Some(&begin) || after.is_some() || output.finish_reason == FinishReason::Length
        );
    }
}

/// Constrained and free searches and samples are preempted in every way, stopped and cancelled. Each has the same
/// result as alone.
#[test]
fn constrained_searches_have_the_same_outputs_as_alone() {
    let language = Language::new();
    let constraints: Vec<Constraint> = grammars().into_iter().map(|grammar| language.compile(grammar)).collect();
    let request = |i: usize| {
        let width = 1 + i % 4;
        // Half of the requests write documents, which take longer.
        let constraint =
            (i % 5 != 4).then(|| constraints[if i.is_multiple_of(2) { 0 } else { i % constraints.len() }].clone());
        let stopping = [EarlyStopping::No, EarlyStopping::Yes, EarlyStopping::Never][i % 3];
        let beam = (i % 6 != 5).then_some(Beam { width, length_penalty: 1.0, early_stopping: stopping });
        let prompt: Vec<u32> = (0..18 + i as u32 % 5).map(|at| 10 + at * (1 + i as u32)).collect();
        let params = SamplingParams {
            n: width,
            best_of: width,
            max_tokens: 10 + i,
            temperature: if beam.is_some() { 0.0 } else { 1.0 },
            seed: Some(i as u64),
            logprobs: i.is_multiple_of(3).then_some(2),
            beam,
            constraint,
            ..SamplingParams::default()
        };
        (prompt, params)
    };
    let add = |engine: &mut Engine, i: usize| {
        let (prompt, params) = request(i);
        engine.add(prompt, params).unwrap()
    };
    let by_itself = |i: usize| {
        let (prompt, params) = request(i);
        alone(&language, &prompt, params)
    };
    let outputs: Vec<Vec<Output>> = (0..14).map(by_itself).collect();
    for preemption in [Preemption::Auto, Preemption::Swap, Preemption::Recompute] {
        for num_blocks in [30, 36] {
            let scheduler = SchedulerOptions { preemption, max_num_seqs: 16, ..SchedulerOptions::default() };
            let mut engine = language.engine(num_blocks, scheduler);
            let (mut ids, mut done) = (Vec::new(), BTreeMap::new());
            for i in 0..14 {
                ids.push(add(&mut engine, i));
                if i % 4 == 2 {
                    // One more request, which is cancelled.
                    let id = add(&mut engine, i);
                    done.extend(engine.step().unwrap().finished.into_iter().map(|done| (done.id, done.outputs)));
                    engine.abort(id);
                }
            }
            done.extend(run(&mut engine));
            assert!(engine.stats().preemptions > 0, "{preemption:?} with {num_blocks} blocks preempts nothing");
            for (i, id) in ids.into_iter().enumerate() {
                assert_eq!(done.remove(&id).unwrap(), outputs[i], "request {i}, {preemption:?}, {num_blocks} blocks");
            }
        }
    }
}
