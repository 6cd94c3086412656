//! The events of a streamed message, and its outer fields.

use serde::Serialize;

use super::block::Block;
use super::errors::ErrorFields;
use crate::api::answer::Usage;

/// An event of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MessageEvent {
    /// Begins the message, which has no content yet.
    MessageStart { message: StartedMessage },
    /// Keeps the connection alive.
    Ping,
    /// Begins a block.
    ContentBlockStart { index: usize, content_block: Block },
    /// Adds to a block.
    ContentBlockDelta { index: usize, delta: BlockDelta },
    /// Ends a block.
    ContentBlockStop { index: usize },
    /// Tells why the message ends, and how many tokens it took.
    MessageDelta { delta: Ending, usage: MessageUsage },
    /// Ends the stream.
    MessageStop,
    /// Ends the stream early.
    Error { error: ErrorFields },
}

/// A change to a block.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub enum BlockDelta {
    /// More text.
    #[serde(rename = "text_delta")]
    Text { text: String },
    /// More thinking.
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    /// The signature of a thinking block.
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    /// More of the JSON of a call's input.
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// The outer fields of a message. Their order is Anthropic's.
#[derive(Debug, Serialize)]
pub struct MessageHead {
    pub id: String,
    pub r#type: &'static str,
    pub role: &'static str,
    pub model: String,
}

/// A message without content.
#[derive(Debug, Serialize)]
pub struct StartedMessage {
    #[serde(flatten)]
    pub head: MessageHead,
    pub content: [(); 0],
    #[serde(flatten)]
    pub ending: Ending,
    pub usage: MessageUsage,
}

/// Why a message ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ending {
    pub stop_reason: Option<&'static str>,
    /// The stop sequence that ended it.
    pub stop_sequence: Option<String>,
}

/// The tokens of a message. Anthropic counts cached tokens separately from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MessageUsage {
    input_tokens: usize,
    /// Always 0: the server caches every prompt, and writing to the cache costs nothing extra.
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
}

impl From<&Usage> for MessageUsage {
    fn from(usage: &Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        MessageUsage {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
        }
    }
}

impl MessageEvent {
    /// Returns the event's name, which equals its type.
    pub fn name(&self) -> &'static str {
        match self {
            MessageEvent::MessageStart { .. } => "message_start",
            MessageEvent::Ping => "ping",
            MessageEvent::ContentBlockStart { .. } => "content_block_start",
            MessageEvent::ContentBlockDelta { .. } => "content_block_delta",
            MessageEvent::ContentBlockStop { .. } => "content_block_stop",
            MessageEvent::MessageDelta { .. } => "message_delta",
            MessageEvent::MessageStop => "message_stop",
            MessageEvent::Error { .. } => "error",
        }
    }
}
