//! `quire chat` with entries piped to it.

use std::fs;

use serde_json::{Value, json};

use crate::support::{copy_of, fed, json, misused, model, stdout};

const MARKED: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}\
                      {% if add_generation_prompt %}<|assistant|>{% endif %}";

fn chat_model() -> tempfile::TempDir {
    let dir = copy_of("gpt2");
    fs::write(dir.path().join("chat_template.jinja"), MARKED).unwrap();
    dir
}

/// Returns the output of `quire chat`, and its notes.
fn chat(dir: &tempfile::TempDir, typed: &str, words: &[&str]) -> (String, String) {
    let output = fed(typed.as_bytes(), &[&["chat", model(dir), "--temperature=0", "-n8"], words].concat());
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{typed:?}: {notes}");
    (String::from_utf8(output.stdout).unwrap(), notes)
}

/// Returns the model's continuation of a text.
fn continued(dir: &tempfile::TempDir, text: &str) -> String {
    let lines = json(&[model(dir), "--raw", "--json", "--temperature=0", "-n8", "-p", text]);
    lines[0]["outputs"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn each_answer_depends_on_the_whole_conversation() {
    let dir = chat_model();
    let first = continued(&dir, "<|system|>Be brief.\n<|user|>Hi\n<|assistant|>");
    let history = format!("<|system|>Be brief.\n<|user|>Hi\n<|assistant|>{first}\n");
    let second = continued(&dir, &format!("{history}<|user|>One\nTwo\n<|assistant|>"));
    let after_reset = continued(&dir, "<|system|>Be brief.\n<|user|>Hi again\n<|assistant|>");
    let file = dir.path().join("messages.json");
    let typed = format!("Hi\n\nOne\\\nTwo\n/save {}\n/reset\nHi again", file.display());
    let (printed, notes) = chat(&dir, &typed, &["--system", "Be brief."]);
    assert_eq!(printed, format!("{first}\n{second}\n{after_reset}\n"));
    assert_eq!(notes.lines().filter(|line| line.starts_with('[')).count(), 3, "{notes}");
    let saved: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let want =
        [("system", "Be brief."), ("user", "Hi"), ("assistant", &first), ("user", "One\nTwo"), ("assistant", &second)];
    assert_eq!(saved, want.map(|(role, text)| message(role, text)).into_iter().collect::<Value>());
}

#[test]
fn earlier_messages_are_cached() {
    let dir = chat_model();
    let (_, notes) =
        chat(&dir, &format!("{}\nAnd?\n", "Once upon a time there was a fox. ".repeat(3)), &["--block-size=8"]);
    let cached = |line: &str| line.split("; ").nth(1).unwrap().split(' ').next().unwrap().parse::<usize>().unwrap();
    let cached: Vec<usize> = notes.lines().filter(|line| line.starts_with('[')).map(cached).collect();
    assert!(cached.len() == 2 && cached[0] == 0 && cached[1] >= 24, "{notes}");
}

/// Returns the tokens of each answer, and the cached tokens and all tokens of its prompt.
fn figures(notes: &str) -> Vec<(usize, usize, usize)> {
    let number = |text: &str| text.trim_start_matches('[').split(' ').next().unwrap().parse().unwrap();
    let lines = notes.lines().filter(|line| line.starts_with('['));
    let of = |line: &str| {
        assert!(line.len() < 80, "{line}");
        let cached = line.split("; ").nth(1).unwrap();
        (number(line), number(cached), number(cached.split("of ").nth(1).unwrap()))
    };
    lines.map(of).collect()
}

#[test]
fn earlier_turns_with_the_bundled_model_are_reused() {
    let typed = b"Once upon a time there was a fox who lived in a wood\nAnd then?\nWhat did the fox say?\n";
    let output = fed(typed, &["chat", "--temperature=0", "-n40", "--block-size=4"]);
    let notes = String::from_utf8(output.stderr).unwrap();
    let turns = figures(&notes);
    assert_eq!(turns.len(), 3, "{notes}");
    for pair in turns.windows(2) {
        let (tokens, _, prompt) = pair[0];
        // The last token of an answer is never computed, and only full blocks are cached.
        assert!(pair[1].1 >= (prompt + tokens - 1) / 4 * 4, "{notes}");
    }
}

#[test]
fn a_file_is_not_overwritten_without_a_question() {
    let dir = chat_model();
    let file = dir.path().join("mine.txt");
    fs::write(&file, "mine").unwrap();
    let (_, notes) = chat(&dir, &format!("/save {}\n", file.display()), &[]);
    assert!(notes.contains("exists") && fs::read_to_string(&file).unwrap() == "mine", "{notes}");
}

#[test]
fn quit_and_exit_end_the_program() {
    let dir = chat_model();
    for command in ["/quit", "/exit"] {
        let (printed, notes) = chat(&dir, &format!("{command}\nHi\n"), &[]);
        assert!(printed.is_empty() && !notes.contains("error"), "{printed} {notes}");
    }
}

#[test]
fn an_unanswerable_message_does_not_end_the_chat() {
    let dir = chat_model();
    let typed = format!("{}\n/nonsense\n/save /nowhere/at/all\n/help\nHi\n", "day ".repeat(500));
    let (printed, notes) = chat(&dir, &typed, &[]);
    assert!(printed.ends_with(&format!("{}\n", continued(&dir, "<|user|>Hi\n<|assistant|>"))), "{printed}");
    assert!(printed.contains("/reset") && notes.matches("error: ").count() == 3, "{notes}");
    assert!(
        notes.contains("192 positions") && notes.contains("/nonsense") && notes.contains("cannot write"),
        "{notes}"
    );
    misused(&["chat", model(&copy_of("gpt2"))], "has no chat template");
    assert!(stdout(&["chat", "--help"]).contains("--system"));
}
