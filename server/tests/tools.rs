//! Tool calls and reasoning in chats, whole and streamed, in every format.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::TestServer;
use engine::tools::answer::ToolFormat;
use serde_json::{Value, json};
use server::ServeOptions;

const CHAT: &str = "/v1/chat/completions";
/// A template with every feature of tool templates. It is short, because the bundled model has few positions.
const TEMPLATE: &str = "{% if tools %}tools:{% for t in tools %} {{ t.function.name }}{% endfor %}\n{% endif %}\
    {% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}{{ c.id }}</tool_call>{% endfor %}\
    {% if m.reasoning_content %}</think>{{ m.reasoning_content }}{% endif %}\n{% endfor %}\
    {% if add_generation_prompt %}assistant:{% if enable_thinking %}<think>{% endif %}{% endif %}";

async fn server(format: Option<ToolFormat>) -> TestServer {
    let chat_template = Some(TEMPLATE.to_owned());
    TestServer::with_options(ServeOptions { chat_template, tool_call_parser: format, ..ServeOptions::default() }).await
}

/// Returns two tools with short arguments.
fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer",
        "minimum": 1, "maximum": 9}}, "required": ["unit", "days"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": parameters}},
        {"type": "function", "function": {"name": "now"}}
    ])
}

fn ask(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "What now?"}], "max_tokens": 200, "seed": 4});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Returns the messages that a stream's events add up to and their finish reasons, without the ids of calls.
fn told(events: &[Value], choices: usize) -> Vec<(Value, Value)> {
    let mut all = vec![(json!({"content": "", "thoughts": "", "calls": []}), Value::Null); choices];
    let add = |to: &mut Value, more: &Value| {
        if let Some(more) = more.as_str() {
            *to = (to.as_str().unwrap().to_owned() + more).into();
        }
    };
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let (said, reason) = &mut all[choice["index"].as_u64().unwrap() as usize];
        assert_eq!(*reason, Value::Null, "{choice} comes after the end");
        let delta = &choice["delta"];
        add(&mut said["content"], &delta["content"]);
        add(&mut said["thoughts"], &delta["reasoning_content"]);
        assert_eq!(delta["reasoning_content"], delta["reasoning"]);
        for call in delta["tool_calls"].as_array().unwrap_or(&Vec::new()) {
            let calls = said["calls"].as_array_mut().unwrap();
            if call["id"].is_string() {
                assert_eq!((&call["index"], &call["type"]), (&json!(calls.len()), &json!("function")), "{call}");
                calls.push(json!({"name": call["function"]["name"], "arguments": ""}));
            }
            let at = call["index"].as_u64().unwrap() as usize;
            add(&mut calls[at]["arguments"], &call["function"]["arguments"]);
        }
        *reason = choice["finish_reason"].clone();
    }
    all
}

/// Returns the same for a whole answer.
fn said(answer: &Value) -> Vec<(Value, Value)> {
    let choices = answer["choices"].as_array().unwrap();
    let one = |choice: &Value| {
        let message = &choice["message"];
        assert_eq!(message["reasoning_content"], message["reasoning"]);
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        assert!(calls.iter().all(|call| call["type"] == "function" && call["id"].is_string()), "{message}");
        let calls: Value = calls.iter().map(|call| call["function"].clone()).collect();
        let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
        let said = json!({"content": text("content"), "thoughts": text("reasoning_content"), "calls": calls});
        (said, choice["finish_reason"].clone())
    };
    choices.iter().map(one).collect()
}

/// Returns the messages of an answer. The streamed answer must be the same.
async fn both(server: &TestServer, body: &Value) -> Vec<(Value, Value)> {
    let whole = said(&server.post(CHAT, body).await);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    assert_eq!(told(&server.stream(CHAT, &streamed).await, whole.len()), whole, "{body}");
    whole
}

fn assert_call(call: &Value) {
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    match call["name"].as_str().unwrap() {
        "weather" => {
            assert!(["C", "F"].contains(&arguments["unit"].as_str().unwrap()), "{call}");
            assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{call}");
        }
        name => assert_eq!((name, arguments), ("now", json!({}))),
    }
}

