//! Reads messages from JSON, in the formats that OpenAI's clients send and that servers return to clients.

use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::message::{Content, MessageProblem};
use super::{Arguments, Message};

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Message;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a role and a content")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
                let (mut role, mut content, mut problem) = (None, None, None);
                let (mut tool_calls, mut others) = (Vec::new(), Vec::new());
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "role" => role = Some(map.next_value()?),
                        "content" => {
                            let said: Option<Said> = map.next_value()?;
                            (content, problem) = said.map_or((None, None), |said| (Some(said.content), said.problem));
                        }
                        "tool_calls" => {
                            let calls: Option<Vec<Arguments>> = map.next_value()?;
                            tool_calls =
                                calls.unwrap_or_default().into_iter().map(|call| call.into_iter().collect()).collect();
                        }
                        _ => {
                            let value: Value = map.next_value()?;
                            if !value.is_none() {
                                others.push((name, value));
                            }
                        }
                    }
                }
                if others.iter().any(|(name, _)| name == "audio") {
                    // The spoken text is in no other field.
                    problem = Some(MessageProblem {
                        place: "audio".into(),
                        what: "audio is not supported, only text".into(),
                    });
                }
                let role = role.ok_or_else(|| A::Error::missing_field("role"))?;
                Ok(Message { role, content, tool_calls, others, problem })
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// A content, and the reason if a part of it is not text.
struct Said {
    content: Content,
    problem: Option<MessageProblem>,
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;

        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Said;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of text parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Said, E> {
                self.visit_string(text.to_owned())
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Said, E> {
                Ok(Said { content: Content::Text(text), problem: None })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Said, A::Error> {
                let (mut parts, mut problem) = (Vec::new(), None);
                while let Some(part) = seq.next_element()? {
                    match part {
                        Part::Text(text) => parts.push(text),
                        Part::Other(kind) => {
                            problem = problem.or_else(|| {
                                let what = format!("parts of the type {kind:?} are not supported, only text");
                                Some(MessageProblem { place: format!("content[{}]", parts.len()), what })
                            });
                        }
                    }
                }
                Ok(Said { content: Content::Parts(parts), problem })
            }
        }

        deserializer.deserialize_any(TextOrParts)
    }
}

/// A part of a list content.
enum Part {
    Text(String),
    /// The type of an unsupported part, such as an image.
    Other(String),
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
                Ok(Part::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
                let (mut kind, mut text, mut refusal, mut thinking) = (None::<String>, None, None, None);
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "type" => kind = Some(map.next_value()?),
                        "text" => text = map.next_value()?,
                        "refusal" => refusal = map.next_value()?,
                        "thinking" => thinking = map.next_value()?,
                        // Fields such as `cache_control` are ignored.
                        _ => {
                            map.next_value::<Value>()?;
                        }
                    }
                }
                let (field, said): (_, Option<String>) = match kind.as_deref() {
                    Some("text" | "input_text" | "output_text") => ("text", text),
                    Some("refusal") => ("refusal", refusal),
                    Some("thinking") => ("thinking", thinking),
                    Some(kind) => return Ok(Part::Other(kind.to_owned())),
                    None => return Err(A::Error::missing_field("type")),
                };
                said.map(Part::Text).ok_or_else(|| A::Error::missing_field(field))
            }
        }

        deserializer.deserialize_any(StringOrFields)
    }
}
