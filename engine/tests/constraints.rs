//! Outputs under a grammar. Outputs that stop on their own are sentences of it, and others are prefixes of one, even if
//! other requests run, are preempted or sampled at the same time.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod language;

use std::collections::BTreeMap;

use engine::SamplingParams;
use engine::tools::constraint::{Constraint, Grammar, Reading};
use engine::tools::scheduler::{Preemption, SchedulerOptions};
use engine::tools::sequence::{FinishReason, Output};
use language::{Language, run};
use serde_json::{Value, json};

fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 9}},
               "required": ["a", "b"], "additionalProperties": false}),
        json!({"type": "array", "items": {"enum": ["red", "green", 7, null]}, "minItems": 1, "maxItems": 3}),
        json!({"anyOf": [{"type": "boolean"}, {"type": "number", "minimum": -9, "maximum": 9}, {"const": {"deep": [1, "\u{e9}\u{4e16}"]}}]}),
        json!({"type": "string", "pattern": "^[a-c]{2,4}[0-9]$"}),
        json!({"$defs": {"tree": {"type": "object", "properties": {"leaf": {"type": "boolean"},
               "next": {"$ref": "#/$defs/tree"}}, "required": ["leaf"], "additionalProperties": false}},
               "$ref": "#/$defs/tree"}),
    ]
}

/// Checks by hand that a value matches its schema.
fn is_valid(schema: usize, value: &Value) -> bool {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match schema {
        0 => {
            let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
            keys == ["a", "b"]
                && value["a"].as_f64().is_some_and(|a| a.fract() == 0.0)
                && text(&value["b"]).is_some_and(|b| b.chars().count() <= 9)
        }
        1 => value.as_array().is_some_and(|all| {
            let allowed = [json!("red"), json!("green"), json!(7), json!(null)];
            (1..=3).contains(&all.len()) && all.iter().all(|item| allowed.contains(item))
        }),
        2 => value.is_boolean() || value.is_number() || *value == json!({"deep": [1, "\u{e9}\u{4e16}"]}),
        3 => text(value).is_some_and(|s| {
            let (letters, digit) = s.split_at(s.len() - 1);
            (2..=4).contains(&letters.len())
                && letters.bytes().all(|b| b"abc".contains(&b))
                && digit.parse::<u8>().is_ok()
        }),
        _ => value
            .as_object()
            .is_some_and(|tree| tree["leaf"].is_boolean() && tree.get("next").is_none_or(|next| is_valid(4, next))),
    }
}

#[test]
fn stopped_outputs_are_documents_and_cut_ones_are_prefixes() {
    let language = Language::new();
    let constraints: Vec<Constraint> =
        schemas().into_iter().map(|s| language.compile(Grammar::JsonSchema(s))).collect();
    let mut engine = language.engine(4000, SchedulerOptions::default());
    let mut asked = BTreeMap::new();
    for (schema, constraint) in constraints.iter().enumerate() {
        for seed in 0..12 {
            let params = SamplingParams {
                temperature: if seed % 3 == 0 { 0.0 } else { 1.0 },
                top_p: if seed % 4 == 0 { 0.9 } else { 1.0 },
                top_k: if seed % 5 == 0 { 20 } else { 0 },
                presence_penalty: if seed % 2 == 0 { 0.5 } else { 0.0 },
                min_tokens: 2,
                max_tokens: 60,
                n: 2,
                best_of: 2,
                seed: Some(seed),
                constraint: Some(constraint.clone()),
                ..SamplingParams::default()
            };
            asked.insert(engine.add(vec![9, 3, seed as u32 + 5], params).unwrap(), (schema, constraint));
        }
    }
    let (mut stopped, mut cut) = (0, 0);
    for (id, outputs) in run(&mut engine) {
        let (schema, constraint) = asked[&id];
        for output in outputs {
            let text = language.text(&output);
            if output.finish_reason == FinishReason::Stop {
                let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
                assert!(is_valid(schema, &value), "schema {schema}: {text}");
                stopped += 1;
            } else {
                assert_eq!(output.tokens.len(), 60, "{text:?}");
                cut += 1;
            }
            let mut again = constraint.matcher();
            assert!(output.tokens.iter().all(|&token| again.read(token) != Reading::Refused), "{text:?}");
            assert!(again.may_end() || output.finish_reason == FinishReason::Length, "{text:?}");
        }
    }
    assert!(stopped > 60, "{stopped} outputs stopped, {cut} were cut");
}

