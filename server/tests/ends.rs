//! The ends of outputs: minimum lengths, stop strings, stop tokens and special tokens, in whole and streamed answers.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::{PROMPT, TestServer, alone};
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Continuation, Options};
use serde_json::{Value, json};
use server::ServeOptions;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const EOS: u32 = 2;

/// Returns `body` with additional fields.
fn with(body: &Value, fields: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn greedy(max_tokens: usize) -> Value {
    json!({"prompt": PROMPT, "temperature": 0, "max_tokens": max_tokens})
}

/// Returns the greedy output, continued past its end-of-sequence token.
fn endless(max_tokens: usize) -> Continuation {
    let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
    alone(&ModelFiles::bundled(), PROMPT, &params).outputs.remove(0)
}

/// Returns the choices of an answer and the number of their tokens. The streamed answer must be the same.
async fn choices(server: &TestServer, path: &str, body: &Value) -> (Vec<Value>, u64) {
    let whole = server.post(path, body).await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut events = server.stream(path, &with(body, &options)).await;
    assert_eq!(events.pop().unwrap()["usage"], whole["usage"], "{body}");
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let mine: Vec<&Value> =
            events.iter().flat_map(|e| e["choices"].as_array().unwrap()).filter(|c| c["index"] == index).collect();
        let join = |texts: &dyn Fn(&Value) -> Value| -> String {
            mine.iter().filter_map(|piece| texts(piece).as_str().map(str::to_owned)).collect()
        };
        assert_eq!(text(choice), join(&|c| text_of(c).clone()), "{body}");
        let (last, others) = mine.split_last().unwrap();
        for field in ["finish_reason", "stop_reason"] {
            assert_eq!(last[field], choice[field], "{body}");
            assert!(others.iter().all(|piece| piece[field].is_null()), "{body}");
        }
        for field in ["tokens", "token_logprobs", "text_offset", "content"] {
            let pieces: Value =
                mine.iter().filter_map(|c| c["logprobs"][field].as_array()).flatten().cloned().collect();
            assert_eq!(pieces, choice["logprobs"].get(field).cloned().unwrap_or(json!([])), "{body}");
        }
    }
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    (whole["choices"].as_array().unwrap().clone(), tokens)
}

fn text_of(choice: &Value) -> &Value {
    [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]]
        .into_iter()
        .find(|text| !text.is_null())
        .unwrap_or(&Value::Null)
}

fn text(choice: &Value) -> &str {
    text_of(choice).as_str().unwrap()
}

