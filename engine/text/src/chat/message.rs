//! A message of a conversation, as clients send it and as templates read it.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::forms::{ArgumentsForm, EmptyContent, Forms};
use super::{json, python};

/// Names of the fields that servers use for an assistant's reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A message of a conversation: its role, its content, and all other fields that a template may read. Null fields are
/// omitted, as in `apply_chat_template`.
#[derive(Clone, Debug)]
pub struct Message {
    pub(super) role: String,
    pub(super) content: Option<Content>,
    /// Function calls in OpenAI's format. Their arguments may be JSON in a string.
    pub(super) tool_calls: Vec<Value>,
    pub(super) others: Vec<(String, Value)>,
    /// The reason if the message is not supported.
    pub(super) problem: Option<MessageProblem>,
}

/// A reason why a message is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageProblem {
    /// Path of the unsupported field in the message, such as `content[2]`.
    pub place: String,
    /// The reason, for the user.
    pub what: String,
}

/// A message's content: one text, or a list of text parts.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<String>),
}

impl Message {
    /// Creates a message with a text content.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        let content = Some(Content::Text(text.into()));
        Message { role: role.into(), content, tool_calls: Vec::new(), others: Vec::new(), problem: None }
    }

    /// The role, such as "user" or "assistant".
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Returns the reason if the message is not supported: a content that is not text, or a missing content.
    pub fn problem(&self) -> Option<MessageProblem> {
        let must_speak = ["system", "developer", "user", "tool", "function"].contains(&self.role.as_str());
        let missing_content = || {
            let what = format!("a message with the role {:?} must have a content", self.role);
            (must_speak && self.content.is_none()).then_some(MessageProblem { place: "content".into(), what })
        };
        self.problem.clone().or_else(missing_content)
    }

    /// Returns the last text of the content for appending. Joins the parts first if a template with these forms reads
    /// one text.
    pub(super) fn last_text(&mut self, forms: &Forms) -> Option<&mut String> {
        if let Some(Content::Parts(parts)) = &self.content
            && !forms.roles_in_parts.contains(&self.role)
        {
            self.content = Some(Content::Text(joined(parts)));
        }
        match self.content.as_mut()? {
            Content::Text(text) => Some(text),
            Content::Parts(parts) => parts.last_mut(),
        }
    }

    /// Returns the value that a template with these forms reads.
    pub(super) fn value(&self, forms: &Forms) -> Value {
        let has = |roles: &[String]| roles.contains(&self.role);
        let text = |text: &str| match has(&forms.roles_only_in_parts) {
            true => parts_value([text]),
            false => text.into(),
        };
        let content = match &self.content {
            Some(Content::Text(said)) => Some(text(said)),
            Some(Content::Parts(parts)) if has(&forms.roles_in_parts) => Some(parts_value(parts)),
            Some(Content::Parts(parts)) => Some(joined(parts).into()),
            None if !self.tool_calls.is_empty() => match forms.empty_content {
                EmptyContent::Absent => None,
                EmptyContent::Null => Some(().into()),
                EmptyContent::Empty => Some(text("")),
            },
            None if self.role == "assistant" => Some(text("")),
            None => None,
        };
        let reasoning = |name: &&str| self.others.iter().find(|(other, _)| other == name).map(|(_, value)| value);
        let reasoning = REASONING.iter().find_map(reasoning).cloned();
        let calls = self.tool_calls.iter().map(|call| with_arguments(call, forms.arguments));
        let calls = (!self.tool_calls.is_empty()).then(|| calls.collect());
        let others = self.others.iter().map(|(name, value)| (name.as_str(), Some(value.clone())));
        let role = Some(Value::from(self.role.as_str()));
        // If fields have the same name, the last one's value counts, at the first one's position.
        [("thinking", reasoning.clone()), ("role", role), ("content", content), ("tool_calls", calls)]
            .into_iter()
            .chain(others)
            .chain([("reasoning_content", reasoning)])
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// Joins parts into one text, as vLLM does.
fn joined(parts: &[String]) -> String {
    parts.join("\n")
}

fn parts_value(parts: impl IntoIterator<Item = impl AsRef<str>>) -> Value {
    parts.into_iter().map(|text| Value::from_iter([("type", "text"), ("text", text.as_ref())])).collect()
}

/// Returns a call with its arguments in the given form. A text that is not JSON becomes an empty object.
fn with_arguments(call: &Value, form: ArgumentsForm) -> Value {
    replaced(call, "function", |function| {
        replaced(function, "arguments", |arguments| match (form, arguments.as_str()) {
            (ArgumentsForm::Object, Some(text)) => serde_json::from_str(text).unwrap_or_else(|_| no_fields()),
            (ArgumentsForm::Object, None) if arguments.is_none() => no_fields(),
            (ArgumentsForm::Text, None) => json::compact(arguments).into(),
            _ => arguments.clone(),
        })
    })
}

fn no_fields() -> Value {
    Value::from_iter::<[(String, Value); 0]>([])
}

/// Returns the object with `field` changed, if it has that field.
fn replaced(object: &Value, field: &str, change: impl Fn(&Value) -> Value) -> Value {
    let change = |(name, value): (Value, Value)| {
        let value = if name.as_str() == Some(field) { change(&value) } else { value };
        (name, value)
    };
    match object.kind() {
        ValueKind::Map => python::pairs(object).map(change).collect(),
        _ => object.clone(),
    }
}
