//! Prompts as chat messages.

use std::fs;

use crate::support::{copy_of, fed, fixture, misused, model, quire, refused};

const MARKED: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}\
                      {% if add_generation_prompt %}<|assistant|>{% endif %}";
const NOTE: &str = "note: the prompt becomes a user's message in the model's chat template (--raw prevents this)\n";

/// Returns a copy of a model with this chat template.
fn with_template(template: &str) -> tempfile::TempDir {
    let dir = copy_of("gpt2");
    fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    dir
}

/// Returns the prompts that the model reads, and standard error.
fn prompts(dir: &tempfile::TempDir, words: &[&str]) -> (Vec<String>, String) {
    let output = quire(&[&["-m", model(dir), "--json", "-n2", "--temperature=0"], words].concat());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?}: {message}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    (lines.map(|line| line["prompt"].as_str().unwrap().to_owned()).collect(), message)
}

#[test]
fn a_chat_model_gets_messages() {
    let dir = with_template(MARKED);
    let asked = |text: &str| format!("<|user|>{text}\n<|assistant|>");
    assert_eq!(prompts(&dir, &["-p", "Hi"]), (vec![asked("Hi")], NOTE.into()));
    assert_eq!(prompts(&dir, &["-p", "Hi", "-p", "Ho"]), (vec![asked("Hi"), asked("Ho")], NOTE.into()));
    let piped = fed(b"Hi\n", &[model(&dir), "-n2", "--json", "--temperature=0"]);
    assert_eq!(String::from_utf8(piped.stderr).unwrap(), NOTE);
    // With --chat there is no note.
    assert_eq!(prompts(&dir, &["-p", "Hi", "--chat"]), (vec![asked("Hi")], String::new()));
    let told = "<|system|>Be brief.\n<|user|>Hi\n<|assistant|>";
    assert_eq!(prompts(&dir, &["-p", "Hi", "--system", "Be brief."]), (vec![told.into()], String::new()));
}

#[test]
fn other_prompts_are_continued_as_plain_text() {
    let (marked, joined) =
        (with_template(MARKED), with_template("{% for m in messages %}{{ m.content }}\n{% endfor %}"));
    let plain = copy_of("gpt2");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "Hi\n").unwrap();
    let unchanged = (vec!["Hi".to_owned()], String::new());
    assert_eq!(prompts(&marked, &["-p", "Hi", "--raw"]), unchanged);
    assert_eq!(prompts(&marked, &["--prompts", file.path().to_str().unwrap()]), unchanged);
    assert_eq!(prompts(&marked, &["-p", "Hi", "--beam-width=2"]), unchanged);
    assert_eq!(prompts(&marked, &["--prompt-ids=5,6"]).1, "");
    assert_eq!(prompts(&joined, &["-p", "Hi"]), unchanged);
    assert_eq!(prompts(&plain, &["-p", "Hi"]), unchanged);
    assert_eq!(prompts(&plain, &["-p", "Hi", "--raw"]), unchanged);
    // With --chat or --chat-template they become messages.
    let asked = (vec!["<|user|>Hi\n<|assistant|>".to_owned()], String::new());
    assert_eq!(prompts(&marked, &["--prompts", file.path().to_str().unwrap(), "--chat"]), asked);
    assert_eq!(prompts(&marked, &["-p", "Hi", "--beam-width=2", "--chat"]), asked);
    assert_eq!(prompts(&joined, &["-p", "Hi", "--chat"]), (vec!["Hi\n".into()], String::new()));
    fs::write(file.path(), MARKED).unwrap();
    assert_eq!(prompts(&plain, &["-p", "Hi", "--chat-template", file.path().to_str().unwrap()]), asked);
}

#[test]
fn an_answer_is_printed_without_its_question() {
    let dir = with_template(MARKED);
    let words = ["-m", model(&dir), "-p", "Hi", "-n4", "--temperature=0"];
    let text = |more: &[&str]| String::from_utf8(quire(&[&words[..], more].concat()).stdout).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text(&["--json"])).unwrap();
    let answer = json["outputs"][0]["text"].as_str().unwrap();
    assert!(!answer.is_empty());
    assert_eq!(text(&[]), format!("{answer}\n"));
    assert_eq!(text(&["-p", "Hi"]), format!("[1] {answer}\n[2] {answer}\n"));
}

#[test]
fn the_template_alone_writes_special_tokens() {
    let dir = copy_of("llama3");
    fs::write(
        dir.path().join("chat_template.jinja"),
        "{{ bos_token }}{{ messages[0].role }}: {{ messages[0].content }}",
    )
    .unwrap();
    let output = quire(&[model(&dir), "-p", "Hi", "--json", "-n1", "--temperature=0"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ids = json["prompt_token_ids"].as_array().unwrap();
    assert_eq!(ids.iter().filter(|id| **id == ids[0]).count(), 1, "{json}");
    assert_eq!(json["prompt"], "<|begin_of_text|>user: Hi");
}

#[test]
fn impossible_chats_are_refused_in_one_sentence() {
    let (marked, broken) = (with_template(MARKED), with_template("{% if %}"));
    let picky = with_template(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                               {% if messages[0].content == 'no' %}{{ raise_exception('say yes') }}{% endif %}",
    );
    let plain = fixture("gpt2");
    let plain = plain.to_str().unwrap();
    misused(&["-m", plain, "-p", "a", "--chat"], "give one with --chat-template");
    misused(&["-m", plain, "-p", "a", "--system", "b"], "no chat template");
    refused(&["-m", plain, "-p", "a", "--chat-template", "/nowhere"], "/nowhere");
    refused(&["-m", model(&broken), "-p", "a", "--chat", "--temperature=0"], "chat template is not valid");
    refused(&["-m", model(&picky), "-p", "no", "--chat", "--temperature=0"], "refuses the message: say yes");
    misused(&["-m", model(&marked), "-p", "a", "--chat", "--raw"], "--raw cannot be combined with --chat");
    misused(&["-m", model(&marked), "--prompt-ids=5", "--chat"], "--prompt-ids cannot be combined with --chat");
    // An unusable template is only a note if no option asks for chat.
    let (prompt, note) = prompts(&broken, &["-p", "Hi"]);
    assert_eq!(prompt, ["Hi"]);
    assert!(
        note.starts_with("note: the prompt is continued as plain text, because the chat template cannot be used: "),
        "{note}"
    );
}
