//! What an assistant says, as a message or as changes to one.

use engine::answer::{AnswerReader, Part, ToolFormat};
use serde::Serialize;

/// An assistant's message.
#[derive(Debug, Serialize)]
pub struct Said {
    role: &'static str,
    content: Option<String>,
    refusal: Option<&'static str>,
    #[serde(flatten)]
    thoughts: Thought,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

/// What was thought, under the names that clients know.
#[derive(Debug, Default, Serialize)]
struct Thought {
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
}

/// What is added to a message.
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

/// A call of a tool, or more of one.
#[derive(Debug, Default, Serialize)]
struct Call {
    /// Which of the message's calls; in streams.
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

/// How outputs become messages: the same for all choices of a request.
#[derive(Clone, Debug)]
pub struct AnswerForm {
    /// Takes outputs apart; a clone for each.
    pub reader: AnswerReader,
    /// How the model writes calls, if tools can be called.
    pub format: Option<ToolFormat>,
    /// Whether the request names the tool that is called: a call then is a usual end.
    pub is_named: bool,
    /// Whether thoughts are part of the answer.
    pub shows_thoughts: bool,
}

/// A message on its way.
#[derive(Clone, Debug)]
pub struct Telling {
    form: AnswerForm,
    calls: usize,
}

impl Said {
    /// The message that an output's text is, and why it ended, if `reason` is why the output did.
    pub fn new(form: &AnswerForm, text: &str, reason: &'static str) -> (Said, &'static str) {
        let mut telling = Telling::new(form);
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
        let said = Said { role: "assistant", content, refusal: None, thoughts, tool_calls: calls };
        (said, telling.reason(reason))
    }
}

/// A new name of a call.
pub fn call_id(format: Option<ToolFormat>) -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    // Mistral's templates take ids of nine letters and digits alone.
    if format == Some(ToolFormat::Mistral) { id[..9].to_owned() } else { format!("call_{id}") }
}

impl Thought {
    fn new(text: String) -> Self {
        Thought { reasoning_content: Some(text.clone()), reasoning: Some(text) }
    }
}

impl Delta {
    /// The beginning of a message.
    pub fn begin() -> Self {
        Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() }
    }
}

impl Telling {
    /// Nothing is said yet.
    pub fn new(form: &AnswerForm) -> Self {
        Telling { form: form.clone(), calls: 0 }
    }

    /// What more text adds to the message, in one or several steps.
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

    /// Why the message ends, if `reason` is why the output does.
    pub fn reason(&self, reason: &'static str) -> &'static str {
        if self.calls > 0 && reason == "stop" && !self.form.is_named { "tool_calls" } else { reason }
    }

    fn parts(&mut self, text: &str, last: bool) -> Vec<Part> {
        let mut parts = self.form.reader.push(text);
        if last {
            parts.extend(self.form.reader.finish());
        }
        parts.retain(|part| self.form.shows_thoughts || !matches!(part, Part::Thought(_)));
        parts
    }

    /// The beginning of the next call.
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