#[tokio::test]
async fn an_output_has_its_least_length() {
    let server = TestServer::start().await;
    let natural = server.post(COMPLETIONS, &greedy(400)).await;
    let length = natural["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(natural["choices"][0]["finish_reason"], "stop");
    let chat = json!({"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 400});
    for (path, body) in [(COMPLETIONS, greedy(400)), (CHAT, chat)] {
        for (min_tokens, shortest) in [(length - 1, length), (length, length + 1), (length + 30, length + 31)] {
            let (choices, tokens) = choices(&server, path, &with(&body, &json!({"min_tokens": min_tokens}))).await;
            assert!(tokens >= shortest, "{path} {min_tokens} {tokens}");
            assert!(text(&choices[0]).starts_with(text(&natural["choices"][0])), "{path} {min_tokens}");
            assert!(text(&choices[0]) == text(&natural["choices"][0]) || min_tokens >= length);
            assert_eq!(choices[0]["stop_reason"], Value::Null);
        }
        let all = with(&body, &json!({"min_tokens": 300, "max_tokens": 300, "logit_bias": {"2": 100}}));
        let (choices, tokens) = choices(&server, path, &all).await;
        assert_eq!((&choices[0]["finish_reason"], tokens), (&json!("length"), 300));
        for (fields, param) in [
            (json!({"min_tokens": 9, "max_tokens": 8}), "min_tokens"),
            (json!({"min_tokens": 1, "use_beam_search": true}), "min_tokens"),
            (json!({"min_tokens": -1}), "min_tokens"),
            (json!({"stop_token_ids": [2048]}), "stop_token_ids"),
            (json!({"stop_token_ids": [[2]]}), "stop_token_ids"),
            (json!({"stop_token_ids": vec![3; 5000]}), "stop_token_ids"),
            (json!({"stop_token_ids": [3], "use_beam_search": true}), "stop_token_ids"),
        ] {
            let error = server.refused(path, &with(&body, &fields), 400).await;
            assert_eq!(error["param"], param, "{error}");
            assert!(error["message"].as_str().unwrap().contains(param), "{error}");
        }
    }
    server.stop().await.unwrap();
}

/// Returns where the first of `stops` ends the text of `tokens`, as the text, its number of tokens and the stop string.
/// No stop string counts in the first `min_tokens` tokens.
fn stopped<'a>(
    tokens: &[&str],
    stops: &[&'a str],
    min_tokens: usize,
    include: bool,
) -> (String, usize, Option<&'a str>) {
    let barrier = tokens[..min_tokens].concat().len();
    for count in min_tokens + 1..=tokens.len() {
        let text = tokens[..count].concat();
        let ends = |stop: &'a str| text.match_indices(stop).map(move |(at, _)| (at, at + stop.len(), stop));
        let mut found: Vec<_> = stops.iter().flat_map(|stop| ends(stop)).filter(|found| found.1 > barrier).collect();
        found.sort_by_key(|found| found.0);
        if let Some(&(at, end, stop)) = found.first() {
            return (text[..if include { end } else { at }].to_owned(), count, Some(stop));
        }
    }
    (tokens.concat(), tokens.len(), None)
}

#[tokio::test]
async fn stop_strings_count_after_the_least_length() {
    let server = TestServer::start().await;
    let body = with(&greedy(60), &json!({"ignore_eos": true, "logprobs": 0}));
    let free = server.post(COMPLETIONS, &body).await;
    let tokens: Vec<&str> =
        free["choices"][0]["logprobs"]["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), text(&free["choices"][0]));
    let mut held = 0;
    let all = [&[" a"][..], &["."], &["the", " and the"], &["e", "zebra"], &[". \"", "old", "."], &["zebra"]];
    for (i, stops) in all.into_iter().enumerate() {
        for (j, min_tokens) in [0, 1, 7, 20, 33, 59, 60].into_iter().enumerate() {
            // Without a least length, texts end with the stop string and before it. The others alternate.
            for include in [false, true].into_iter().filter(|include| j == 0 || *include == ((i + j) % 2 == 0)) {
                let fields = json!({"stop": stops, "min_tokens": min_tokens, "include_stop_str_in_output": include});
                let (choices, completion_tokens) = choices(&server, COMPLETIONS, &with(&body, &fields)).await;
                let (want, count, stop) = stopped(&tokens, stops, min_tokens, include);
                assert_eq!((text(&choices[0]), completion_tokens), (want.as_str(), count as u64), "{fields}");
                assert_eq!(choices[0]["stop_reason"], json!(stop), "{fields}");
                let reason = if stop.is_some() { "stop" } else { "length" };
                assert_eq!(choices[0]["finish_reason"], reason, "{fields}");
                held += usize::from(stop.is_some_and(|stop| stopped(&tokens, &[stop], 0, false).1 <= min_tokens));
            }
        }
    }
    assert!(held > 10, "only {held} stop strings came too early");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn stop_tokens_end_outputs() {
    let server = TestServer::start().await;
    let output = endless(60);
    let body = with(&greedy(60), &json!({"logprobs": 1}));
    let free = server.post(COMPLETIONS, &body).await;
    let tokens: Vec<&str> =
        free["choices"][0]["logprobs"]["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    for (at, &id) in output.tokens.iter().enumerate().skip(5).step_by(6) {
        let first = output.tokens.iter().position(|&other| other == id).unwrap();
        for include in [false, true] {
            let fields = json!({"stop_token_ids": [id, 7], "include_stop_str_in_output": include});
            let (choices, count) = choices(&server, COMPLETIONS, &with(&body, &fields)).await;
            let choice = &choices[0];
            assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(id)));
            assert_eq!(text(choice), tokens[..first + usize::from(include)].concat(), "{at}: {fields}");
            // The stop token counts and has its logprob, even if it has no text.
            assert_eq!(count, first as u64 + 1);
            assert_eq!(choice["logprobs"]["tokens"], json!(tokens[..=first]));
        }
    }
    let chat = json!({"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 60,
        "logprobs": true, "stop_token_ids": [output.tokens[9]]});
    let (chats, _) = choices(&server, CHAT, &chat).await;
    assert_eq!(chats[0]["stop_reason"], output.tokens[9]);
    // An end-of-sequence token is no stop reason unless the request names it.
    let whole = greedy(400);
    for (fields, reason) in [
        (json!({}), json!(null)),
        (json!({"stop_token_ids": [EOS]}), json!(null)),
        (json!({"stop_token_ids": [EOS], "ignore_eos": true}), json!(EOS)),
    ] {
        let (choices, _) = choices(&server, COMPLETIONS, &with(&whole, &fields)).await;
        assert_eq!((&choices[0]["finish_reason"], &choices[0]["stop_reason"]), (&json!("stop"), &reason), "{fields}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn special_tokens_are_shown_on_request() {
    let server = TestServer::start().await;
    let body = with(&greedy(250), &json!({"ignore_eos": true, "logprobs": 0}));
    let shown = with(&body, &json!({"skip_special_tokens": false}));
    let (plain, _) = choices(&server, COMPLETIONS, &body).await;
    let (special, _) = choices(&server, COMPLETIONS, &shown).await;
    assert!(text(&special[0]).contains("</s>"), "{special:?}");
    assert_eq!(text(&special[0]).replace("</s>", ""), text(&plain[0]));
    assert_eq!(special[0]["logprobs"]["tokens"], plain[0]["logprobs"]["tokens"]);
    for echo in [false, true] {
        let (special, _) = choices(&server, COMPLETIONS, &with(&shown, &json!({"echo": echo}))).await;
        let logprobs = &special[0]["logprobs"];
        let tokens: Vec<&str> = logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        assert_eq!(tokens.concat(), text(&special[0]));
        assert_eq!(text(&special[0]).starts_with("</s>Once upon a time"), echo);
        for (i, offset) in logprobs["text_offset"].as_array().unwrap().iter().enumerate() {
            assert_eq!(offset, tokens[..i].concat().chars().count());
        }
    }
    // A special token that ends an output is shown if the request includes stop tokens in the output.
    let chat = json!({"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 400});
    for (path, body) in [(COMPLETIONS, greedy(400)), (CHAT, chat)] {
        let (natural, length) = choices(&server, path, &body).await;
        for (special, include) in [(false, false), (false, true), (true, false), (true, true)] {
            let fields = json!({"skip_special_tokens": !special, "include_stop_str_in_output": include});
            let (choices, tokens) = choices(&server, path, &with(&body, &fields)).await;
            let end = if special && include { "</s>" } else { "" };
            assert_eq!((text(&choices[0]), tokens), (format!("{}{end}", text(&natural[0])).as_str(), length));
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn prompts_get_special_tokens_or_not() {
    let server = TestServer::start().await;
    let tokens = server.post("/tokenize", &json!({"prompt": PROMPT, "add_special_tokens": false})).await;
    let ask = async |body: Value| {
        let answer = server.post(COMPLETIONS, &with(&greedy(20), &body)).await;
        (answer["choices"].clone(), answer["usage"].clone())
    };
    let bare = ask(json!({"add_special_tokens": false})).await;
    assert_eq!(bare.1["prompt_tokens"], tokens["count"]);
    assert_eq!(bare, ask(json!({"prompt": tokens["tokens"]})).await);
    assert_eq!(bare, ask(json!({"prompt": tokens["tokens"], "add_special_tokens": true})).await);
    assert_eq!(ask(json!({})).await, ask(json!({"add_special_tokens": true})).await);
    assert_ne!(ask(json!({})).await, bare);
    let messages = json!([{"role": "user", "content": PROMPT}]);
    let count = async |special: Value| {
        let body = json!({"messages": messages, "max_tokens": 1, "add_special_tokens": special});
        let chat = server.post(CHAT, &body).await["usage"]["prompt_tokens"].as_u64().unwrap();
        let body = json!({"messages": messages, "add_special_tokens": special});
        assert_eq!(server.post("/tokenize", &body).await["count"], chat);
        chat
    };
    let plain = count(json!(null)).await;
    assert_eq!((count(json!(false)).await, count(json!(true)).await), (plain, plain + 1));
    server.stop().await.unwrap();
}

/// In a pool too small for all requests, each gets the same output as in a large pool.
#[tokio::test]
async fn preemption_changes_no_end() {
    let prompts = ["Once upon a time", "One day, a fox", "My name is", "The old mouse", "In the river", "A red kite"];
    let body = json!({"prompt": prompts, "n": 2, "seed": 5, "max_tokens": 120, "min_tokens": 90, "ignore_eos": true,
        "stop": [" the", "."], "stop_token_ids": [9, 14, 300], "include_stop_str_in_output": true, "logprobs": 1,
        "skip_special_tokens": false});
    let roomy = TestServer::start().await;
    let want = choices(&roomy, COMPLETIONS, &body).await;
    assert_eq!(roomy.metric("vllm:num_preemptions_total").await, 0.0);
    assert!(want.0.iter().any(|choice| choice["stop_reason"].is_string()), "{want:?}");
    roomy.stop().await.unwrap();
    let engine = Options { kv_memory: Some(2 << 20), ..Options::default() };
    let server = TestServer::with(&ModelFiles::bundled(), &engine, ServeOptions::default()).await;
    assert_eq!(choices(&server, COMPLETIONS, &body).await, want);
    assert!(server.metric("vllm:num_preemptions_total").await > 0.0);
    server.stop().await.unwrap();
}
