//! A block of a message.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::RawValue;

/// A block of a message.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text of the answer.
    Text { text: String },
    /// The model's reasoning. Clients expect a signature and send it back. The server does not check it.
    Thinking { thinking: String, signature: String },
    /// A call of a tool.
    ToolUse {
        id: String,
        name: String,
        /// `None` while the call is incomplete, and if it was cut short. It is sent as an empty object.
        #[serde(serialize_with = "or_empty")]
        input: Option<Box<RawValue>>,
    },
}

fn or_empty<S: Serializer>(input: &Option<Box<RawValue>>, serializer: S) -> Result<S::Ok, S::Error> {
    match input {
        Some(input) => input.serialize(serializer),
        None => serializer.serialize_map(Some(0))?.end(),
    }
}
