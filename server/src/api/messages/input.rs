//! Converts Anthropic's turns, whose contents are blocks, into the messages of a conversation.

use engine::tools::chat::Message;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, check, cut, refused};
use crate::json;

/// The beginning of a system block in which a coding agent sends billing data. The block differs in each request,
/// so as part of the prompt it would keep the prompt's prefix from being found in the cache.
const BILLING: &str = "x-anthropic-billing-header:";
/// The beginning of a failed call's result. Most templates show only the text.
const ERROR: &str = "Error: ";

/// A turn of the conversation, as it was sent.
#[derive(Debug, Deserialize)]
pub struct Turn {
    role: String,
    /// A text, or an array of blocks. Calls keep the order of their arguments, so it is not parsed to a [`Value`].
    content: Box<RawValue>,
}

/// A block of a content, with the fields of all types. Other fields, such as `cache_control`, do not change the prompt.
#[derive(Debug, Default, Deserialize)]
struct Block {
    r#type: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Box<RawValue>>,
    tool_use_id: Option<String>,
    content: Option<Box<RawValue>>,
    is_error: Option<bool>,
}

/// A message under construction.
#[derive(Debug, Default)]
struct Draft {
    role: &'static str,
    texts: Vec<String>,
    thoughts: String,
    calls: Vec<Value>,
    /// The fields of a call's result.
    others: Vec<(&'static str, Value)>,
}

/// Returns the messages of a conversation, and whether the answer continues the last one.
///
/// # Errors
/// 400 that names the place, if a block is malformed or not text.
pub fn dialogue(system: Option<&RawValue>, turns: &[Turn]) -> Result<(Vec<Message>, bool), ApiError> {
    check(!turns.is_empty(), "messages", || "messages must have at least one message".into())?;
    let mut drafts = Drafts::default();
    if let Some(system) = system.filter(|system| system.get() != "null") {
        let texts = texts("system", system, "the system prompt")?;
        texts
            .into_iter()
            .filter(|text| !text.starts_with(BILLING))
            .for_each(|text| drafts.of("system").texts.push(text));
    }
    for (at, turn) in turns.iter().enumerate() {
        drafts.add(&format!("messages[{at}]"), turn)?;
    }
    let Drafts(mut drafts) = drafts;
    let mut continues = false;
    if let Some(last) = drafts.last().filter(|last| last.role == "assistant") {
        check(last.calls.is_empty(), "messages", || {
            "messages: the last message calls a tool, so a tool_result must follow it".into()
        })?;
        // An answer continues the text that the client wrote for it, if there is any.
        continues = last.texts.iter().any(|text| !text.is_empty());
        if !continues {
            drafts.pop();
        }
    }
    Ok((drafts.into_iter().map(Draft::message).collect::<Result<_, _>>()?, continues))
}

#[derive(Default)]
struct Drafts(Vec<Draft>);

impl Drafts {
    /// Returns the last message if it has this role, or else a new one. Adjacent turns of one role are one message.
    fn of(&mut self, role: &'static str) -> &mut Draft {
        if self.0.last().is_none_or(|last| last.role != role) {
            self.0.push(Draft { role, ..Draft::default() });
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    fn add(&mut self, place: &str, turn: &Turn) -> Result<(), ApiError> {
        let role = match turn.role.as_str() {
            "user" => "user",
            "assistant" => "assistant",
            "system" => "system",
            _ => return refused(&format!("{place}.role"), "must be \"user\", \"assistant\" or \"system\""),
        };
        let place = format!("{place}.content");
        let blocks = blocks(&place, &turn.content)?;
        check(role == "assistant" || !blocks.is_empty(), &place, || format!("{place} must not be empty"))?;
        for (at, block) in blocks.into_iter().enumerate() {
            let place = format!("{place}[{at}]");
            match (block.r#type.as_str(), role) {
                ("text", _) => {
                    let text = required(&place, "text", block.text)?;
                    self.of(role).texts.push(text);
                }
                ("thinking", "assistant") => {
                    let thinking = required(&place, "thinking", block.thinking)?;
                    self.of(role).thoughts.push_str(&thinking);
                }
                // Only Anthropic can read it.
                ("redacted_thinking", "assistant") => {}
                ("tool_use", "assistant") => {
                    let call = call(&place, block)?;
                    self.of(role).calls.push(call);
                }
                ("tool_result", "user") => self.0.push(result(&place, block)?),
                (kind, role) => {
                    let why = format!("{:?} is not supported in messages of the role {role:?}", cut(kind));
                    return refused(&format!("{place}.type"), &why);
                }
            }
        }
        Ok(())
    }
}

impl Draft {
    fn message(self) -> Result<Message, ApiError> {
        let Draft { role, texts, thoughts, calls, others } = self;
        let content = match <[String; 1]>::try_from(texts) {
            Ok([text]) => json!(text),
            Err(texts) if texts.is_empty() && role == "assistant" => Value::Null,
            Err(texts) => texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect(),
        };
        let mut fields = Map::from_iter([("role".into(), json!(role)), ("content".into(), content)]);
        if !thoughts.is_empty() {
            fields.insert("reasoning_content".into(), json!(thoughts));
        }
        if !calls.is_empty() {
            fields.insert("tool_calls".into(), json!(calls));
        }
        fields.extend(others.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let message = serde_json::from_value(Value::Object(fields));
        message.map_err(|error| ApiError::field("messages", format!("messages: {error}")))
    }
}

/// Returns a call in the form of chats.
fn call(place: &str, block: Block) -> Result<Value, ApiError> {
    let (id, name) = (required(place, "id", block.id)?, required(place, "name", block.name)?);
    let input = required(place, "input", block.input)?;
    if !input.get().starts_with('{') {
        return refused(&format!("{place}.input"), "must be an object");
    }
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input.get()}}))
}

