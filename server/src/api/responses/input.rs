//! Converts the input of a response, a text or a list of items, into the messages of a conversation.

use engine::tools::chat::Message;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, cut, refused};

/// Returns the messages for instructions and input. `developer` is the chat template's role for developer messages.
///
/// # Errors
/// 400 that names the place, if an item is malformed or not text.
pub fn messages(instructions: Option<&str>, input: &Value, developer: &str) -> Result<Vec<Message>, ApiError> {
    let mut turns = Turns { all: Vec::new(), developer };
    if let Some(text) = instructions {
        turns.push("system", json!(text));
    }
    match input {
        Value::String(text) => turns.push("user", json!(text)),
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(at, item)| turns.add(&format!("input[{at}]"), item))?
        }
        _ => return Err(ApiError::field("input", "input must be a string or an array of items")),
    }
    let message = |turn| {
        let message = serde_json::from_value(Value::Object(turn));
        message.map_err(|error| ApiError::field("input", format!("input: {error}")))
    };
    turns.all.into_iter().map(message).collect()
}

/// Messages in the form of chats.
struct Turns<'a> {
    all: Vec<Map<String, Value>>,
    developer: &'a str,
}

impl Turns<'_> {
    fn push(&mut self, role: &str, content: Value) {
        self.all.push(Map::from_iter([("role".into(), json!(role)), ("content".into(), content)]));
    }

    fn add(&mut self, place: &str, item: &Value) -> Result<(), ApiError> {
        let kind = match &item["type"] {
            Value::Null => "message",
            Value::String(kind) => kind,
            _ => return refused(&format!("{place}.type"), "must be a string"),
        };
        match kind {
            "message" => {
                let role = text(place, item, "role")?;
                let content = content(&format!("{place}.content"), &item["content"])?;
                match role {
                    "developer" => self.push(self.developer, content),
                    "user" | "system" => self.push(role, content),
                    "assistant" => {
                        let turn = self.assistant(|turn| turn["content"].is_null() && !turn.contains_key("tool_calls"));
                        turn.insert("content".into(), content);
                    }
                    _ => {
                        let why = "must be \"user\", \"assistant\", \"system\" or \"developer\"";
                        return refused(&format!("{place}.role"), why);
                    }
                }
            }
            "reasoning" => {
                let parts = item["content"].as_array().into_iter().flatten();
                let thought: String = parts.filter_map(|part| part["text"].as_str()).collect();
                if !thought.is_empty() {
                    self.assistant(|_| false).insert("reasoning_content".into(), json!(thought));
                }
            }
            "function_call" => {
                let [id, name, arguments] =
                    ["call_id", "name", "arguments"].map(|field| text(place, item, field).map(str::to_owned));
                let function = json!({"name": name?, "arguments": arguments?});
                let call = json!({"id": id?, "type": "function", "function": function});
                let calls = self.assistant(|_| true).entry("tool_calls").or_insert_with(|| json!([]));
                calls.as_array_mut().into_iter().for_each(|calls| calls.push(call.clone()));
            }
            "function_call_output" => {
                let id = text(place, item, "call_id")?;
                let output = content(&format!("{place}.output"), &item["output"])?;
                self.push("tool", output);
                self.all.last_mut().into_iter().for_each(|turn| drop(turn.insert("tool_call_id".into(), json!(id))));
            }
            "item_reference" => {
                return refused(
                    &format!("{place}.type"),
                    "cannot refer to an item, because the server does not store items",
                );
            }
            other => return refused(&format!("{place}.type"), &format!("{:?} is not supported", cut(other))),
        }
        Ok(())
    }

    /// Returns the assistant's current message: the last message if it is the assistant's and `takes` accepts it, or
    /// else a new one.
    fn assistant(&mut self, takes: impl Fn(&Map<String, Value>) -> bool) -> &mut Map<String, Value> {
        if !self.all.last().is_some_and(|turn| turn["role"] == "assistant" && takes(turn)) {
            self.push("assistant", Value::Null);
        }
        let last = self.all.len() - 1;
        &mut self.all[last]
    }
}

/// Converts a content: a text, or an array of text parts.
fn content(place: &str, value: &Value) -> Result<Value, ApiError> {
    match value {
        Value::String(_) => Ok(value.clone()),
        Value::Array(parts) => {
            let part = |(at, part): (usize, &Value)| {
                let place = format!("{place}[{at}]");
                let field = match part["type"].as_str() {
                    Some("input_text" | "output_text" | "text") => "text",
                    Some("refusal") => "refusal",
                    Some(kind) => {
                        let why = format!("{:?} is not supported, only text", cut(kind));
                        return refused(&format!("{place}.type"), &why);
                    }
                    None => return refused(&format!("{place}.type"), "is missing"),
                };
                Ok(json!({"type": "text", "text": text(&place, part, field)?}))
            };
            parts.iter().enumerate().map(part).collect()
        }
        _ => refused(place, "must be a string or an array of parts"),
    }
}

fn text<'a>(place: &str, of: &'a Value, field: &str) -> Result<&'a str, ApiError> {
    match &of[field] {
        Value::String(text) => Ok(text),
        Value::Null => refused(&format!("{place}.{field}"), "is missing"),
        _ => refused(&format!("{place}.{field}"), "must be a string"),
    }
}
