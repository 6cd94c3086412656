//! Structured output over HTTP: every field that requests it, in whole and streamed answers.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::{PROMPT, TestServer};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Returns a schema whose documents are short, whatever tokens the model prefers.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]{1,8}$"},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2}
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false
    })
}

fn assert_valid(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let name = value["name"].as_str().unwrap();
    assert!((1..=8).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase()), "{text}");
    assert!(value["age"].as_u64().unwrap() <= 99 && value["tags"].as_array().unwrap().len() <= 2, "{text}");
    assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
}

/// Returns every way to request `schema`.
fn ways() -> Vec<Value> {
    let named =
        |strict| json!({"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": schema()}});
    vec![
        json!({"response_format": named(true)}),
        json!({"response_format": named(false)}),
        json!({"structured_outputs": {"json": schema()}}),
        json!({"guided_json": schema()}),
        json!({"guided_json": schema().to_string()}),
    ]
}

fn with(body: &Value, fields: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_schema_is_kept_to_in_every_form() {
    let server = TestServer::start().await;
    let chat = json!({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 300, "seed": 3});
    let text = json!({"prompt": PROMPT, "max_tokens": 300, "seed": 3});
    for way in ways() {
        for fields in
            [json!({"temperature": 0}), json!({"n": 3, "temperature": 1.5}), json!({"top_p": 0.5, "top_k": 9})]
        {
            let answer = server.post(COMPLETIONS, &with(&with(&text, &way), &fields)).await;
            for choice in answer["choices"].as_array().unwrap() {
                assert_eq!(choice["finish_reason"], "stop", "{choice}");
                assert_valid(choice["text"].as_str().unwrap());
            }
        }
        let answer = server.post(CHAT, &with(&chat, &way)).await;
        assert_valid(answer["choices"][0]["message"]["content"].as_str().unwrap());
    }
    let way = &ways()[0];
    let whole = server.post(CHAT, &with(&chat, way)).await;
    let events = server.stream(CHAT, &with(&with(&chat, way), &json!({"stream": true}))).await;
    let said: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], said);
    server.assert_unharmed().await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn texts_of_other_forms() {
    let server = TestServer::start().await;
    let body = json!({"prompt": PROMPT, "max_tokens": 60, "temperature": 1, "seed": 5});
    let lark = "start: WORD (\", \" WORD){2}\nWORD: /[a-z]{3}/";
    for (way, is_it) in [
        (json!({"structured_outputs": {"regex": "[0-9]{3}-[a-f]"}}), regex_like as fn(&str) -> bool),
        (json!({"guided_regex": "[0-9]{3}-[a-f]"}), regex_like),
        (json!({"structured_outputs": {"choice": ["yes", "no"]}}), |text| ["yes", "no"].contains(&text)),
        (json!({"guided_choice": ["yes", "no"]}), |text| ["yes", "no"].contains(&text)),
        (json!({"structured_outputs": {"grammar": lark}}), |text| text.len() == 13 && text.split(", ").count() == 3),
        (json!({"guided_grammar": lark}), |text| text.len() == 13 && text.split(", ").count() == 3),
    ] {
        let answer = server.post(COMPLETIONS, &with(&body, &way)).await;
        let text = answer["choices"][0]["text"].as_str().unwrap();
        assert!(is_it(text), "{way}: {text:?}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let object = json!({"response_format": {"type": "json_object"}, "max_tokens": 3});
    let answer = server.post(COMPLETIONS, &with(&body, &object)).await;
    assert!(answer["choices"][0]["text"].as_str().unwrap().starts_with('{'), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    server.assert_unharmed().await;
    server.stop().await.unwrap();
}

fn regex_like(text: &str) -> bool {
    text.split_once('-').is_some_and(|(digits, letter)| {
        digits.len() == 3 && digits.parse::<u32>().is_ok() && ["a", "b", "c", "d", "e", "f"].contains(&letter)
    })
}

#[tokio::test]
async fn every_beam_keeps_to_the_schema() {
    let server = TestServer::start().await;
    let beams = json!({"use_beam_search": true, "best_of": 4, "n": 3, "temperature": 0, "max_tokens": 300});
    let text = with(&json!({"prompt": PROMPT, "logprobs": 2}), &beams);
    let chat = with(&json!({"messages": [{"role": "user", "content": PROMPT}]}), &beams);
    for way in ways() {
        let answer = server.post(COMPLETIONS, &with(&text, &way)).await;
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 3);
        for choice in choices {
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            assert_valid(choice["text"].as_str().unwrap());
        }
    }
    let way = &ways()[0];
    let whole = server.post(CHAT, &with(&chat, way)).await;
    let events = server.stream(CHAT, &with(&with(&chat, way), &json!({"stream": true}))).await;
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let own = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let said: String = own.filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(choice["message"]["content"], said);
        assert_valid(&said);
    }
    // Only two texts match the expression, so there are only two choices.
    let few = json!({"guided_regex": "[23]", "max_tokens": 5});
    let answer = server.post(COMPLETIONS, &with(&with(&text, &few), &json!({"max_tokens": 5}))).await;
    let mut texts: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["2", "3"]);
    server.assert_unharmed().await;
    server.stop().await.unwrap();
}

