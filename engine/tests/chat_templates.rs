//! Prompts equal the results of Hugging Face's `apply_chat_template`, byte for byte. The templates cover the style of
//! every model family. The conversations have tools, content parts, reasoning and unusual characters.
//! `tests/tools/chat_templates.py` wrote the expected results.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::collections::HashMap;
use std::path::PathBuf;

use engine::ModelFiles;
use engine::tools::chat::{Arguments, ChatTemplate, Message, RenderOptions, Time, Value};
use serde::Deserialize;

#[derive(Deserialize)]
struct Given {
    tools: Value,
    documents: Value,
    conversations: HashMap<String, Vec<Message>>,
    renderings: Vec<Rendering>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rendering {
    #[serde(rename = "conversations")]
    _conversations: Vec<String>,
    tools: bool,
    documents: bool,
    add_generation_prompt: bool,
    continue_final_message: bool,
    arguments: Arguments,
}

#[derive(Deserialize)]
struct Expected {
    rendered: Vec<Rendered>,
    expressions: Vec<Expression>,
}

#[derive(Deserialize)]
struct Rendered {
    template: String,
    conversation: String,
    rendering: usize,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Deserialize)]
struct Expression {
    source: String,
    #[serde(flatten)]
    outcome: Outcome,
}

/// A text, or an error. `error` is set if the template raised the error itself.
#[derive(Deserialize)]
struct Outcome {
    text: Option<String>,
    error: Option<String>,
}

impl Default for Rendering {
    fn default() -> Self {
        Rendering {
            _conversations: Vec::new(),
            tools: false,
            documents: false,
            add_generation_prompt: true,
            continue_final_message: false,
            arguments: Arguments::default(),
        }
    }
}

fn file(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/chat").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn given() -> (Given, Expected) {
    (serde_json::from_str(&file("conversations.json")).unwrap(), serde_json::from_str(&file("expected.json")).unwrap())
}

/// A model directory with these special tokens, for loading templates.
struct Model(tempfile::TempDir);

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tokens = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}"#;
        std::fs::write(folder.path().join("tokenizer_config.json"), tokens).unwrap();
        std::fs::write(folder.path().join("special_tokens_map.json"), r#"{"bos_token": "no", "pad_token": "<pad>"}"#)
            .unwrap();
        Model(folder)
    }

    fn template(&self, source: &str) -> engine::Result<ChatTemplate> {
        let files = ModelFiles::directory(self.0.path()).unwrap();
        ChatTemplate::of_model(&files, Some(source)).map(Option::unwrap)
    }
}

fn now() -> Time {
    "2024-07-05T14:03:09.123456".parse().unwrap()
}

/// Describes the difference to the expected outcome, if there is one.
fn difference(got: Result<String, String>, expected: &Outcome) -> Option<String> {
    match (&got, expected) {
        (Ok(got), Outcome { text: Some(text), .. }) if got == text => None,
        (Err(_), Outcome { text: None, error: None }) => None,
        (Err(got), Outcome { text: None, error: Some(error) }) if got == error => None,
        (got, Outcome { text, error }) => Some(format!("expected {text:?} {error:?}\n     got {got:?}")),
    }
}

#[test]
fn prompts_match_apply_chat_template() {
    let (given, expected) = given();
    let model = Model::new();
    let mut templates = HashMap::new();
    let mut wrong = Vec::new();
    for case in &expected.rendered {
        let template = templates.entry(&case.template).or_insert_with(|| {
            let source = file(&format!("templates/{}.jinja", case.template));
            model.template(&source).unwrap()
        });
        let rendering = &given.renderings[case.rendering];
        let options = RenderOptions {
            add_generation_prompt: rendering.add_generation_prompt,
            continue_final_message: rendering.continue_final_message,
            tools: rendering.tools.then(|| given.tools.clone()),
            documents: rendering.documents.then(|| given.documents.clone()),
            arguments: rendering.arguments.clone(),
            now: Some(now()),
        };
        let got = template.render(&given.conversations[&case.conversation], &options);
        if let Some(what) = difference(got.map_err(|error| error.to_string()), &case.outcome) {
            wrong.push(format!("{} of {} ({}):\n{what}", case.template, case.conversation, case.rendering));
        }
    }
    assert!(templates.len() >= 20 && expected.rendered.len() > 500);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), expected.rendered.len(), wrong.join("\n"));
}

#[test]
fn expressions_evaluate_as_in_python() {
    let (given, expected) = given();
    let model = Model::new();
    let mut arguments = Arguments::default();
    let tool = |i| given.tools.get_item_by_index(i).unwrap();
    let terms = ["function", "parameters", "properties", "terms"];
    arguments.push("tool", tool(0));
    arguments.push("schema", terms.iter().fold(tool(1), |value, name| value.get_attr(name).unwrap()));
    let options = RenderOptions { arguments, now: Some(now()), ..RenderOptions::default() };
    let mut wrong = Vec::new();
    for case in &expected.expressions {
        let template = model.template(&case.source).map_err(|error| error.to_string());
        let render = |t: ChatTemplate| t.render(&given.conversations["turns"], &options).map_err(|e| e.to_string());
        if let Some(what) = difference(template.and_then(render), &case.outcome) {
            wrong.push(format!("{}\n{what}", case.source));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), expected.expressions.len(), wrong.join("\n"));
}
