//! Conversations as clients send them: with earlier answers, in parts, with function calls, and with fields that
//! control the prompt.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::io;
use std::sync::{Arc, Mutex};

use common::{PROMPT, TestServer};
use serde_json::{Value, json};
use server::ServeOptions;

const CHAT: &str = "/v1/chat/completions";
/// Renders all messages, calls and options that it receives.
const TEMPLATE: &str = "\
    {%- for m in messages -%}
    <{{ m.role }}{{ ' ' ~ m.name if m.name is defined }}>{{ m.content }}
    {%- for call in m.tool_calls %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor -%}
    {%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif -%}
    {%- if m.role == 'nobody' %}{{ raise_exception('nobody may not speak') }}{% endif -%}
    {%- if m.tool_call_id is defined %} for {{ m.tool_call_id }}{% endif -%}
    {{ '\n' }}
    {%- endfor -%}
    {%- if style is defined %}{{ style }}{% endif -%}
    {%- if reasoning_effort is defined %}effort {{ reasoning_effort }}{% endif -%}
    {%- if add_generation_prompt %}<assistant>{% endif -%}";

async fn server(template: &str) -> TestServer {
    TestServer::with_options(ServeOptions { chat_template: Some(template.into()), ..ServeOptions::default() }).await
}

/// Returns the prompt that a request produces.
async fn prompt(server: &TestServer, body: &Value) -> String {
    let tokens = server.post("/tokenize", body).await["tokens"].clone();
    let text = server.post("/detokenize", &json!({"tokens": tokens})).await;
    text["prompt"].as_str().unwrap().to_owned()
}

/// Returns the prompt of messages.
async fn prompt_of(server: &TestServer, messages: Value) -> String {
    prompt(server, &json!({"messages": messages})).await
}

#[tokio::test]
async fn answers_can_be_sent_back() {
    let server = server(TEMPLATE).await;
    let mut messages = json!([{"role": "user", "content": PROMPT}]);
    let ask = |messages: &Value| json!({"messages": messages, "max_tokens": 8, "temperature": 0});
    let first = server.post(CHAT, &ask(&messages)).await["choices"][0]["message"].clone();
    assert_eq!(first["refusal"], Value::Null);
    // As `messages.append(response.choices[0].message)` sends it, with fields that other libraries add.
    let mut dumped = first.clone();
    let more = json!({"annotations": [], "audio": null, "function_call": null, "tool_calls": null, "parsed": null,
        "reasoning_content": null, "provider_specific_fields": {"refusal": null}, "id": "x", "weight": 1.5});
    dumped.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let plain = json!({"role": "assistant", "content": first["content"]});
    let mut prompts = Vec::new();
    for answer in [plain, first, dumped] {
        let messages = json!([messages[0], answer, {"role": "user", "content": "And then?", "name": null}]);
        prompts.push(prompt_of(&server, messages.clone()).await);
        let second = server.post(CHAT, &ask(&messages)).await;
        assert_eq!(second["choices"][0]["finish_reason"], "length");
    }
    assert_eq!(prompts[0], prompts[1]);
    assert_eq!(prompts[0], prompts[2]);
    // A conversation of several turns.
    for turn in 0..4 {
        let answer = server.post(CHAT, &ask(&messages)).await["choices"][0]["message"].clone();
        let all = messages.as_array_mut().unwrap();
        all.push(answer);
        all.push(json!({"role": "user", "content": format!("turn {turn}")}));
    }
    server.assert_unharmed().await;
}

#[tokio::test]
async fn assistant_messages_without_content_may_have_calls() {
    let server = server(TEMPLATE).await;
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": \"é<\", \"a\": 1}"}});
    for content in [json!({"content": null}), json!({}), json!({"content": ""})] {
        let mut said = json!({"role": "assistant", "tool_calls": [call]});
        said.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        let result = json!({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]});
        let messages = json!([{"role": "user", "content": "go"}, said, result]);
        let want = "<user>go\n<assistant>[f {\"b\": \"é<\", \"a\": 1}]\n<tool>42 for c1\n<assistant>";
        assert_eq!(prompt_of(&server, messages.clone()).await, want);
        server.post(CHAT, &json!({"messages": messages, "max_tokens": 1})).await;
    }
    for silent in [json!({"role": "assistant"}), json!({"role": "assistant", "content": null, "tool_calls": []})] {
        let messages = json!([{"role": "user", "content": "go"}, silent, {"role": "user", "content": "on"}]);
        assert_eq!(prompt_of(&server, messages).await, "<user>go\n<assistant>\n<user>on\n<assistant>");
    }
    let thought = json!([{"role": "assistant", "content": "a", "reasoning": "hm"}]);
    assert_eq!(prompt_of(&server, thought).await, "<assistant>a(hm)\n<assistant>");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn parts_are_joined_or_given_as_the_template_reads_them() {
    let parts = json!([{"role": "user", "content": [
        {"type": "text", "text": "One", "cache_control": {"type": "ephemeral"}},
        {"type": "input_text", "text": "two", "annotations": []},
        "three",
    ]}]);
    let whole = server(TEMPLATE).await;
    assert_eq!(prompt_of(&whole, parts.clone()).await, "<user>One\ntwo\nthree\n<assistant>");
    whole.stop().await.unwrap();
    let listed =
        "{% for m in messages %}{% for part in m.content %}[{{ part.type }} {{ part.text }}]{% endfor %}{% endfor %}";
    let listed = server(listed).await;
    assert_eq!(prompt_of(&listed, parts).await, "[text One][text two][text three]");
    assert_eq!(prompt_of(&listed, json!([{"role": "user", "content": "One"}])).await, "[text One]");
    listed.stop().await.unwrap();
}