#[tokio::test]
async fn required_calls_can_be_parsed() {
    for format in ToolFormat::ALL {
        let server = server(Some(format)).await;
        let required = json!({"tools": tools(), "tool_choice": "required", "n": 3, "temperature": 1});
        for parallel in [true, false] {
            let mut body = ask(required.clone());
            body["parallel_tool_calls"] = parallel.into();
            for (message, reason) in both(&server, &body).await {
                let calls = message["calls"].as_array().unwrap();
                // Parallel calls may continue until the context is full.
                assert!(reason == "tool_calls" || (parallel && reason == "length"), "{format}: {message} {reason}");
                assert!(!calls.is_empty() && (parallel || calls.len() == 1), "{format}: {message}");
                let whole = calls.len() - usize::from(reason == "length");
                calls[..whole].iter().for_each(assert_call);
                // If a call is cut before its name, its beginning is plain text.
                assert!(message["content"] == "" || reason == "length", "{format}: {message}");
            }
        }
        let named = json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "now"}}});
        let [(message, reason)] = &both(&server, &ask(named)).await[..] else { panic!("one choice") };
        assert_eq!((message["calls"].as_array().unwrap().len(), reason), (1, &json!("stop")));
        assert_eq!(message["calls"][0]["name"], "now");
        assert_call(&message["calls"][0]);
        server.assert_unharmed().await;
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn optional_calls_are_found_in_the_text() {
    let server = server(None).await;
    let text = "Wait. <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"unit\": \"C\"}}\n</tool_call>";
    let body = ask(json!({"tools": tools(), "guided_choice": [text]}));
    let [(message, reason)] = &both(&server, &body).await[..] else { panic!("one choice") };
    let call = json!([{"name": "weather", "arguments": "{\"unit\": \"C\"}"}]);
    assert_eq!((&message["content"], &message["calls"], reason), (&json!("Wait."), &call, &json!("tool_calls")));
    // Without tools, or if they may not be called, the call is plain text.
    for fields in [json!({}), json!({"tools": tools(), "tool_choice": "none"})] {
        let mut fields = fields;
        fields["guided_choice"] = json!([text]);
        let [(message, reason)] = &both(&server, &ask(fields)).await[..] else { panic!("one choice") };
        assert_eq!((&message["content"], &message["calls"], reason), (&json!(text), &json!([]), &json!("stop")));
    }
    let length = |fields| async { server.post(CHAT, &ask(fields)).await["usage"]["prompt_tokens"].as_u64().unwrap() };
    let none = length(json!({"max_tokens": 1})).await;
    assert_eq!(length(json!({"max_tokens": 1, "tools": tools(), "tool_choice": "none"})).await, none);
    assert!(length(json!({"max_tokens": 1, "tools": tools()})).await > none, "the template is told of tools");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn optional_calls_are_limited_to_one() {
    let server = server(None).await;
    let one = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let text = format!("Wait. {one}\n{one}");
    for (parallel, count) in [(json!(true), 2), (json!(null), 2), (json!(false), 1)] {
        let fields = json!({"tools": tools(), "guided_choice": [text], "parallel_tool_calls": parallel, "n": 2});
        for (message, reason) in both(&server, &ask(fields)).await {
            assert_eq!(
                (message["calls"].as_array().unwrap().len(), &reason),
                (count, &json!("tool_calls")),
                "{message}"
            );
            assert_eq!(message["content"], "Wait.");
        }
        let response = json!({"input": "What now?", "max_output_tokens": 200, "guided_choice": [text],
            "tools": [{"type": "function", "name": "now"}], "parallel_tool_calls": parallel});
        let response = server.post("/v1/responses", &response).await;
        let items = response["output"].as_array().unwrap();
        let calls = items.iter().filter(|item| item["type"] == "function_call");
        assert_eq!((calls.count(), &response["status"]), (count, &json!("completed")), "{response}");
    }
    // The answer is complete even if the output is cut within its second call.
    let text = json!({"tools": tools(), "guided_choice": [text], "parallel_tool_calls": false});
    let whole = server.post(CHAT, &ask(text.clone())).await["usage"]["completion_tokens"].as_u64().unwrap();
    let mut cut = text;
    cut["max_tokens"] = json!(whole - 6);
    let [(message, reason)] = &both(&server, &ask(cut)).await[..] else { panic!("one choice") };
    assert_eq!((message["calls"].as_array().unwrap().len(), reason), (1, &json!("tool_calls")), "{message}");
    server.stop().await.unwrap();
}

/// With tools and a format, an answer is a call or a text in the format.
#[tokio::test]
async fn a_format_leaves_room_for_calls() {
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": true}});
    let chat = json!({"tools": tools(), "response_format": format, "parallel_tool_calls": false});
    let tool = json!({"name": "now", "input_schema": {"type": "object", "additionalProperties": false}});
    let message = json!({"tools": [tool], "output_config": {"format": {"type": "json_schema", "schema": schema}}});
    for kind in ToolFormat::ALL {
        let server = server(Some(kind)).await;
        if kind == ToolFormat::Llama {
            // A call in this format could be such a text.
            let error = server.refused(CHAT, &ask(chat.clone()), 400).await;
            assert_eq!(error["param"], "response_format.json_schema.schema", "{error}");
            server.stop().await.unwrap();
            continue;
        }
        let brace = server.post("/tokenize", &json!({"prompt": "{", "add_special_tokens": false})).await;
        let brace = brace["tokens"].as_array().unwrap().last().unwrap().to_string();
        // A bias makes the model begin with a document or with something else.
        for (bias, is_call) in [(100, false), (-100, true)] {
            let ask = |fields: &Value| {
                let mut body = ask(fields.clone());
                body["logit_bias"] = json!({&brace: bias});
                body
            };
            let [(answer, reason)] = &both(&server, &ask(&chat)).await[..] else { panic!("one choice") };
            let calls = answer["calls"].as_array().unwrap();
            assert_eq!((calls.len(), reason == "tool_calls"), (usize::from(is_call), is_call), "{kind}: {answer}");
            calls.iter().for_each(assert_call);
            if !is_call {
                let document: Value = serde_json::from_str(answer["content"].as_str().unwrap()).unwrap();
                assert!([json!({"a": 1}), json!({"a": 2})].contains(&document), "{kind}: {answer}");
            }
            let answer = server.post("/v1/messages", &ask(&message)).await;
            let called = answer["content"].as_array().unwrap().iter().any(|block| block["type"] == "tool_use");
            assert_eq!(called, is_call, "{kind}: {answer}");
        }
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_required_call_leaves_no_text_for_a_format() {
    let server = server(None).await;
    let format =
        |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": true}});
    let required = |field: &str, value: Value| {
        let mut body = ask(json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false}));
        body[field] = value;
        body
    };
    let [(message, _)] = &both(&server, &required("response_format", format(json!({"type": "object"})))).await[..]
    else {
        panic!("one choice")
    };
    message["calls"].as_array().unwrap().iter().for_each(assert_call);
    for (field, value, param) in [
        ("response_format", format(json!({"type": "nothing"})), "response_format.json_schema.schema"),
        ("guided_choice", json!(["a"]), "guided_choice"),
        ("structured_outputs", json!({"regex": "a"}), "structured_outputs.regex"),
    ] {
        let error = server.refused(CHAT, &required(field, value), 400).await;
        assert_eq!(error["param"], param, "{error}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn an_answer_with_calls_can_be_sent_back() {
    let server = server(None).await;
    let body = ask(json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false}));
    let message = server.post(CHAT, &body).await["choices"][0]["message"].clone();
    let call = &message["tool_calls"][0];
    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"});
    let messages = json!([{"role": "user", "content": "What now?"}, message, result]);
    let tokens = server.post("/tokenize", &json!({"messages": messages})).await["tokens"].clone();
    let text = server.post("/detokenize", &json!({"tokens": tokens})).await["prompt"].clone();
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    for part in ["21 degrees", call["function"]["name"].as_str().unwrap(), call["id"].as_str().unwrap()] {
        assert!(text.as_str().unwrap().contains(part), "{text}");
    }
    for (name, value) in arguments.as_object().unwrap() {
        assert!(text.as_str().unwrap().contains(&format!("\"{name}\": {value}")), "{text}");
    }
    let next = ask(json!({"tools": tools(), "messages": messages, "max_tokens": 5}));
    assert_eq!(server.post(CHAT, &next).await["choices"][0]["message"]["role"], "assistant");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn reasoning_is_separated_from_the_answer() {
    let server = server(None).await;
    let text = "<think>\nHm.\n\nHm!\n</think>\n\nYes.";
    let body = |fields: Value| ask(fields);
    for (choice, kwargs, thoughts, content) in [
        (text, json!({}), "Hm.\n\nHm!", "Yes."),
        ("Hm.\n</think>\nYes.", json!({"enable_thinking": true}), "Hm.", "Yes."),
        ("Hm. Yes.", json!({"enable_thinking": true}), "Hm. Yes.", ""),
        ("Yes.", json!({"enable_thinking": false}), "", "Yes."),
    ] {
        let asked = body(json!({"guided_choice": [choice], "chat_template_kwargs": kwargs}));
        let [(message, _)] = &both(&server, &asked).await[..] else { panic!("one choice") };
        assert_eq!((&message["thoughts"], &message["content"]), (&json!(thoughts), &json!(content)), "{choice}");
    }
    let hidden = body(json!({"guided_choice": [text], "include_reasoning": false}));
    let [(message, _)] = &both(&server, &hidden).await[..] else { panic!("one choice") };
    assert_eq!((&message["thoughts"], &message["content"]), (&json!(""), &json!("Yes.")));
    server.stop().await.unwrap();
}

/// Codex sends such tools in addition to its functions.
#[tokio::test]
async fn tools_that_a_model_cannot_be_offered_are_left_out() {
    let server = server(None).await;
    let function = &tools()[1];
    let namespace = json!({"type": "namespace", "name": "agents", "description": "Others.", "tools": [function]});
    let elsewhere =
        [namespace, json!({"type": "web_search", "external_web_access": false}), json!({"type": "web_search_preview"})];
    let body = ask(json!({"tools": [function], "max_tokens": 5}));
    let want = said(&server.post(CHAT, &body).await);
    for tool in &elsewhere {
        let mut more = body.clone();
        more["tools"] = json!([tool, function]);
        assert_eq!(said(&server.post(CHAT, &more).await), want, "{tool}");
        let error = server.refused(CHAT, &ask(json!({"tools": [tool], "tool_choice": tool})), 400).await;
        let named = tool.get("name").unwrap_or(&tool["type"]).as_str().unwrap();
        assert!(error["param"] == "tool_choice" && error["message"].as_str().unwrap().contains(named), "{error}");
    }
    let none = said(&server.post(CHAT, &ask(json!({"max_tokens": 5}))).await);
    assert_eq!(said(&server.post(CHAT, &ask(json!({"max_tokens": 5, "tools": elsewhere}))).await), none);
    let now = json!({"type": "function", "name": "now"});
    let response = |tools: Value| json!({"input": "What now?", "max_output_tokens": 5, "seed": 4, "tools": tools});
    let want = server.post("/v1/responses", &response(json!([now]))).await["output"][0]["content"].clone();
    let mut all = elsewhere.to_vec();
    all.push(now);
    assert_eq!(server.post("/v1/responses", &response(json!(all))).await["output"][0]["content"], want);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn errors_in_tools_name_the_field() {
    let server = server(None).await;
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    let many: Value = (0..200).map(|i| json!({"type": "function", "function": {"name": format!("f{i}")}})).collect();
    for (fields, param) in [
        (json!({"tools": [{"type": "web_serach"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}), "tool_choice"),
        (
            json!({"tools": [{"type": "custom", "name": "sh"}], "tool_choice": {"type": "custom", "name": "sh"}}),
            "tool_choice",
        ),
        (json!({"tools": function(json!({"name": "a b"}))}), "tools[0].function.name"),
        (json!({"tools": function(json!({}))}), "tools[0].function.name"),
        (json!({"tools": function(json!({"name": "f", "parameters": "x"}))}), "tools[0].function.parameters"),
        (json!({"tools": [tools()[1], tools()[1]]}), "tools"),
        (json!({"tools": many}), "tools"),
        (json!({"tools": tools(), "tool_choice": "perhaps"}), "tool_choice"),
        (json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "other"}}}), "tool_choice"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"tools": function(json!({"name": "f", "parameters": {"type": "nothing"}})), "tool_choice": "required"}),
            "tools",
        ),
    ] {
        let error = server.refused(CHAT, &ask(fields), 400).await;
        assert_eq!(error["param"], param, "{error}");
    }
    server.stop().await.unwrap();
    let plain = TestServer::start().await;
    let error = plain.refused(CHAT, &ask(json!({"tools": tools()})), 400).await;
    assert!(error["message"].as_str().unwrap().contains("chat template does not support tools"), "{error}");
    plain.stop().await.unwrap();
}
