//! Responses, whole and streamed: texts, reasoning, tool calls and their results, output forms, and refusals.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::TestServer;
use engine::tools::answer::ToolFormat;
use serde_json::{Value, json};
use server::ServeOptions;

const PATH: &str = "/v1/responses";
const TEMPLATE: &str = "{% if tools %}tools:{% for t in tools %} {{ t.function.name }}{% endfor %}\n{% endif %}\
    {% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}{{ c.id }}</tool_call>{% endfor %}\
    {% if m.reasoning_content %}</think>{{ m.reasoning_content }}{% endif %}\n{% endfor %}\
    {% if add_generation_prompt %}assistant:{% if enable_thinking %}<think>{% endif %}{% endif %}";

async fn server() -> TestServer {
    let options = ServeOptions {
        chat_template: Some(TEMPLATE.to_owned()),
        tool_call_parser: Some(ToolFormat::Hermes),
        ..ServeOptions::default()
    };
    TestServer::with_options(options).await
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer",
        "minimum": 1, "maximum": 9}}, "required": ["unit", "days"], "additionalProperties": false});
    json!([
        {"type": "function", "name": "weather", "description": "Tells it.", "parameters": parameters, "strict": true},
        {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}
    ])
}

fn ask(fields: Value) -> Value {
    let mut body = json!({"input": "What now?", "max_output_tokens": 60, "seed": 4});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Returns a value without its random ids and without the number of cached tokens.
fn unnamed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_name =
                |name: &str| ["id", "item_id", "call_id", "created_at", "input_tokens_details"].contains(&name);
            fields.iter().filter(|(name, _)| !is_name(name)).map(|(name, v)| (name.clone(), unnamed(v))).collect()
        }
        Value::Array(items) => items.iter().map(unnamed).collect(),
        other => other.clone(),
    }
}

/// Returns the events of a stream, which must be numbered.
async fn events(server: &TestServer, body: &Value) -> Vec<Value> {
    let events = server.named_events(PATH, body).await;
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    events
}

/// Returns the output that a stream's events add up to. Each item's parts, texts and arguments must match their final
/// events.
fn told(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let add = |to: &mut Value, more: &Value| *to = (to.as_str().unwrap().to_owned() + more.as_str().unwrap()).into();
    for event in events {
        let at = event["output_index"].as_u64().map(|at| at as usize);
        if let (Some(at), Some(id)) = (at, event["item_id"].as_str()) {
            assert_eq!(items[at]["id"], id, "{event}");
        }
        match event["type"].as_str().unwrap().strip_prefix("response.").unwrap() {
            "created" | "in_progress" => assert!(items.is_empty() && event["response"]["status"] == "in_progress"),
            "output_item.added" => {
                assert_eq!((at.unwrap(), &event["item"]["status"]), (items.len(), &json!("in_progress")));
                items.push(event["item"].clone());
            }
            "content_part.added" => items[at.unwrap()]["content"].as_array_mut().unwrap().push(event["part"].clone()),
            "output_text.delta" | "reasoning_text.delta" => {
                add(&mut items[at.unwrap()]["content"][0]["text"], &event["delta"]);
            }
            "function_call_arguments.delta" => add(&mut items[at.unwrap()]["arguments"], &event["delta"]),
            "output_text.done" | "reasoning_text.done" => {
                assert_eq!(items[at.unwrap()]["content"][0]["text"], event["text"]);
            }
            "content_part.done" => assert_eq!(items[at.unwrap()]["content"][0], event["part"]),
            "function_call_arguments.done" => assert_eq!(items[at.unwrap()]["arguments"], event["arguments"]),
            "output_item.done" => {
                items[at.unwrap()]["status"] = event["item"]["status"].clone();
                assert_eq!(items[at.unwrap()], event["item"]);
            }
            "completed" | "incomplete" => assert_eq!(event["response"]["output"], json!(items)),
            other => panic!("{other}"),
        }
    }
    items
}

/// Returns the response to a request. The streamed response must be the same.
async fn respond(server: &TestServer, fields: Value) -> Value {
    let body = ask(fields);
    let whole = server.post(PATH, &body).await;
    let events = events(server, &body).await;
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    assert_eq!(unnamed(&json!(told(&events))), unnamed(&whole["output"]), "{body}");
    let last = &events[events.len() - 1];
    assert_eq!(unnamed(&last["response"]), unnamed(&whole));
    let end = if whole["status"] == "completed" { "response.completed" } else { "response.incomplete" };
    assert_eq!(last["type"], end);
    whole
}