#[tokio::test]
async fn non_text_parts_are_refused_with_their_place() {
    let server = server(TEMPLATE).await;
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}});
    let sound = json!({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}});
    let text = json!({"type": "text", "text": "x"});
    for (message, place) in [
        (json!({"role": "user", "content": [text, image]}), "messages[1].content[1]"),
        (json!({"role": "user", "content": [sound]}), "messages[1].content[0]"),
        (json!({"role": "assistant", "content": null, "audio": {"id": "audio_1"}}), "messages[1].audio"),
        (json!({"role": "user", "content": null}), "messages[1].content"),
        (json!({"role": "user"}), "messages[1].content"),
        (json!({"role": "tool", "tool_call_id": "x"}), "messages[1].content"),
    ] {
        for path in [CHAT, "/tokenize"] {
            let body = json!({"messages": [{"role": "user", "content": "x"}, message]});
            let error = server.refused(path, &body, 400).await;
            assert_eq!(error["param"], place, "{error}");
            assert!(error["message"].as_str().unwrap().starts_with(place), "{error}");
        }
    }
    for message in [
        json!({"content": "x"}),
        json!({"role": 7, "content": "x"}),
        json!({"role": "user", "content": 7}),
        json!({"role": "user", "content": {"text": "x"}}),
        json!({"role": "user", "content": [{"text": "x"}]}),
        json!({"role": "user", "content": [{"type": "text"}]}),
        json!({"role": "user", "content": [7]}),
        json!({"role": "assistant", "tool_calls": ["f"]}),
        json!({"role": "assistant", "tool_calls": {}}),
    ] {
        let error = server.refused(CHAT, &json!({"messages": [message]}), 400).await;
        assert!(error["param"].as_str().unwrap().starts_with("messages"), "{message}: {error}");
    }
    server.assert_unharmed().await;
}

#[tokio::test]
async fn templates_that_cost_too_much_are_refused() {
    let template = "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let server = server(template).await;
    let error = server.refused(CHAT, &json!({"messages": [{"role": "user", "content": "x"}]}), 400).await;
    assert_eq!(error["param"], "messages");
    assert!(error["message"].as_str().unwrap().contains("reads and writes more than 64 MiB"), "{error}");
    server.assert_unharmed().await;
}

