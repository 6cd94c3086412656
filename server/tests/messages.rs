//! Anthropic's messages, whole and streamed: texts, thinking, tool calls and their results, and counts of tokens.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::TestServer;
use engine::tools::answer::ToolFormat;
use serde_json::{Value, json};
use server::ServeOptions;

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const CHAT: &str = "/v1/chat/completions";
const TEMPLATE: &str = "{% if tools %}tools:{% for t in tools %} {{ t.function.name }}{% endfor %}\n{% endif %}\
    {% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}{{ c.id }}</tool_call>{% endfor %}\
    {% if m.reasoning_content %}</think>{{ m.reasoning_content }}{% endif %}{% if m.is_error %}!{% endif %}\n{% endfor %}\
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
    let schema = json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer",
        "minimum": 1, "maximum": 9}}, "required": ["unit", "days"], "additionalProperties": false});
    json!([
        {"name": "weather", "description": "Tells it.", "input_schema": schema, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": false}}
    ])
}

fn ask(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "What now?"}], "max_tokens": 60, "seed": 4});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

async fn events(server: &TestServer, body: &Value) -> Vec<Value> {
    server.named_events(PATH, body).await
}

/// Returns the message that a stream's events add up to. Their order must be Anthropic's.
fn told(events: &[Value]) -> Value {
    let kind = |event: &Value| event["type"].as_str().unwrap().to_owned();
    assert_eq!((kind(&events[0]), kind(&events[1])), ("message_start".into(), "ping".into()));
    let mut message = events[0]["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let (mut open, mut input) = (None, String::new());
    let [.., last, stop] = events else { panic!("{events:?}") };
    for event in &events[2..events.len() - 2] {
        let blocks = message["content"].as_array_mut().unwrap();
        let at = event["index"].as_u64().unwrap() as usize;
        if kind(event) == "content_block_start" {
            assert_eq!((open.replace(at), at), (None, blocks.len()), "{event}");
            blocks.push(event["content_block"].clone());
            input.clear();
            continue;
        }
        assert_eq!(open, Some(at), "{event}");
        let block = &mut blocks[at];
        if kind(event) == "content_block_stop" {
            open = None;
            if block["type"] == "tool_use" {
                assert_eq!(block["input"], json!({}));
                block["input"] = serde_json::from_str(&input).unwrap_or_else(|_| json!({}));
            }
            continue;
        }
        let (name, field) = match event["delta"]["type"].as_str().unwrap() {
            "text_delta" => ("text", "text"),
            "thinking_delta" => ("thinking", "thinking"),
            "signature_delta" => ("thinking", "signature"),
            "input_json_delta" => {
                assert_eq!(block["type"], "tool_use");
                input += event["delta"]["partial_json"].as_str().unwrap();
                continue;
            }
            other => panic!("{other}"),
        };
        assert_eq!(block["type"], name, "{event}");
        block[field] = (block[field].as_str().unwrap().to_owned() + event["delta"][field].as_str().unwrap()).into();
    }
    assert_eq!((open, kind(last), kind(stop)), (None, "message_delta".into(), "message_stop".into()));
    // The first event tells as much about the prompt as the last.
    for field in ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"] {
        assert_eq!(message["usage"][field], last["usage"][field], "{events:?}");
    }
    message["usage"] = last["usage"].clone();
    message["stop_reason"] = last["delta"]["stop_reason"].clone();
    message["stop_sequence"] = last["delta"]["stop_sequence"].clone();
    message
}

/// Returns a message without its random ids, and without telling which part of its input was cached.
fn unnamed(message: &Value) -> Value {
    let mut message = message.clone();
    message["id"].take();
    message["content"].as_array_mut().unwrap().iter_mut().for_each(|block| drop(block["id"].take()));
    message["usage"] = json!([input(&message), message["usage"]["output_tokens"]]);
    message
}

/// Returns the tokens of a message's prompt, cached or not.
fn input(message: &Value) -> u64 {
    let usage = &message["usage"];
    assert_eq!(usage["cache_creation_input_tokens"], 0);
    usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
}

/// Returns the message that answers a request. The streamed message must be the same, and its count of tokens too.
async fn respond(server: &TestServer, fields: Value) -> Value {
    let body = ask(fields);
    let whole = server.post(PATH, &body).await;
    assert_eq!(unnamed(&told(&events(server, &body).await)), unnamed(&whole), "{body}");
    assert_eq!(server.post(COUNT, &body).await, json!({"input_tokens": input(&whole)}), "{body}");
    whole
}

