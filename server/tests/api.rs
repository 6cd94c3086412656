//! Checks that answers match the engine's outputs and have OpenAI's form.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::{MODEL, PROMPT, TestServer, alone};
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn texts(answer: &Value) -> Vec<String> {
    answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap().to_owned()).collect()
}

/// Returns the texts of all choices, joined from the chunks of a stream.
fn joined(events: &[Value], text: impl Fn(&Value) -> &Value) -> Vec<String> {
    let mut texts = Vec::new();
    for choice in events.iter().flat_map(|e| e["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        texts.resize(texts.len().max(index + 1), String::new());
        texts[index].push_str(text(choice).as_str().unwrap_or_default());
    }
    texts
}

fn float(value: &Value) -> f32 {
    value.as_f64().unwrap() as f32
}

fn engine(params: SamplingParams) -> Vec<String> {
    alone(&ModelFiles::bundled(), PROMPT, &params).outputs.into_iter().map(|o| o.text).collect()
}

#[tokio::test]
async fn a_completion_is_the_engines() {
    let server = TestServer::start().await;
    let answer = server.post(COMPLETIONS, &json!({"model": MODEL, "prompt": PROMPT, "temperature": 0})).await;
    let want = alone(&ModelFiles::bundled(), PROMPT, &SamplingParams { max_tokens: 16, ..Default::default() });
    assert_eq!(texts(&answer), [want.outputs[0].text.clone()]);
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!(MODEL)));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let prompt = want.prompt_tokens.len();
    let details = json!({"cached_tokens": 0});
    assert_eq!(
        answer["usage"],
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": 16,
            "total_tokens": prompt + 16,
            "prompt_tokens_details": details,
        })
    );
    let whole = server.post(COMPLETIONS, &json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 400})).await;
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn prompts_have_four_forms() {
    let server = TestServer::start().await;
    let ids = server.post("/tokenize", &json!({"prompt": PROMPT})).await["tokens"].clone();
    let other = server.post("/tokenize", &json!({"prompt": "One day, a fox"})).await["tokens"].clone();
    let ask =
        async |prompt: Value| texts(&server.post(COMPLETIONS, &json!({"prompt": prompt, "temperature": 0})).await);
    let one = ask(json!(PROMPT)).await;
    assert_eq!(ask(ids.clone()).await, one);
    let both = ask(json!([PROMPT, "One day, a fox"])).await;
    assert_eq!((both.len(), &both[0]), (2, &one[0]));
    assert_eq!(ask(json!([ids, other])).await, both);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn sampling_options_reach_the_engine() {
    let server = TestServer::start().await;
    let base = SamplingParams { max_tokens: 20, temperature: 1.0, seed: Some(7), ..Default::default() };
    let cases = [
        (json!({}), base.clone()),
        (json!({"n": 3}), SamplingParams { n: 3, best_of: 3, ..base.clone() }),
        (json!({"n": 2, "best_of": 4}), SamplingParams { n: 2, best_of: 4, ..base.clone() }),
        (json!({"temperature": 0.5}), SamplingParams { temperature: 0.5, ..base.clone() }),
        (json!({"top_k": 3}), SamplingParams { top_k: 3, ..base.clone() }),
        (json!({"top_k": -1}), base.clone()),
        (json!({"top_p": 0.3}), SamplingParams { top_p: 0.3, ..base.clone() }),
        (json!({"min_p": 0.4}), SamplingParams { min_p: 0.4, ..base.clone() }),
        (json!({"repetition_penalty": 1.5}), SamplingParams { repetition_penalty: 1.5, ..base.clone() }),
        (
            json!({"presence_penalty": 2, "frequency_penalty": -1}),
            SamplingParams { presence_penalty: 2.0, frequency_penalty: -1.0, ..base.clone() },
        ),
        (
            json!({"logit_bias": {"300": 5.5, "14": -100}}),
            SamplingParams { logit_bias: vec![(14, -100.0), (300, 5.5)], ..base.clone() },
        ),
        (json!({"stop": " a"}), SamplingParams { stop: vec![" a".into()], ..base.clone() }),
        (json!({"stop": ["zebra", "."]}), SamplingParams { stop: vec!["zebra".into(), ".".into()], ..base.clone() }),
        (
            json!({"ignore_eos": true, "max_tokens": 300}),
            SamplingParams { ignore_eos: true, max_tokens: 300, ..base.clone() },
        ),
    ];
    for (fields, params) in cases {
        let mut body = json!({"prompt": PROMPT, "max_tokens": 20, "seed": 7});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(texts(&server.post(COMPLETIONS, &body).await), engine(params), "{fields}");
    }
    let unseeded = json!({"prompt": PROMPT, "max_tokens": 30});
    let (a, b) = (server.post(COMPLETIONS, &unseeded).await, server.post(COMPLETIONS, &unseeded).await);
    assert_ne!(texts(&a), texts(&b), "the default is to sample, as OpenAI's is");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn beam_search_has_its_own_fields() {
    let server = TestServer::start().await;
    let body = json!({"prompt": PROMPT, "use_beam_search": true, "best_of": 4, "n": 2, "max_tokens": 30,
        "length_penalty": 0.5, "early_stopping": "never"});
    let beam = Some(Beam { width: 4, length_penalty: 0.5, early_stopping: EarlyStopping::Never });
    let want = engine(SamplingParams { n: 2, best_of: 2, max_tokens: 30, beam, ..Default::default() });
    assert_eq!(texts(&server.post(COMPLETIONS, &body).await), want);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    assert_eq!(joined(&server.stream(COMPLETIONS, &streamed).await, |c| &c["text"]), want);
    for field in ["length_penalty", "early_stopping"] {
        let error = server.refused(COMPLETIONS, &json!({"prompt": PROMPT, field: true}), 400).await;
        assert_eq!(error["param"], field);
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_stream_is_the_same_text_in_pieces() {
    let server = TestServer::start().await;
    let body = json!({"prompt": [PROMPT, "My name is"], "n": 2, "seed": 1, "max_tokens": 40, "stop": ["zebra"],
        "logprobs": 1});
    let whole = server.post(COMPLETIONS, &body).await;
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let mut events = server.stream(COMPLETIONS, &streamed).await;
    assert!(events.len() > 40, "tokens come one by one");
    let last = events.pop().unwrap();
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
    assert!(events.iter().all(|e| e["usage"].is_null() && e["id"] == last["id"]));
    assert_eq!(joined(&events, |c| &c["text"]), texts(&whole));
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let mine = || events.iter().flat_map(|e| e["choices"].as_array().unwrap()).filter(|c| c["index"] == index);
        assert_eq!(mine().next_back().unwrap()["finish_reason"], choice["finish_reason"]);
        for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let pieces = mine().filter_map(|c| c["logprobs"][field].as_array()).flatten();
            assert_eq!(pieces.cloned().collect::<Value>(), choice["logprobs"][field], "{field}");
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn echo_puts_the_prompt_first() {
    let server = TestServer::start().await;
    let body = json!({"prompt": PROMPT, "temperature": 0, "echo": true});
    let whole = texts(&server.post(COMPLETIONS, &body).await);
    assert!(whole[0].starts_with("Once upon a time, there lived"), "{whole:?}");
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    assert_eq!(joined(&server.stream(COMPLETIONS, &streamed).await, |c| &c["text"]), whole);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn logprobs_of_prompts_are_the_engines() {
    let server = TestServer::start().await;
    let params = SamplingParams { max_tokens: 1, prompt_logprobs: Some(2), ..Default::default() };
    let want = alone(&ModelFiles::bundled(), PROMPT, &params).prompt_logprobs.unwrap();
    let body = json!({"prompt": [PROMPT, PROMPT], "temperature": 0, "max_tokens": 1, "prompt_logprobs": 2});
    let answer = server.post(COMPLETIONS, &body).await;
    for choice in answer["choices"].as_array().unwrap() {
        let got = choice["prompt_logprobs"].as_array().unwrap();
        assert_eq!((got.len(), &got[0]), (want.len(), &Value::Null));
        for (got, want) in got.iter().zip(&want).skip(1) {
            let want = want.as_ref().unwrap();
            assert_eq!(float(&got[want.token.to_string()]["logprob"]), want.logprob);
            for (at, (id, logprob)) in want.top.iter().enumerate() {
                let token = &got[id.to_string()];
                assert_eq!((float(&token["logprob"]), &token["rank"]), (*logprob, &json!(at + 1)));
                assert!(token["decoded_token"].is_string());
            }
            assert!((2..=3).contains(&got.as_object().unwrap().len()));
        }
    }
    let chat = json!({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1, "prompt_logprobs": 0});
    let answer = server.post(CHAT, &chat).await;
    assert_eq!(answer["prompt_logprobs"].as_array().unwrap().len() as u64, answer["usage"]["prompt_tokens"]);
    let streamed = json!({"prompt": PROMPT, "prompt_logprobs": 1, "stream": true});
    assert_eq!(server.refused(COMPLETIONS, &streamed, 400).await["param"], "prompt_logprobs");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn an_echoed_prompt_has_its_logprobs() {
    let server = TestServer::start().await;
    let params = SamplingParams { max_tokens: 0, prompt_logprobs: Some(2), ..Default::default() };
    let want = alone(&ModelFiles::bundled(), PROMPT, &params);
    let prompt = want.prompt_tokens.len();
    let entries = want.prompt_logprobs.unwrap();
    let ids = json!(want.prompt_tokens);
    for (asked, max_tokens, n) in [(json!(PROMPT), 0, 1), (ids.clone(), 0, 2), (json!([ids, ids]), 3, 2)] {
        let body = json!({"prompt": asked, "temperature": 0, "max_tokens": max_tokens, "n": n, "echo": true,
            "logprobs": 2, "ignore_eos": true});
        let answer = server.post(COMPLETIONS, &body).await;
        let choices = answer["choices"].as_array().unwrap();
        let prompts = if max_tokens == 0 { 1 } else { 2 };
        assert_eq!(choices.len(), n * prompts);
        assert_eq!(answer["usage"]["completion_tokens"], n * prompts * max_tokens);
        for choice in choices {
            assert_eq!(choice["finish_reason"], "length");
            let (text, logprobs) = (choice["text"].as_str().unwrap(), &choice["logprobs"]);
            assert!(text.starts_with(PROMPT));
            let tokens: Vec<&str> =
                logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
            assert_eq!(tokens.len(), prompt + max_tokens);
            assert_eq!((tokens[0], &logprobs["text_offset"][0]), ("</s>", &json!(0)));
            // The token that begins a text adds no text.
            assert_eq!(tokens[1..].concat(), text);
            for i in 1..tokens.len() {
                assert_eq!(logprobs["text_offset"][i], tokens[1..i].concat().chars().count());
            }
            assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
            for (i, entry) in entries.iter().enumerate().skip(1) {
                let entry = entry.as_ref().unwrap();
                assert_eq!(float(&logprobs["token_logprobs"][i]), entry.logprob);
                let top = logprobs["top_logprobs"][i].as_object().unwrap();
                assert!((2..=3).contains(&top.len()));
                assert_eq!(float(&top[tokens[i]]), entry.logprob);
                assert!(top.values().any(|logprob| float(logprob) == entry.top[0].1));
            }
        }
    }
    let error = server.refused(COMPLETIONS, &json!({"prompt": PROMPT, "max_tokens": 0}), 400).await;
    assert_eq!(error["param"], "max_tokens");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn an_echo_comes_as_the_first_chunk_of_each_choice() {
    let server = TestServer::start().await;
    let sampled = json!({"n": 2, "seed": 1, "max_tokens": 5});
    let beams = json!({"n": 2, "use_beam_search": true, "max_tokens": 5});
    for fields in [sampled, beams, json!({"n": 2, "max_tokens": 0})] {
        let mut body = json!({"prompt": [PROMPT, "My name is"], "echo": true, "logprobs": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let whole = server.post(COMPLETIONS, &body).await;
        body["stream"] = true.into();
        let events = server.stream(COMPLETIONS, &body).await;
        assert_eq!(joined(&events, |c| &c["text"]), texts(&whole));
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let mine: Vec<_> =
                events.iter().flat_map(|e| e["choices"].as_array().unwrap()).filter(|c| c["index"] == index).collect();
            assert_eq!(mine[0]["text"], [PROMPT, "My name is"][index / 2]);
            assert_eq!(mine.last().unwrap()["finish_reason"], choice["finish_reason"]);
            for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let pieces = mine.iter().filter_map(|c| c["logprobs"][field].as_array()).flatten();
                assert_eq!(pieces.cloned().collect::<Value>(), choice["logprobs"][field], "{field}");
            }
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn logprobs_are_the_engines() {
    let server = TestServer::start().await;
    let params = SamplingParams { max_tokens: 8, logprobs: Some(3), ..Default::default() };
    let output = alone(&ModelFiles::bundled(), PROMPT, &params).outputs.remove(0);
    let want = output.logprobs.unwrap();
    let body = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 8, "logprobs": 3});
    let answer = server.post(COMPLETIONS, &body).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens: Vec<&str> = logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), output.text);
    for (i, want) in want.iter().enumerate() {
        assert_eq!(float(&logprobs["token_logprobs"][i]), want.logprob);
        assert_eq!(logprobs["top_logprobs"][i].as_object().unwrap().len(), 3);
        assert_eq!(logprobs["text_offset"][i], tokens[..i].concat().chars().count());
    }
    let body = json!({"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 8,
        "logprobs": true, "top_logprobs": 2});
    let answer = server.post(CHAT, &body).await;
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 8);
    for (got, want) in content.iter().zip(&want) {
        assert_eq!(float(&got["logprob"]), want.logprob);
        assert_eq!(got["bytes"], json!(got["token"].as_str().unwrap().as_bytes()));
        assert_eq!(float(&got["top_logprobs"][1]["logprob"]), want.top[1].1);
        assert_eq!(got["top_logprobs"].as_array().unwrap().len(), 2);
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_chat_is_a_completion_of_the_templates_prompt() {
    let server = TestServer::start().await;
    let parts = json!([{"type": "text", "text": PROMPT}]);
    for content in [json!(PROMPT), parts] {
        let body = json!({"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 30,
            "n": 1});
        let answer = server.post(CHAT, &body).await;
        let want = engine(SamplingParams { max_tokens: 30, ..Default::default() });
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"], json!({"role": "assistant", "content": want[0], "refusal": null}));
        assert_eq!((&answer["object"], &choice["finish_reason"]), (&json!("chat.completion"), &json!("length")));
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let events = server.stream(CHAT, &streamed).await;
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(joined(&events, |c| &c["delta"]["content"]), want);
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
    let several =
        json!({"messages": [{"role": "user", "content": PROMPT}], "n": 3, "seed": 5, "max_completion_tokens": 9});
    let answer = server.post(CHAT, &several).await;
    let got: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["message"]["content"].as_str().unwrap()).collect();
    let params =
        SamplingParams { n: 3, best_of: 3, seed: Some(5), temperature: 1.0, max_tokens: 9, ..Default::default() };
    assert_eq!(got, engine(params));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn tokens_go_both_ways() {
    let server = TestServer::start().await;
    let tokens = server.post("/tokenize", &json!({"model": MODEL, "prompt": PROMPT})).await;
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    assert_eq!((&tokens["max_model_len"], &tokens["tokens"][0]), (&json!(512), &json!(2)));
    let plain = server.post("/tokenize", &json!({"prompt": PROMPT, "add_special_tokens": false})).await;
    assert_eq!(plain["tokens"].as_array().unwrap()[..], tokens["tokens"].as_array().unwrap()[1..]);
    let text = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).await;
    assert_eq!(text["prompt"], format!("</s>{PROMPT}"));
    let chat = server.post("/tokenize", &json!({"messages": [{"role": "user", "content": PROMPT}]})).await;
    assert_eq!(chat["tokens"], tokens["tokens"]);
    server.refused("/tokenize", &json!({}), 400).await;
    server.refused("/detokenize", &json!({"tokens": [2048]}), 400).await;
    server.stop().await.unwrap();
}