/// Returns the message with the result of a call. Its text and a field for templates say whether the call failed.
fn result(place: &str, block: Block) -> Result<Draft, ApiError> {
    let id = required(place, "tool_use_id", block.tool_use_id)?;
    let texts = match &block.content {
        Some(content) => texts(&format!("{place}.content"), content, "the result of a tool")?,
        None => Vec::new(),
    };
    let mut texts = if texts.is_empty() { vec![String::new()] } else { texts };
    let mut others = vec![("tool_call_id", json!(id))];
    if block.is_error == Some(true) {
        others.push(("is_error", json!(true)));
        if !texts[0].starts_with(ERROR) {
            texts[0].insert_str(0, ERROR);
        }
    }
    Ok(Draft { role: "tool", texts, others, ..Draft::default() })
}

/// Returns the texts of a `content` field that may have only text blocks. `owner` names the field in errors.
fn texts(place: &str, content: &RawValue, owner: &str) -> Result<Vec<String>, ApiError> {
    let text = |(at, block): (usize, Block)| {
        let place = format!("{place}[{at}]");
        match block.r#type.as_str() {
            "text" => required(&place, "text", block.text),
            kind => refused(&format!("{place}.type"), &format!("{:?} is not supported in {owner}", cut(kind))),
        }
    };
    blocks(place, content)?.into_iter().enumerate().map(text).collect()
}

/// Parses a `content` field. A string is one block of text, or none if it is empty.
fn blocks(place: &str, content: &RawValue) -> Result<Vec<Block>, ApiError> {
    let content = content.get();
    match content.as_bytes().first() {
        Some(b'"') => {
            let text = Some(parsed(place, content)?).filter(|text: &String| !text.is_empty());
            let block = |text| Block { r#type: "text".into(), text: Some(text), ..Block::default() };
            Ok(text.map(block).into_iter().collect())
        }
        Some(b'[') => {
            let blocks: Vec<Box<RawValue>> = parsed(place, content)?;
            let block = |(at, block): (usize, Box<RawValue>)| parsed(&format!("{place}[{at}]"), block.get());
            blocks.into_iter().enumerate().map(block).collect()
        }
        _ => refused(place, "must be a string or an array of blocks"),
    }
}

fn parsed<T: serde::de::DeserializeOwned>(place: &str, text: &str) -> Result<T, ApiError> {
    let (value, _) = json::parse(text.as_bytes()).map_err(|problem| problem.within(place))?;
    Ok(value)
}

fn required<T>(place: &str, field: &str, value: Option<T>) -> Result<T, ApiError> {
    value.map_or_else(|| refused(&format!("{place}.{field}"), "is missing"), Ok)
}