/// A condition that cannot be enforced is refused with its path in the schema, unless the request is not strict.
#[tokio::test]
async fn only_strict_requests_are_held_to_everything() {
    let server = TestServer::start().await;
    let schema = json!({"type": "object", "properties": {"all": {"type": "array", "items": {"type": "boolean"}},
        "set": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "uniqueItems": true, "maxItems": 3}},
        "required": ["set"], "additionalProperties": false});
    let named = |strict: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": schema}}});
    let body = json!({"prompt": PROMPT, "max_tokens": 200, "seed": 3});
    for (way, field) in [
        (named(json!(true)), "response_format.json_schema.schema"),
        (json!({"guided_json": schema}), "guided_json"),
        (json!({"guided_json": schema.to_string()}), "guided_json"),
        (json!({"structured_outputs": {"json": schema}}), "structured_outputs.json"),
    ] {
        let error = server.refused(COMPLETIONS, &with(&body, &way), 400).await;
        let message = error["message"].as_str().unwrap();
        assert!(error["param"] == field && message.contains("#/properties/set/uniqueItems: "), "{error}");
    }
    for strict in [json!(false), Value::Null] {
        let answer = server.post(COMPLETIONS, &with(&body, &named(strict))).await;
        let text = answer["choices"][0]["text"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(text).unwrap()["set"].is_array(), "{text}");
    }
    let format = |strict: bool| json!({"input": PROMPT, "max_output_tokens": 200, "text": {"format": {"type": "json_schema", "name": "x", "strict": strict, "schema": schema}}});
    assert_eq!(server.refused("/v1/responses", &format(true), 400).await["param"], "text.format.schema");
    let response = server.post("/v1/responses", &format(false)).await;
    assert_eq!(response["text"]["format"]["schema"], schema);
    server.assert_unharmed().await;
    server.stop().await.unwrap();
}

/// Numbers are generated exactly as the request writes them, although a JSON parser would round them.
#[tokio::test]
async fn constants_are_literal() {
    let server = TestServer::start().await;
    let number = "12345678901234567890123";
    let schema = format!("{{\"const\": {number}}}");
    for (path, body) in [
        (COMPLETIONS, format!("{{\"prompt\": \"x\", \"max_tokens\": 60, \"guided_json\": {schema}}}")),
        (COMPLETIONS, format!("{{\"prompt\": \"x\", \"max_tokens\": 60, \"guided_json\": {}}}", json!(schema))),
        (
            CHAT,
            format!(
                "{{\"messages\": [{{\"role\": \"user\", \"content\": \"x\"}}], \"max_tokens\": 60, \"response_format\": \
            {{\"type\": \"json_schema\", \"json_schema\": {{\"name\": \"x\", \"schema\": {schema}}}}}}}"
            ),
        ),
    ] {
        let request = server.client.post(server.url(path)).header("content-type", "application/json").body(body);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"].as_str().or(choice["message"]["content"].as_str()), Some(number), "{answer}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn two_grammars_are_refused() {
    let server = TestServer::start().await;
    let body = json!({"prompt": PROMPT, "max_tokens": 5, "guided_regex": "a+", "guided_choice": ["a"]});
    let error = server.refused(COMPLETIONS, &body, 400).await;
    assert_eq!(error["param"], "guided_choice", "{error}");
    server.assert_unharmed().await;
    server.stop().await.unwrap();
}