#[test]
fn outputs_match_regexes_choices_and_grammars() {
    let language = Language::new();
    let lark = "start: \"add \" NUMBER (\" and \" NUMBER)? \"!\"\nNUMBER: /[1-9][0-9]{0,3}/";
    let grammars = [
        Grammar::Regex(r"(\d{3})-(foo|b/r)\d".into()),
        Grammar::Choice(vec!["yes".into(), "no \"way\"\n".into(), "\u{4e16}\u{754c}".into()]),
        Grammar::Lark(lark.into()),
        Grammar::JsonObject,
    ];
    let is_sentence = |grammar: usize, text: &str| match grammar {
        0 => {
            let (number, rest) = text.split_once('-').unwrap();
            let word = &rest[..rest.len() - 1];
            number.len() == 3 && number.parse::<u32>().is_ok() && ["foo", "b/r"].contains(&word)
        }
        1 => ["yes", "no \"way\"\n", "\u{4e16}\u{754c}"].contains(&text),
        2 => {
            let numbers = text.strip_prefix("add ").and_then(|rest| rest.strip_suffix('!')).unwrap();
            numbers.split(" and ").all(|number| number.parse::<u32>().is_ok_and(|n| (1..10_000).contains(&n)))
        }
        _ => serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object()),
    };
    for (at, grammar) in grammars.into_iter().enumerate() {
        let constraint = Some(language.compile(grammar));
        let mut engine = language.engine(400, SchedulerOptions::default());
        for seed in 0..6 {
            let constraint = constraint.clone();
            let seed = Some(seed);
            let params = SamplingParams { temperature: 1.0, max_tokens: 100, seed, constraint, ..Default::default() };
            engine.add(vec![4, 5], params).unwrap();
        }
        let mut stopped = 0;
        for output in run(&mut engine).into_values().flatten() {
            if output.finish_reason == FinishReason::Stop {
                let text = language.text(&output);
                assert!(is_sentence(at, &text), "{at}: {text:?}");
                stopped += 1;
            }
        }
        assert!(stopped > 0, "no output of grammar {at} stopped");
    }
}

/// Constrained and free requests compete for blocks, are preempted in every way, stopped and cancelled. Each has the
/// same tokens as alone.
#[test]
fn constrained_requests_have_the_same_outputs_as_alone() {
    let language = Language::new();
    let constraints: Vec<Constraint> =
        schemas().into_iter().map(|s| language.compile(Grammar::JsonSchema(s))).collect();
    let request = |i: usize| {
        let constraint = (!i.is_multiple_of(3)).then(|| constraints[i % constraints.len()].clone());
        let n = 1 + i % 3;
        let best_of = n + i % 2;
        let params = SamplingParams {
            temperature: 1.0,
            max_tokens: 12 + i,
            n,
            best_of,
            seed: Some(i as u64),
            logprobs: i.is_multiple_of(4).then_some(2),
            repetition_penalty: if i.is_multiple_of(5) { 1.2 } else { 1.0 },
            constraint,
            ..SamplingParams::default()
        };
        ((0..3 + i as u32 % 7).map(|t| 10 + t * (1 + i as u32)).collect::<Vec<u32>>(), params)
    };
    let alone: Vec<Vec<Output>> = (0..18)
        .map(|i| {
            let mut engine = language.engine(4000, SchedulerOptions::default());
            let (prompt, params) = request(i);
            engine.add(prompt, params).unwrap();
            run(&mut engine).into_values().next().unwrap()
        })
        .collect();
    for preemption in [Preemption::Auto, Preemption::Swap, Preemption::Recompute] {
        for num_blocks in [45, 50] {
            let scheduler = SchedulerOptions { preemption, max_num_seqs: 16, ..SchedulerOptions::default() };
            let mut engine = language.engine(num_blocks, scheduler);
            let mut ids = Vec::new();
            for i in 0..18 {
                let (prompt, params) = request(i);
                ids.push(engine.add(prompt, params).unwrap());
                if i % 4 == 3 {
                    // One more request, which is cancelled.
                    let (prompt, params) = request(i);
                    let id = engine.add(prompt, params).unwrap();
                    engine.step().unwrap();
                    engine.abort(id);
                }
            }
            let mut done = run(&mut engine);
            assert!(engine.stats().preemptions > 0, "{preemption:?} with {num_blocks} blocks preempts nothing");
            for (i, id) in ids.into_iter().enumerate() {
                assert_eq!(done.remove(&id).unwrap(), alone[i], "request {i}, {preemption:?}, {num_blocks} blocks");
            }
        }
    }
}
