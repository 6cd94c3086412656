//! A turn of a conversation, as clients send it and as templates read it.

use std::fmt;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::forms::{ArgumentsForm, Forms, Silence};
use super::{Arguments, json, python};

/// Names under which servers send what an assistant thought before it spoke.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A turn of a conversation: who speaks, what is said, and all else that a template may read. What is null is left out,
/// as `apply_chat_template` leaves it out.
#[derive(Clone, Debug)]
pub struct Message {
    pub(super) role: String,
    pub(super) content: Option<Content>,
    /// Calls of functions, in OpenAI's form: their arguments may be JSON in a string.
    pub(super) tool_calls: Vec<Value>,
    pub(super) others: Vec<(String, Value)>,
}

/// What is said: a text, or parts of one.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<String>),
}

impl Message {
    /// A text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        let content = Some(Content::Text(text.into()));
        Message { role: role.into(), content, tool_calls: Vec::new(), others: Vec::new() }
    }

    /// Who speaks: "user", "assistant" and so on.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Whether there is a content, be it an empty one.
    pub fn has_content(&self) -> bool {
        self.content.is_some()
    }

    /// What is said last, as a template that takes these forms reads it.
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

    /// The message as a template that takes these forms reads it.
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
            None if !self.tool_calls.is_empty() => match forms.silence {
                Silence::Absent => None,
                Silence::Null => Some(().into()),
                Silence::Empty => Some(text("")),
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
        // Of fields with the same name the last one counts, in the first one's place.
        [("thinking", reasoning.clone()), ("role", role), ("content", content), ("tool_calls", calls)]
            .into_iter()
            .chain(others)
            .chain([("reasoning_content", reasoning)])
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// Parts in one text, as vLLM joins them.
fn joined(parts: &[String]) -> String {
    parts.join("\n")
}

fn parts_value(parts: impl IntoIterator<Item = impl AsRef<str>>) -> Value {
    parts.into_iter().map(|text| Value::from_iter([("type", "text"), ("text", text.as_ref())])).collect()
}

/// A call with its arguments in the template's form. A text that is no JSON counts as no arguments.
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

/// An object with one of its fields, if it has it, changed.
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

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Message;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a role and a content")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
                let (mut role, mut content, mut tool_calls, mut others) = (None, None, Vec::new(), Vec::new());
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "role" => role = Some(map.next_value()?),
                        "content" => content = map.next_value()?,
                        "tool_calls" => {
                            let calls: Option<Vec<ToolCall>> = map.next_value()?;
                            tool_calls = calls.unwrap_or_default().into_iter().map(|call| call.0).collect();
                        }
                        "audio" => {
                            let NoAudio = map.next_value()?;
                        }
                        _ => {
                            let value: Value = map.next_value()?;
                            if !value.is_none() {
                                others.push((name, value));
                            }
                        }
                    }
                }
                let role = role.ok_or_else(|| A::Error::missing_field("role"))?;
                Ok(Message { role, content, tool_calls, others })
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;

        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of text parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
                let mut parts = Vec::new();
                while let Some(Part(text)) = seq.next_element()? {
                    parts.push(text);
                }
                Ok(Content::Parts(parts))
            }
        }

        deserializer.deserialize_any(TextOrParts)
    }
}

/// A part of a content.
struct Part(String);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringOrFields;

        impl<'de> Visitor<'de> for StringOrFields {
            type Value = Part;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text part")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Part, E> {
                Ok(Part(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
                let (mut kind, mut text, mut refusal, mut thinking) = (None::<String>, None, None, None);
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "type" => kind = Some(map.next_value()?),
                        "text" => text = map.next_value()?,
                        "refusal" => refusal = map.next_value()?,
                        "thinking" => thinking = map.next_value()?,
                        // Such as `cache_control`.
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                let (field, said): (_, Option<String>) = match kind.as_deref() {
                    Some("text" | "input_text" | "output_text") => ("text", text),
                    Some("refusal") => ("refusal", refusal),
                    Some("thinking") => ("thinking", thinking),
                    Some(kind) => {
                        return Err(A::Error::custom(format!(
                            "parts of the type {kind:?} are not supported, only text"
                        )));
                    }
                    None => return Err(A::Error::missing_field("type")),
                };
                said.map(Part).ok_or_else(|| A::Error::missing_field(field))
            }
        }

        deserializer.deserialize_any(StringOrFields)
    }
}

/// A call of a function: an object, whatever is in it.
struct ToolCall(Value);

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Arguments::deserialize(deserializer).map(|fields| ToolCall(fields.into_iter().collect()))
    }
}

/// What stands for an answer that was spoken, which no text stands for.
struct NoAudio;

impl<'de> Deserialize<'de> for NoAudio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<IgnoredAny>::deserialize(deserializer)? {
            None => Ok(NoAudio),
            Some(_) => Err(D::Error::custom("audio is not supported, only text")),
        }
    }
}
