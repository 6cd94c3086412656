//! A turn of a conversation, as clients send it and as templates read it.

use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A turn of a conversation: who speaks, what is said, and all else that a template may read. What is null is left out,
/// as `apply_chat_template` leaves it out.
#[derive(Clone, Debug)]
pub struct Message {
    role: String,
    content: Option<Content>,
    /// Calls of functions, in OpenAI's form: their arguments may be JSON in a string.
    tool_calls: Vec<Value>,
    others: Vec<(String, Value)>,
}

/// What is said: a text, or parts of one.
#[derive(Clone, Debug)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a content.
#[derive(Clone, Debug)]
struct Part(String);

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

    /// The message as templates read it.
    pub(super) fn value(&self) -> Value {
        let content = self.content.as_ref().map(|content| match content {
            Content::Text(text) => Value::from(text.as_str()),
            Content::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().map(|part| part.0.as_str()).collect();
                Value::from(texts.join("\n"))
            }
        });
        let calls = (!self.tool_calls.is_empty()).then(|| self.tool_calls.iter().map(with_arguments).collect());
        let known = [("role", Some(Value::from(self.role.as_str()))), ("content", content), ("tool_calls", calls)];
        let known = known.into_iter().filter_map(|(name, value)| Some((name, value?)));
        known.chain(self.others.iter().map(|(name, value)| (name.as_str(), value.clone()))).collect()
    }
}

/// A call whose arguments are an object, as templates expect it. What is no JSON counts as no arguments.
fn with_arguments(call: &Value) -> Value {
    replaced(call, "function", |function| {
        replaced(function, "arguments", |arguments| match arguments.as_str() {
            Some(text) => serde_json::from_str(text).unwrap_or_else(|_| no_fields()),
            None if arguments.is_none() => no_fields(),
            None => arguments.clone(),
        })
    })
}

fn no_fields() -> Value {
    Value::from_iter::<[(String, Value); 0]>([])
}

/// An object with one of its fields, if it has it, changed.
fn replaced(object: &Value, field: &str, change: impl Fn(&Value) -> Value) -> Value {
    let Some(pairs) = object.as_object().and_then(|object| object.try_iter_pairs()) else { return object.clone() };
    pairs
        .map(|(name, value)| if name.as_str() == Some(field) { (name, change(&value)) } else { (name, value) })
        .collect()
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
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }

        deserializer.deserialize_any(TextOrParts)
    }
}

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
        super::options::Arguments::deserialize(deserializer).map(|fields| ToolCall(fields.into_iter().collect()))
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
