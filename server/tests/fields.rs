//! Request fields: fields without effect are accepted, unsupported fields that would change the answer are refused, and
//! errors use the client's terms.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::collections::BTreeSet;

use common::{PROMPT, TestServer, error_of};
use engine::ModelFiles;
use engine::Options;
use serde_json::{Value, json};
use server::ServeOptions;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Returns a small greedy request for each endpoint.
fn requests() -> [(&'static str, Value); 2] {
    let messages = json!([{"role": "user", "content": PROMPT}]);
    [
        (COMPLETIONS, json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 4})),
        (CHAT, json!({"messages": messages, "temperature": 0, "max_tokens": 4})),
    ]
}

/// Returns `body` with additional fields.
fn with(body: &Value, fields: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Returns the parts of an answer that do not vary between identical requests.
fn said(answer: &Value) -> (Value, Value) {
    (answer["choices"].clone(), answer["usage"].clone())
}

/// Returns the names of a request's fields in the API description.
async fn described(server: &TestServer, path: &str) -> BTreeSet<String> {
    let schema = if path == CHAT { "ChatRequest" } else { "CompletionRequest" };
    let description = server.get_json("/openapi.json").await;
    description["components"]["schemas"][schema]["properties"].as_object().unwrap().keys().cloned().collect()
}

/// Checks that a message has no terms that only a reader of the source understands.
fn assert_plain(message: &str) {
    let foreign = [
        "usize", "isize", "u8", "u16", "u32", "u64", "i32", "i64", "f32", "f64", "struct", "enum", "variant", "tuple",
        "sequence", "map", "newtype", "unit", "Option", "expected", "untagged", "serde",
    ];
    let mut words = message.split(|c: char| !c.is_alphanumeric());
    assert!(words.all(|word| !foreign.contains(&word)) && !message.contains("::"), "{message}");
}

#[tokio::test]
async fn fields_without_effect_are_accepted() {
    let server = TestServer::start().await;
    let neutral = [
        json!({"tools": []}),
        json!({"tool_choice": "none"}),
        json!({"tool_choice": "auto", "tools": null}),
        json!({"functions": [], "function_call": "none"}),
        json!({"parallel_tool_calls": true}),
        json!({"parallel_tool_calls": false}),
        json!({"response_format": {"type": "text"}}),
        json!({"response_format": {"type": "text", "json_schema": null}}),
        json!({"modalities": ["text"]}),
        json!({"audio": null, "prediction": null, "web_search_options": null}),
        json!({"store": true, "metadata": {"run": "7", "more": {"deep": [1, null]}}}),
        json!({"store": false, "metadata": {}}),
        json!({"service_tier": "auto", "user": "me"}),
        json!({"prompt_cache_key": "k", "safety_identifier": "s", "prompt_cache_retention": "24h"}),
        json!({"reasoning_effort": "low", "verbosity": "high"}),
        json!({"client_metadata": {"x": "y"}}),
        json!({"suffix": ""}),
        json!({"n": 1, "best_of": 1, "stop": [], "logit_bias": {}, "use_beam_search": false}),
        json!({"presence_penalty": 0, "frequency_penalty": 0.0, "top_p": 1, "seed": 3}),
        json!({"length_penalty": 1.0, "early_stopping": false}),
        json!({"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}),
        json!({"priority": 0, "truncate_prompt_tokens": null, "bad_words": [], "guided_json": null}),
        json!({"spaces_between_special_tokens": false, "include_reasoning": true, "vllm_xargs": {}}),
        json!({"return_token_ids": false, "return_tokens_as_token_ids": false, "logits_processors": []}),
        json!({"stream": false, "stream_options": null}),
        json!({"detokenize": true, "chat_template_content_format": "auto"}),
        json!({"echo": false, "top_logprobs": null, "max_completion_tokens": null, "documents": [],
               "chat_template_kwargs": {}, "continue_final_message": false}),
    ];
    for (path, body) in requests() {
        let plain = said(&server.post(path, &body).await);
        for fields in &neutral {
            assert_eq!(said(&server.post(path, &with(&body, fields)).await), plain, "{path} {fields}");
        }
        // Checks that null is accepted for every known field at once.
        let mut all = body.clone();
        for field in described(&server, path).await {
            all.as_object_mut().unwrap().entry(field).or_insert(Value::Null);
        }
        assert_eq!(said(&server.post(path, &all).await), plain, "{path} with null for all that is left out");
        for options in [
            json!({"include_obfuscation": true}),
            json!({"include_obfuscation": false, "include_usage": null, "continuous_usage_stats": false}),
        ] {
            server.stream(path, &with(&body, &json!({"stream": true, "stream_options": options}))).await;
        }
    }
    let [_, (_, chat)] = requests();
    let plain = said(&server.post(CHAT, &chat).await);
    for fields in [json!({"logprobs": false, "top_logprobs": 0}), json!({"logprobs": false, "top_logprobs": null})] {
        assert_eq!(said(&server.post(CHAT, &with(&chat, &fields)).await), plain, "{fields}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn unsupported_fields_are_refused_by_name() {
    let server = TestServer::start().await;
    let function = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let refused = [
        ("tools", json!([function])),
        ("tool_choice", json!("required")),
        ("tool_choice", function.clone()),
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!({"name": "f"})),
        ("response_format", json!({"type": "text", "json_schema": {}})),
        ("response_format.type", json!({})),
        ("response_format.type", json!({"type": "structural_tag"})),
        ("response_format.json_schema.schema", json!({"type": "json_schema"})),
        ("response_format.json_schema.schema", json!({"type": "json_schema", "json_schema": {"name": "x"}})),
        (
            "response_format.json_schema.schema",
            json!({"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}),
        ),
        ("response_format.colour", json!({"type": "json_object", "colour": 1})),
        ("modalities", json!(["text", "audio"])),
        ("modalities", json!([])),
        ("audio", json!({"voice": "alloy", "format": "wav"})),
        ("prediction", json!({"type": "content", "content": "x"})),
        ("web_search_options", json!({})),
        ("suffix", json!(" end")),
        ("priority", json!(1)),
        ("truncate_prompt_tokens", json!(3)),
        ("prompt_logprobs", json!(101)),
        ("allowed_token_ids", json!([1])),
        ("bad_words", json!(["a"])),
        ("guided_json", json!("{")),
        ("guided_json", json!({"type": 7})),
        ("guided_regex", json!("a(")),
        ("guided_choice", json!([])),
        ("guided_grammar", json!("root ::= x")),
        ("structured_outputs.regex", json!({"regex": "(a"})),
        ("structured_outputs.regex", json!({"regex": "a", "json": {}})),
        ("structured_outputs.structural_tag", json!({"structural_tag": "x"})),
        ("logits_processors", json!(["x"])),
        ("request_id", json!("mine")),
        ("cache_salt", json!("")),
        ("thinking_token_budget", json!(5)),
        ("vllm_xargs", json!({"a": 1})),
        ("length_penalty", json!(0.5)),
        ("early_stopping", json!(true)),
        ("temprature", json!(0.5)),
        ("temprature", json!(null)),
    ];
    for (path, body) in requests() {
        for (field, value) in &refused {
            let name = field.split('.').next().unwrap();
            let error = server.refused(path, &with(&body, &json!({name: value})), 400).await;
            let message = error["message"].as_str().unwrap();
            assert_eq!(error["param"], *field, "{path} {field} {value}: {message}");
            assert!(message.contains(field), "{message}");
            assert_plain(message);
        }
        for (option, value) in [("continuous_usage_stats", json!(1)), ("colour", json!(1))] {
            let options = json!({"stream": true, "stream_options": {option: value}});
            let error = server.refused(path, &with(&body, &options), 400).await;
            assert_eq!(error["param"], format!("stream_options.{option}"));
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn wrong_types_are_named_in_plain_words() {
    let server = TestServer::start().await;
    let text = [json!(7), json!(true), json!([]), json!({})];
    let boolean = [json!(1), json!("true"), json!([true]), json!({})];
    let integer = [json!("7"), json!(1.5), json!(true), json!([7]), json!({}), json!(1e300), json!(-1e300)];
    let number = [json!("7"), json!(true), json!([7]), json!({}), json!(1e300)];
    let object = [json!("x"), json!(7), json!([]), json!([{}]), json!([["include_usage", true]])];
    let texts = [json!(7), json!([7]), json!(["a", null]), json!({}), json!([["a"]])];
    let tokens = [json!(7), json!("7"), json!(["a"]), json!([7, "a"]), json!([1.5]), json!([-1]), json!({})];
    let wrong = |field: &str| -> &[Value] {
        match field {
            "model"
            | "user"
            | "service_tier"
            | "prompt_cache_key"
            | "prompt_cache_retention"
            | "safety_identifier"
            | "reasoning_effort"
            | "verbosity"
            | "suffix"
            | "guided_decoding_backend"
            | "guided_regex"
            | "guided_grammar"
            | "guided_whitespace_pattern" => &text,
            "echo"
            | "stream"
            | "ignore_eos"
            | "use_beam_search"
            | "store"
            | "parallel_tool_calls"
            | "include_reasoning"
            | "spaces_between_special_tokens" => &boolean,
            "max_tokens" | "max_completion_tokens" | "n" | "best_of" | "top_k" | "seed" | "top_logprobs" => &integer,
            "temperature" | "top_p" | "min_p" | "repetition_penalty" | "presence_penalty" | "frequency_penalty"
            | "length_penalty" => &number,
            "stream_options" | "metadata" | "logit_bias" => &object,
            "stop" => &texts,
            // Fields that other tables here and the tests of chats cover.
            _ => &[],
        }
    };
    for (path, body) in requests() {
        for field in described(&server, path).await {
            for value in wrong(&field) {
                assert_refused(&server, path, &with(&body, &json!({&field: value})), &field).await;
            }
        }
        let logprobs = if path == CHAT { &boolean[..] } else { &integer[..] };
        for value in logprobs {
            assert_refused(&server, path, &with(&body, &json!({"logprobs": value})), "logprobs").await;
        }
        for (field, value) in [
            ("early_stopping", json!("sometimes")),
            ("early_stopping", json!(1)),
            ("logit_bias", json!({"7": "x"})),
            ("logit_bias", json!({"7": [1]})),
            ("logit_bias", json!({"cat": 1})),
            ("stream_options.include_usage", json!({"include_usage": "yes"})),
            ("stream_options.include_obfuscation", json!({"include_obfuscation": []})),
        ] {
            let name = field.split('.').next().unwrap();
            assert_refused(&server, path, &with(&body, &json!({name: value, "stream": true})), field).await;
        }
    }
    for value in
        [json!(7), json!(null), json!({"text": "a"}), json!(true), json!(["a", 7]), json!([7, "a"]), json!([[7], 7])]
    {
        assert_refused(&server, COMPLETIONS, &json!({"prompt": value}), "prompt").await;
    }
    for value in [json!([1.5]), json!([-1]), json!([[1.5]]), json!([1e10]), json!([null]), json!([{}])] {
        assert_refused(&server, COMPLETIONS, &json!({"prompt": value}), "prompt").await;
    }
    // Numbers and strings that cannot be represented are reported with their field. Huge numbers are described as
    // numbers.
    for (body, field) in [
        (r#"{"prompt": "a", "seed": 1e400}"#, "seed"),
        (r#"{"prompt": "\ud800"}"#, "prompt"),
        (r#"{"prompt": "a", "seed": 9223372036854775808}"#, "seed is out of range"),
        (r#"{"prompt": "a", "max_tokens": 1e30}"#, "max_tokens is out of range"),
        (r#"{"prompt": "a", "user": "b", "user": "c"}"#, "user is given twice"),
    ] {
        let request = server.client.post(server.url(COMPLETIONS)).header("content-type", "application/json");
        let error = error_of(request.body(body).send().await.unwrap(), 400).await;
        assert_eq!(error["param"], field.split(' ').next().unwrap(), "{error}");
        assert!(error["message"].as_str().unwrap().starts_with(field), "{error}");
    }
    let long = "x".repeat(100_000);
    let error = server.refused(COMPLETIONS, &json!({"prompt": "a", (&long): 1}), 400).await;
    assert!(error.to_string().len() < 1000);
    for value in &tokens {
        assert_refused(&server, "/detokenize", &json!({"tokens": value}), "tokens").await;
    }
    for value in &text {
        assert_refused(&server, "/tokenize", &json!({"prompt": value}), "prompt").await;
    }
    assert_refused(&server, "/tokenize", &json!({"prompt": "a", "add_special_tokens": 1}), "add_special_tokens").await;
    assert_refused(&server, COMPLETIONS, &json!({"max_tokens": 1}), "prompt").await;
    assert_refused(&server, CHAT, &json!({"max_tokens": 1}), "messages").await;
    let silent = json!([{"role": "user", "content": "x"}, {"role": "user", "content": null}]);
    let wrong = [json!({}), json!("hi"), json!([["user", "hi"]]), json!(["hi"]), json!([{"content": "x"}])];
    for messages in wrong.into_iter().chain([silent, json!([{"role": "system"}])]) {
        let error = server.refused(CHAT, &json!({"messages": messages}), 400).await;
        assert!(error["param"].as_str().unwrap().starts_with("messages"), "{error}");
        assert_plain(error["message"].as_str().unwrap());
    }
    server.stop().await.unwrap();
}

async fn assert_refused(server: &TestServer, path: &str, body: &Value, field: &str) {
    let error = server.refused(path, body, 400).await;
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["param"], field, "{path} {body}: {message}");
    assert!(message.contains(field), "{path} {body}: {message}");
    assert_plain(message);
}

#[tokio::test]
async fn a_body_is_an_object() {
    let server = TestServer::start().await;
    let bodies = [
        "",
        "{",
        "[]",
        "[\"a\", 7]",
        "null",
        "7",
        "\"a\"",
        "{\"prompt\": NaN}",
        "{\"prompt\": \"a\", \"messages\": [], \"tokens\": []} x",
    ];
    for path in [COMPLETIONS, CHAT, "/tokenize", "/detokenize"] {
        for body in bodies {
            let request = server.client.post(server.url(path)).header("content-type", "application/json");
            let error = error_of(request.body(body).send().await.unwrap(), 400).await;
            assert_eq!(error["param"], Value::Null, "{path} {body}: {error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with("the body "), "{path} {body}: {message}");
            assert_plain(message);
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn whole_numbers_are_integers() {
    let server = TestServer::start().await;
    let ids = server.post("/tokenize", &json!({"prompt": PROMPT})).await["tokens"].clone();
    let float = |id: &Value| json!(id.as_u64().unwrap() as f64);
    let floats: Value = ids.as_array().unwrap().iter().map(float).collect();
    assert!(floats.to_string().contains(".0"));
    let whole = json!({"prompt": ids, "max_tokens": 9, "n": 2, "best_of": 2, "top_k": 5, "seed": 7, "logprobs": 2});
    let want = said(&server.post(COMPLETIONS, &whole).await);
    let points = json!({"max_tokens": 9.0, "n": 2.0, "best_of": 2e0, "top_k": 5.0, "seed": 7.0, "logprobs": 2.0});
    assert_eq!(said(&server.post(COMPLETIONS, &with(&whole, &points)).await), want);
    assert_eq!(said(&server.post(COMPLETIONS, &with(&whole, &json!({"prompt": floats}))).await), want);
    assert_eq!(said(&server.post(COMPLETIONS, &with(&whole, &json!({"prompt": [floats]}))).await), want);
    let [_, (_, chat)] = requests();
    let plain = said(&server.post(CHAT, &with(&chat, &json!({"logprobs": true, "top_logprobs": 1}))).await);
    let points = json!({"max_completion_tokens": 4.0, "logprobs": true, "top_logprobs": 1.0});
    assert_eq!(said(&server.post(CHAT, &with(&chat, &points)).await), plain);
    let text = server.post("/detokenize", &json!({"tokens": floats})).await;
    assert_eq!(text["prompt"], format!("</s>{PROMPT}"));
    server.stop().await.unwrap();
}

/// Errors that only the engine detects also name the field, with the client's name for it.
#[tokio::test]
async fn the_engines_refusals_name_the_field() {
    let engine = Options { kv_memory: Some(1 << 20), ..Options::default() };
    let server = TestServer::with(&ModelFiles::bundled(), &engine, ServeOptions::default()).await;
    for (path, body) in requests() {
        let beams = with(&body, &json!({"use_beam_search": true, "best_of": 2}));
        // OpenAI's default, which clients send without being told to.
        let plain = said(&server.post(path, &beams).await);
        assert_eq!(said(&server.post(path, &with(&beams, &json!({"temperature": 1}))).await), plain, "{path}");
        for (field, value) in [
            ("temperature", json!(0.5)),
            ("top_p", json!(0.5)),
            ("top_k", json!(3)),
            ("min_p", json!(0.1)),
            ("repetition_penalty", json!(1.5)),
            ("presence_penalty", json!(0.5)),
            ("frequency_penalty", json!(0.5)),
            ("logit_bias", json!({"7": 1})),
            ("stop", json!("x")),
        ] {
            assert_refused(&server, path, &with(&beams, &json!({field: value})), field).await;
        }
        assert_refused(&server, path, &with(&body, &json!({"max_tokens": 0})), "max_tokens").await;
        let long = server.refused(path, &with(&body, &json!({"max_tokens": 5000})), 400).await;
        assert_eq!(long["param"], "max_tokens", "{path} {long}");
    }
    let long = server.refused(COMPLETIONS, &json!({"prompt": vec![300; 500]}), 400).await;
    assert_eq!(long["param"], "prompt", "{long}");
    assert!(long["message"].as_str().unwrap().contains("113 tokens with a KV cache of this size"), "{long}");
    let long = server.refused(CHAT, &json!({"messages": [{"role": "user", "content": "a b ".repeat(500)}]}), 400).await;
    assert_eq!(long["param"], "messages", "{long}");
    server.stop().await.unwrap();
}
