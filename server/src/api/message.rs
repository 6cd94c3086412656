//! An assistant's message, whole or as a stream of changes.

use engine::tools::answer::{Part, ToolFormat};
use serde::Serialize;

use super::answer_form::AnswerForm;

/// An assistant's message.
#[derive(Debug, Serialize)]
pub struct AssistantMessage {
    role: &'static str,
    content: Option<String>,
    refusal: Option<&'static str>,
    #[serde(flatten)]
    thoughts: Thought,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

/// The model's reasoning, under both names that clients use.
#[derive(Debug, Default, Serialize)]
struct Thought {
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
}

/// A change to a message in a stream.
#[derive(Debug, Default, Serialize)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(flatten)]
    thoughts: Thought,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

/// A tool call, or the next part of one.
#[derive(Debug, Default, Serialize)]
struct Call {
    /// The index of the call in its message. Only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: Function,
}

#[derive(Debug, Default, Serialize)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// A message under construction.
#[derive(Clone, Debug)]
pub struct MessageBuilder {
    form: AnswerForm,
    calls: usize,
}

impl AssistantMessage {
    /// Returns the message in an output's text, and its finish reason. `reason` is the output's own.
    pub fn new(form: &AnswerForm, text: &str, reason: &'static str) -> (AssistantMessage, &'static str) {
        let mut telling = MessageBuilder::new(form);
        let (mut content, mut thoughts, mut calls) = (String::new(), String::new(), Vec::<Call>::new());
        for part in telling.parts(text, true) {
            match part {
                Part::Text(text) => content += &text,
                Part::Thought(text) => thoughts += &text,
                Part::Call(name) => calls.push(Call { index: None, ..telling.call(name) }),
                Part::Arguments(more) => {
                    calls.iter_mut().last().into_iter().for_each(|c| c.function.arguments += &more)
                }
            }
        }
        let content = (!content.is_empty() || calls.is_empty()).then_some(content);
        let thoughts = (!thoughts.is_empty()).then_some(thoughts).map(Thought::new).unwrap_or_default();
        let said = AssistantMessage { role: "assistant", content, refusal: None, thoughts, tool_calls: calls };
        (said, telling.reason(reason))
    }
}

/// Returns a new id for a tool call.
pub fn call_id(format: Option<ToolFormat>) -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    // Mistral's templates only accept ids of nine letters and digits.
    if format == Some(ToolFormat::Mistral) { id[..9].to_owned() } else { format!("call_{id}") }
}

impl Thought {
    fn new(text: String) -> Self {
        Thought { reasoning_content: Some(text.clone()), reasoning: Some(text) }
    }
}

impl Delta {
    /// Returns the first change, which begins a message.
    pub fn begin() -> Self {
        Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() }
    }
}

impl MessageBuilder {
    /// Creates an empty message.
    pub fn new(form: &AnswerForm) -> Self {
        MessageBuilder { form: form.clone(), calls: 0 }
    }

    /// Returns the changes that more text makes to the message.
    pub fn more(&mut self, text: &str, last: bool) -> Vec<Delta> {
        let parts = self.parts(text, last);
        let delta = |part| match part {
            Part::Text(text) => Delta { content: Some(text), ..Delta::default() },
            Part::Thought(text) => Delta { thoughts: Thought::new(text), ..Delta::default() },
            Part::Call(name) => Delta { tool_calls: vec![self.call(name)], ..Delta::default() },
            Part::Arguments(arguments) => {
                let index = self.calls.checked_sub(1);
                let call = Call { index, function: Function { name: None, arguments }, ..Call::default() };
                Delta { tool_calls: vec![call], ..Delta::default() }
            }
        };
        parts.into_iter().map(delta).collect()
    }

    /// Returns the message's finish reason. `reason` is the output's own.
    pub fn reason(&self, reason: &'static str) -> &'static str {
        let reason = if self.form.is_over() { "stop" } else { reason };
        if self.calls > 0 && reason == "stop" && !self.form.is_named { "tool_calls" } else { reason }
    }

    fn parts(&mut self, text: &str, last: bool) -> Vec<Part> {
        let mut parts = self.form.push(text);
        if last {
            parts.extend(self.form.finish());
        }
        parts
    }

    /// Returns the beginning of the next call.
    fn call(&mut self, name: String) -> Call {
        let index = Some(self.calls);
        self.calls += 1;
        Call {
            index,
            id: Some(call_id(self.form.format)),
            r#type: Some("function"),
            function: Function { name: Some(name), arguments: String::new() },
        }
    }
}