#[tokio::test]
async fn a_text_is_answered_as_a_chat_is() {
    let server = server().await;
    let chat = json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What now?"}],
        "max_tokens": 60, "seed": 4});
    let chat = server.post("/v1/chat/completions", &chat).await;
    for input in [
        json!("What now?"),
        json!([{"role": "user", "content": "What now?"}]),
        json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What now?"}]}]),
    ] {
        let got = respond(&server, json!({"input": input, "instructions": "Be brief."})).await;
        let [item] = &got["output"].as_array().unwrap()[..] else { panic!("{got}") };
        assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
        assert_eq!(item["content"][0]["text"], chat["choices"][0]["message"]["content"]);
        let cut = chat["choices"][0]["finish_reason"] == "length";
        assert_eq!(got["status"], if cut { "incomplete" } else { "completed" });
        assert_eq!(got["incomplete_details"], if cut { json!({"reason": "max_output_tokens"}) } else { Value::Null });
        let usage = &got["usage"];
        assert_eq!(usage["input_tokens"], chat["usage"]["prompt_tokens"]);
        assert_eq!(usage["output_tokens"], chat["usage"]["completion_tokens"]);
        assert_eq!(usage["total_tokens"], chat["usage"]["total_tokens"]);
        assert_eq!((&got["object"], &got["store"]), (&json!("response"), &json!(false)));
        assert_eq!(got["instructions"], "Be brief.");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn calls_are_items_and_their_results_go_back() {
    let server = server().await;
    let required = json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false,
        "max_output_tokens": 200});
    let got = respond(&server, required).await;
    let calls = got["output"].as_array().unwrap();
    assert!(!calls.is_empty());
    for call in calls {
        assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!("completed")), "{got}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(call["name"] == "weather", arguments["days"].is_u64(), "{call}");
        assert!(call["call_id"].as_str().unwrap().starts_with("call_"));
    }
    let named = json!({"tools": tools(), "tool_choice": {"type": "function", "name": "now"}, "max_output_tokens": 200});
    let named = respond(&server, named).await;
    assert_eq!((&named["output"][0]["name"], named["output"].as_array().unwrap().len()), (&json!("now"), 1));
    assert_eq!(named["tools"], tools());

    // The items of a response and the results of its calls give the same prompt as in a chat.
    let items = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "What now?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": "{\"days\":2,\"unit\":\"C\"}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "user", "content": "And?"},
    ]);
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What now?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.",
         "tool_calls": [call("call_1", "now", "{}"), call("call_2", "weather", "{\"days\":2,\"unit\":\"C\"}")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "tool", "tool_call_id": "call_2", "content": "rain"},
        {"role": "user", "content": "And?"},
    ]);
    let got = respond(&server, json!({"input": items})).await;
    let body = json!({"messages": messages, "max_tokens": 60, "seed": 4});
    let chat = server.post("/v1/chat/completions", &body).await;
    assert_eq!(got["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(got["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn texts_have_the_requested_form_and_reasoning_is_an_item() {
    let server = server().await;
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false});
    let text = json!({"format": {"type": "json_schema", "name": "it", "schema": schema, "strict": true}});
    let got = respond(&server, json!({"text": text, "max_output_tokens": 300})).await;
    let document: Value = serde_json::from_str(got["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!([json!({"a": 1}), json!({"a": 2})].contains(&document));
    assert_eq!((&got["status"], &got["text"]), (&json!("completed"), &text));

    let thinking =
        json!({"chat_template_kwargs": {"enable_thinking": true}, "reasoning": {"effort": "low", "summary": "auto"}});
    let got = respond(&server, thinking).await;
    let thought = &got["output"][0];
    assert_eq!((&thought["type"], &thought["content"][0]["type"]), (&json!("reasoning"), &json!("reasoning_text")));
    assert!(got["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    let hidden = json!({"chat_template_kwargs": {"enable_thinking": true}, "include_reasoning": false});
    assert_eq!(respond(&server, hidden).await["output"][0]["type"], "message");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn fields_without_effect_are_accepted_and_unsupported_ones_refused() {
    let server = server().await;
    let plain = unnamed(&server.post(PATH, &ask(json!({}))).await["output"]);
    for fields in [
        json!({"store": true, "metadata": {"run": "7"}, "user": "me", "service_tier": "auto"}),
        json!({"store": false, "include": ["reasoning.encrypted_content"], "truncation": "disabled"}),
        json!({"previous_response_id": null, "conversation": null, "prompt": null, "background": false}),
        json!({"text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": "high", "summary": null}}),
        json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": false, "max_tool_calls": 3}),
        json!({"top_logprobs": 0, "n": 1, "prompt_cache_key": "k", "safety_identifier": "s"}),
    ] {
        assert_eq!(unnamed(&server.post(PATH, &ask(fields.clone())).await["output"]), plain, "{fields}");
    }
    for (field, value) in [
        ("input", json!(7)),
        ("input[0].role", json!([{"role": "narrator", "content": "a"}])),
        (
            "input[1].content[0].type",
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        ),
        ("input[0].type", json!([{"type": "item_reference", "id": "msg_1"}])),
        ("input[0].type", json!([{"type": "web_search_call"}])),
        ("input[0].output", json!([{"type": "function_call_output", "call_id": "c"}])),
        ("input[0].name", json!([{"type": "function_call", "call_id": "c", "arguments": "{}"}])),
        ("input[0].content", json!([{"role": "user"}])),
        ("input", json!([])),
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!({"id": "conv_1"})),
        ("background", json!(true)),
        ("truncation", json!("auto")),
        ("prompt", json!({"id": "pmpt_1"})),
        ("include", json!(["message.output_text.logprobs"])),
        ("top_logprobs", json!(2)),
        ("n", json!(2)),
        ("tools[0].type", json!([{"type": "sing"}])),
        ("tools[0].name", json!([{"type": "function", "name": "a b"}])),
        ("text.format.schema", json!({"format": {"type": "json_schema", "name": "x"}})),
        ("text.format.schema", json!({"format": {"type": "json_schema", "name": "x", "schema": {"type": "thing"}}})),
        ("max_output_tokens", json!(0)),
        ("messages", json!([])),
    ] {
        let name = field.split(['[', '.']).next().unwrap();
        let error = server.refused(PATH, &ask(json!({name: value})), 400).await;
        assert_eq!(error["param"], field, "{field} {value}: {error}");
        let told = error["message"].as_str().unwrap();
        assert!(told.contains(name) || told.contains("messages"), "{error}");
    }
    assert_eq!(server.get("/v1/responses/resp_1").await.status(), 404, "the server stores no responses");
    server.stop().await.unwrap();
}
