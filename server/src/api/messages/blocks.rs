//! The content of a message: its blocks, and the events that stream them.

use std::hash::{DefaultHasher, Hash, Hasher};

use engine::tools::answer::Part;
use serde_json::value::RawValue;

use super::block::Block;
use super::events::{BlockDelta, MessageEvent};
use crate::api::answer_form::AnswerForm;
use crate::api::message::call_id;

/// The kinds of blocks that have text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
}

/// The blocks of a message while they are generated.
#[derive(Clone, Debug)]
pub struct MessageContent {
    form: AnswerForm,
    /// Whether thinking blocks stay empty.
    omits_thoughts: bool,
    blocks: Vec<Block>,
    /// Whether the last block may still grow.
    is_open: bool,
    /// The arguments of the last call so far.
    arguments: String,
    /// All of the last thinking block, shown or not.
    thought: String,
}

impl MessageContent {
    /// Creates an empty content.
    pub fn new(form: AnswerForm, omits_thoughts: bool) -> Self {
        let (arguments, thought) = (String::new(), String::new());
        MessageContent { form, omits_thoughts, blocks: Vec::new(), is_open: false, arguments, thought }
    }

    /// Returns the blocks so far.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Whether the message calls a tool.
    pub fn has_calls(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }))
    }

    /// Whether the answer ended before the output. See [`AnswerForm::is_over`].
    pub fn is_over(&self) -> bool {
        self.form.is_over()
    }

    /// Adds text and returns the events for it.
    pub fn push(&mut self, text: &str) -> Vec<MessageEvent> {
        let parts = self.form.push(text);
        self.take(parts)
    }

    /// Ends the content and returns the last events.
    pub fn finish(&mut self) -> Vec<MessageEvent> {
        let parts = self.form.finish();
        let mut events = self.take(parts);
        events.extend(self.close());
        events
    }

    fn take(&mut self, parts: Vec<Part>) -> Vec<MessageEvent> {
        let mut events = Vec::new();
        for part in parts {
            events.extend(match part {
                Part::Text(text) => self.say(Kind::Text, text),
                Part::Thought(text) => self.say(Kind::Thinking, text),
                Part::Call(name) => self.call(name),
                Part::Arguments(more) => self.argue(more),
            });
        }
        events
    }

    /// Appends to a text of kind `kind`. Begins a new block if the last one is of another kind.
    fn say(&mut self, kind: Kind, more: String) -> Vec<MessageEvent> {
        if more.is_empty() {
            return Vec::new();
        }
        let last = match self.blocks.last().filter(|_| self.is_open) {
            Some(Block::Text { .. }) => Some(Kind::Text),
            Some(Block::Thinking { .. }) => Some(Kind::Thinking),
            Some(Block::ToolUse { .. }) | None => None,
        };
        let mut events = Vec::new();
        if last != Some(kind) {
            events = self.begin(match kind {
                Kind::Text => Block::Text { text: String::new() },
                Kind::Thinking => Block::Thinking { thinking: String::new(), signature: String::new() },
            });
        }
        match self.blocks.last_mut() {
            Some(Block::Text { text }) => text.push_str(&more),
            Some(Block::Thinking { thinking, .. }) => {
                self.thought.push_str(&more);
                if self.omits_thoughts {
                    return events;
                }
                thinking.push_str(&more);
            }
            _ => {}
        }
        events.push(self.delta(match kind {
            Kind::Text => BlockDelta::Text { text: more },
            Kind::Thinking => BlockDelta::Thinking { thinking: more },
        }));
        events
    }

    fn call(&mut self, name: String) -> Vec<MessageEvent> {
        let id = call_id(self.form.format).replacen("call_", "toolu_", 1);
        self.begin(Block::ToolUse { id, name, input: None })
    }

    fn argue(&mut self, more: String) -> Vec<MessageEvent> {
        if more.is_empty() || !matches!(self.blocks.last(), Some(Block::ToolUse { .. })) {
            return Vec::new();
        }
        self.arguments.push_str(&more);
        vec![self.delta(BlockDelta::InputJson { partial_json: more })]
    }

    fn begin(&mut self, block: Block) -> Vec<MessageEvent> {
        let mut events = self.close();
        self.arguments.clear();
        self.thought.clear();
        self.blocks.push(block.clone());
        self.is_open = true;
        events.push(MessageEvent::ContentBlockStart { index: self.last(), content_block: block });
        events
    }

    /// Ends the last block if it is still open.
    fn close(&mut self) -> Vec<MessageEvent> {
        let mut events = Vec::new();
        if !std::mem::take(&mut self.is_open) {
            return events;
        }
        match self.blocks.last_mut() {
            Some(Block::Thinking { signature, .. }) => {
                *signature = signature_of(&self.thought);
                let signature = signature.clone();
                events.push(self.delta(BlockDelta::Signature { signature }));
            }
            // A call that was cut short is not JSON. A stream has already sent its beginning.
            Some(Block::ToolUse { input, .. }) => {
                *input = RawValue::from_string(std::mem::take(&mut self.arguments)).ok();
            }
            _ => {}
        }
        events.push(MessageEvent::ContentBlockStop { index: self.last() });
        events
    }

    fn delta(&self, delta: BlockDelta) -> MessageEvent {
        MessageEvent::ContentBlockDelta { index: self.last(), delta }
    }

    fn last(&self) -> usize {
        self.blocks.len().saturating_sub(1)
    }
}

/// Returns the signature of a thinking block. It depends only on the text.
fn signature_of(thinking: &str) -> String {
    let mut hasher = DefaultHasher::new();
    thinking.hash(&mut hasher);
    format!("quire-{:016x}", hasher.finish())
}