#[tokio::test]
async fn a_text_is_answered_as_a_chat_is() {
    let server = server().await;
    let chat = json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What now?"}],
        "max_tokens": 60, "seed": 4});
    let chat = server.post(CHAT, &chat).await;
    for (system, content) in [
        (json!("Be brief."), json!("What now?")),
        (
            json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]),
            json!([{"type": "text", "text": "What now?", "citations": null}]),
        ),
        // A block about the bill is not for the model.
        (
            json!([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief."}]),
            json!("What now?"),
        ),
    ] {
        let messages = json!([{"role": "user", "content": content}]);
        let got = respond(&server, json!({"system": system, "messages": messages})).await;
        assert_eq!(got["content"], json!([{"type": "text", "text": chat["choices"][0]["message"]["content"]}]));
        let cut = chat["choices"][0]["finish_reason"] == "length";
        assert_eq!(got["stop_reason"], if cut { "max_tokens" } else { "end_turn" });
        assert_eq!(
            (input(&got), &got["stop_sequence"]),
            (chat["usage"]["prompt_tokens"].as_u64().unwrap(), &Value::Null)
        );
        assert_eq!(got["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
        assert_eq!(
            (&got["type"], &got["role"], &got["model"]),
            (&json!("message"), &json!("assistant"), &json!(common::MODEL))
        );
        assert!(got["id"].as_str().unwrap().starts_with("msg_"));
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn cached_tokens_are_counted_separately() {
    let server = server().await;
    let messages = json!([{"role": "user", "content": "One day a fox met a bear in the dark wood. ".repeat(6)}]);
    let body = ask(json!({"messages": messages, "max_tokens": 4}));
    let first = server.post(PATH, &body).await;
    assert_eq!(first["usage"]["cache_read_input_tokens"], 0);
    for again in [server.post(PATH, &body).await, told(&events(&server, &body).await)] {
        let cached = again["usage"]["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(cached, (input(&first) - 1) / 16 * 16, "all whole blocks, except that one token is computed");
        assert_eq!(input(&again), input(&first));
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn calls_are_blocks_and_their_results_go_back() {
    let server = server().await;
    for (choice, most) in [(json!({"type": "any", "disable_parallel_tool_use": true}), 1), (json!({"type": "any"}), 99)]
    {
        let got = respond(&server, json!({"tools": tools(), "tool_choice": choice, "max_tokens": 200})).await;
        let blocks = got["content"].as_array().unwrap();
        let calls: Vec<_> = blocks.iter().filter(|block| block["type"] == "tool_use").collect();
        assert!((1..=most).contains(&calls.len()), "{got}");
        let whole = calls.len() - usize::from(got["stop_reason"] == "max_tokens");
        for call in &calls[..whole] {
            assert_eq!(call["name"] == "weather", call["input"]["days"].is_u64(), "{call}");
            assert!(call["id"].as_str().unwrap().starts_with("toolu_"));
        }
        assert!(got["stop_reason"] == "tool_use" || most > 1, "{got}");
    }
    let named = json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "now"}, "max_tokens": 200});
    let named = respond(&server, named).await;
    let [call] = &named["content"].as_array().unwrap()[..] else { panic!("{named}") };
    assert_eq!((&call["name"], &call["input"], &named["stop_reason"]), (&json!("now"), &json!({}), &json!("tool_use")));
    let none = respond(&server, json!({"tools": tools(), "tool_choice": {"type": "none"}})).await;
    assert_eq!(none["content"], respond(&server, json!({})).await["content"]);

    // An optional call is limited too. The rest of the output is not part of the answer.
    let one = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let text = format!("Wait. {one}\n{one}\nDone.");
    for (disable, count) in [(true, 1), (false, 2)] {
        let choice = json!({"type": "auto", "disable_parallel_tool_use": disable});
        let fields =
            json!({"tools": tools(), "tool_choice": choice, "guided_choice": [text], "stop_sequences": ["Done"]});
        let mut fields = fields;
        fields["max_tokens"] = json!(200);
        let got = respond(&server, fields).await;
        let kinds: Vec<_> =
            got["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(kinds[..=count], ["text", "tool_use", "tool_use"][..=count], "{got}");
        assert_eq!(got["stop_reason"], if disable { "tool_use" } else { "stop_sequence" });
        assert!(kinds.len() == 2 || !disable, "{got}");
    }

    // The blocks of a message and the results of its calls give the same prompt as in a chat.
    let turns = json!([
        {"role": "user", "content": "What"},
        {"role": "user", "content": "now?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "any"}, {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}},
            {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"unit": "C", "days": 2}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true, "content": [{"type": "text", "text": "no"}]},
            {"type": "tool_result", "tool_use_id": "toolu_3"},
            {"type": "tool_result", "tool_use_id": "toolu_4", "is_error": true},
            {"type": "tool_result", "tool_use_id": "toolu_5", "is_error": true, "content": "Error: gone"},
            {"type": "tool_result", "tool_use_id": "toolu_6", "is_error": false, "content": "none"},
            {"type": "text", "text": "And?"},
        ]},
    ]);
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let messages = json!([
        {"role": "user", "content": "What\nnow?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.",
         "tool_calls": [call("toolu_1", "now", "{}"), call("toolu_2", "weather", "{\"unit\":\"C\",\"days\":2}")]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "noon"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no", "is_error": true},
        {"role": "tool", "tool_call_id": "toolu_3", "content": ""},
        {"role": "tool", "tool_call_id": "toolu_4", "content": "Error: ", "is_error": true},
        {"role": "tool", "tool_call_id": "toolu_5", "content": "Error: gone", "is_error": true},
        {"role": "tool", "tool_call_id": "toolu_6", "content": "none"},
        {"role": "user", "content": "And?"},
    ]);
    let got = respond(&server, json!({"messages": turns})).await;
    let chat = server.post(CHAT, &json!({"messages": messages, "max_tokens": 60, "seed": 4})).await;
    assert_eq!(input(&got), chat["usage"]["prompt_tokens"].as_u64().unwrap());
    assert_eq!(got["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn thinking_is_a_block_with_a_signature() {
    let server = server().await;
    for thinking in
        [json!({"type": "enabled", "budget_tokens": 1024}), json!({"type": "adaptive", "display": "summarized"})]
    {
        let got = respond(&server, json!({"thinking": thinking})).await;
        let block = &got["content"][0];
        assert_eq!(block["type"], "thinking", "{got}");
        assert!(!block["thinking"].as_str().unwrap().is_empty() && !block["signature"].as_str().unwrap().is_empty());
        let omitted = respond(&server, json!({"thinking": {"type": "adaptive", "display": "omitted"}})).await;
        assert_eq!(omitted["content"][0], json!({"type": "thinking", "thinking": "", "signature": block["signature"]}));
        // A message is valid input, with the thinking it began with.
        let turns = json!([{"role": "user", "content": "What now?"}, {"role": "assistant", "content": got["content"]},
            {"role": "user", "content": "And?"}]);
        assert!(input(&respond(&server, json!({"messages": turns})).await) > input(&got));
    }
    let disabled = respond(&server, json!({"thinking": {"type": "disabled"}})).await;
    assert_eq!(disabled["content"][0]["type"], "text");
    let own = json!({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(respond(&server, own).await["content"], disabled["content"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn messages_end_for_anthropics_reasons() {
    let server = TestServer::start().await;
    let story = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": common::PROMPT}], "temperature": 0});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let stopped = respond(&server, story(json!({"stop_sequences": ["zzz", " lived"], "max_tokens": 5}))).await;
    assert_eq!(stopped["content"], json!([{"type": "text", "text": ", there"}]));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(" lived")));
    let cut = respond(&server, story(json!({"max_tokens": 5}))).await;
    assert_eq!(
        (&cut["content"][0]["text"], &cut["stop_reason"]),
        (&json!(", there lived a young"), &json!("max_tokens"))
    );
    // The context limits an answer that may be longer, as clients that do not know the context ask.
    let full = respond(&server, story(json!({"max_tokens": 1_000_000, "ignore_eos": true}))).await;
    assert_eq!(full["stop_reason"], "model_context_window_exceeded");
    let ended = respond(&server, story(json!({"max_tokens": 500}))).await;
    assert_eq!(ended["stop_reason"], "end_turn");
    // A text at the end of the conversation is continued.
    let turns =
        |begun: &str| json!([{"role": "user", "content": common::PROMPT}, {"role": "assistant", "content": begun}]);
    let continued = respond(&server, story(json!({"messages": turns(", there lived"), "max_tokens": 2}))).await;
    assert_eq!(continued["content"][0]["text"], " a young");
    let whole = respond(&server, story(json!({"messages": turns(""), "max_tokens": 5}))).await;
    assert_eq!(whole["content"], cut["content"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn texts_have_the_requested_form() {
    let server = server().await;
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "schema": schema});
    for fields in [json!({"output_config": {"format": format, "effort": "low"}}), json!({"output_format": format})] {
        let mut fields = fields;
        fields["max_tokens"] = json!(300);
        let got = respond(&server, fields).await;
        let document: Value = serde_json::from_str(got["content"][0]["text"].as_str().unwrap()).unwrap();
        assert!([json!({"a": 1}), json!({"a": 2})].contains(&document));
    }
    server.stop().await.unwrap();
}