#[tokio::test]
async fn templates_refuse_in_their_own_words() {
    let server = server(TEMPLATE).await;
    let error = server.refused(CHAT, &json!({"messages": [{"role": "nobody", "content": "x"}]}), 400).await;
    assert_eq!(error["param"], "messages");
    assert!(error["message"].as_str().unwrap().ends_with("nobody may not speak"), "{error}");
    // The template decides which other roles exist.
    let others = json!([{"role": "developer", "content": "d", "name": "n"}, {"role": "critic"}]);
    assert_eq!(prompt_of(&server, others).await, "<developer n>d\n<critic>\n<assistant>");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn fields_control_the_prompts_end_and_the_templates_variables() {
    let server = server(TEMPLATE).await;
    let messages = json!([{"role": "user", "content": "go"}, {"role": "assistant", "content": " Once "}]);
    for (fields, want) in [
        (json!({}), "<user>go\n<assistant> Once \n<assistant>"),
        (
            json!({"add_generation_prompt": null, "continue_final_message": null, "chat_template_kwargs": null}),
            "<user>go\n<assistant> Once \n<assistant>",
        ),
        (json!({"add_generation_prompt": true}), "<user>go\n<assistant> Once \n<assistant>"),
        (json!({"add_generation_prompt": false}), "<user>go\n<assistant> Once \n"),
        (json!({"continue_final_message": true}), "<user>go\n<assistant> Once "),
        (json!({"continue_final_message": true, "add_generation_prompt": false}), "<user>go\n<assistant> Once "),
        (
            json!({"chat_template_kwargs": {"style": "plain", "unread": {"x": [1]}}}),
            "<user>go\n<assistant> Once \nplain<assistant>",
        ),
    ] {
        let mut body = json!({"messages": messages});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(prompt(&server, &body).await, want, "{fields}");
        body["max_tokens"] = 1.into();
        let answer = server.post(CHAT, &body).await;
        let tokens = server.post("/tokenize", &json!({"prompt": want, "add_special_tokens": false})).await;
        assert_eq!(answer["usage"]["prompt_tokens"], tokens["count"], "{fields}");
    }
    // Fields that only chats have.
    for (fields, want) in [
        (json!({"reasoning_effort": "high", "verbosity": "low"}), "effort high"),
        (json!({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "none"}}), "effort none"),
        (json!({"reasoning_effort": null, "verbosity": null, "documents": null, "chat_template": null}), ""),
        (json!({"documents": []}), ""),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let tokens = json!({"prompt": format!("<user>go\n{want}<assistant>"), "add_special_tokens": false});
        let tokens = server.post("/tokenize", &tokens).await;
        assert_eq!(server.post(CHAT, &body).await["usage"]["prompt_tokens"], tokens["count"], "{fields}");
    }
    for (fields, param) in [
        (json!({"continue_final_message": true, "add_generation_prompt": true}), "continue_final_message"),
        (json!({"chat_template": "{{ messages }}"}), "chat_template"),
        (json!({"documents": [{"text": "x"}]}), "documents"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"chat_template_kwargs": {"tools": []}}), "chat_template_kwargs.tools"),
        (json!({"chat_template_kwargs": []}), "chat_template_kwargs"),
        (json!({"add_generation_prompt": "yes"}), "add_generation_prompt"),
    ] {
        let mut body = json!({"messages": messages});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(server.refused(CHAT, &body, 400).await["param"], param, "{fields}");
    }
    let wordless = json!([{"role": "user", "content": "go"}, {"role": "assistant"}]);
    server.refused(CHAT, &json!({"messages": wordless, "continue_final_message": true}), 400).await;
    server.assert_unharmed().await;
}

#[tokio::test]
async fn documents_go_to_templates_that_read_them() {
    let server =
        server("{% for d in documents %}{{ d.title }}: {{ d | tojson }};{% endfor %}{{ messages[0].content }}").await;
    let body = json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 1,
        "documents": [{"title": "b", "a": 1}]});
    let want = json!({"prompt": "b: {\"title\": \"b\", \"a\": 1};go", "add_special_tokens": false});
    let want = server.post("/tokenize", &want).await["count"].clone();
    assert_eq!(server.post(CHAT, &body).await["usage"]["prompt_tokens"], want);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn templates_know_the_date() {
    let server = server("{{ strftime_now('%Y') }} {{ messages[0].content }}").await;
    let text = prompt_of(&server, json!([{"role": "user", "content": "x"}])).await;
    let year: u32 = text.strip_suffix(" x").unwrap().parse().unwrap();
    assert!((2024..9999).contains(&year), "{text}");
    server.stop().await.unwrap();
}

/// A log that tests can read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_failing_template_is_reported_when_it_is_loaded() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let read = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let good = server(TEMPLATE).await;
    good.stop().await.unwrap();
    assert!(!read().contains("chat template"), "{}", read());
    let failing = server("{{ messages[0].content | sparkle }}").await;
    let warning = read().lines().find(|line| line.contains("chat template")).unwrap().to_owned();
    assert!(warning.contains("WARN") && warning.contains("sparkle"), "{warning}");
    let error = failing.refused(CHAT, &json!({"messages": [{"role": "user", "content": "x"}]}), 400).await;
    assert!(error["message"].as_str().unwrap().contains("sparkle"), "{error}");
    failing.assert_unharmed().await;
}

/// The longest conversation allowed. It is rendered on a thread for blocking work.
#[tokio::test]
async fn long_conversations_are_rendered() {
    let server = server("{% for m in messages %}{{ loop.index0 if loop.index0 % 1000 == 0 }}{% endfor %}").await;
    let messages = vec![json!({"role": "user", "content": "x"}); 4096];
    assert_eq!(prompt_of(&server, json!(messages)).await, "01000200030004000");
    let more = vec![json!({"role": "user", "content": "x"}); 4097];
    assert_eq!(server.refused(CHAT, &json!({"messages": more}), 400).await["param"], "messages");
    server.stop().await.unwrap();
}
