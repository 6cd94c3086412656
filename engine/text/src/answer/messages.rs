//! Answers that consist of messages, each with a header: OpenAI's harmony format, which gpt-oss writes.
//!
//! ```text
//! <|channel|>analysis<|message|>They ask for the weather.<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"city": "Oslo"}<|call|>
//! ```
//!
//! A message in the channel `analysis` is a thought. A message with a recipient is a call. Others are text: the channel
//! `final`, and the remarks before calls in the channel `commentary`.

use super::marked::partial_len;
use super::part::Part;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// The markers after a message.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];
/// The word before a recipient, and the namespace of the tools of a request.
const RECIPIENT: &str = "to=";
const NAMESPACE: &str = "functions.";
/// Most bytes in a header. Anything longer is text.
const MAX_HEADER: usize = 1024;
/// Most bytes of white space before a header. Anything longer is text.
const MAX_SPACE: usize = 64;
/// Bytes of text that are read at a time.
const PIECE: usize = 1024;

/// Splits an output of messages into parts.
#[derive(Clone, Debug)]
pub(super) struct MessageReader {
    state: State,
    /// Text that is not read yet, or whose meaning is not certain yet.
    pending: String,
    has_tools: bool,
    /// Whether the current message has contents so far.
    has_contents: bool,
    /// Whether a thought, and whether a text was returned. The next one begins on a line of its own.
    has_said: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was read yet.
    Begin,
    Header,
    Body(Kind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
    Arguments,
}

impl MessageReader {
    /// A reader for an output without a prompt. Without tools, calls are text.
    pub(super) fn new(has_tools: bool) -> Self {
        MessageReader {
            state: State::Begin,
            pending: String::new(),
            has_tools,
            has_contents: false,
            has_said: [false; 2],
        }
    }

    /// The reader for an answer to `prompt`, which may have begun a message of the assistant.
    pub(super) fn after(mut self, prompt: &str) -> Self {
        if let Some((_, begun)) = prompt.rsplit_once(&format!("{START}assistant"))
            && !begun.is_empty()
        {
            self.push(begun);
        }
        self
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        // In pieces, because each marker takes time in proportion to the text that is not read yet.
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let end = (PIECE..rest.len()).find(|end| rest.is_char_boundary(*end)).unwrap_or(rest.len());
            self.pending.push_str(&rest[..end]);
            parts.append(&mut self.read(false));
            rest = &rest[end..];
        }
        parts
    }

    pub(super) fn finish(&mut self) -> Vec<Part> {
        let mut parts = self.read(true);
        // A header without a message says nothing.
        let is_header = |text: &str| [CHANNEL, START, RECIPIENT].iter().any(|marker| text.contains(marker));
        if self.state != State::Header || !is_header(&self.pending) {
            self.state = if self.state == State::Header { State::Body(Kind::Text) } else { self.state };
            let rest = std::mem::take(&mut self.pending);
            self.say(rest, &mut parts);
        }
        self.end(&mut parts);
        parts
    }

    fn read(&mut self, last: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        while match self.state {
            State::Begin => self.begin(last),
            State::Header => self.header(&mut parts),
            State::Body(_) => self.body(last, &mut parts),
        } {}
        parts
    }

    /// Decides whether the output begins with a header. An output without one is text.
    fn begin(&mut self, last: bool) -> bool {
        let text = self.pending.trim_start();
        if self.pending.len() - text.len() > MAX_SPACE {
            self.state = State::Body(Kind::Text);
            return true;
        }
        let begins = |marker: &&str| text.starts_with(marker);
        let may_begin = |marker: &&str| !last && marker.starts_with(text);
        let markers = [CHANNEL, START, RECIPIENT, MESSAGE];
        self.state = match markers.iter().any(begins) {
            true => State::Header,
            false if markers.iter().any(may_begin) => return false,
            false => State::Body(Kind::Text),
        };
        true
    }

    /// Reads a header, once it is complete.
    fn header(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some(end) = self.pending.find(MESSAGE).filter(|end| *end <= MAX_HEADER) else {
            let is_text = self.pending.len() > MAX_HEADER + MESSAGE.len();
            if is_text {
                self.state = State::Body(Kind::Text);
            }
            return is_text;
        };
        let header = self.pending[..end].to_owned();
        self.pending.drain(..end + MESSAGE.len());
        let word_after = |marker: &str| -> Option<String> {
            let (_, rest) = header.split_once(marker)?;
            rest.split(|c: char| c.is_whitespace() || c == '<').next().map(str::to_owned)
        };
        // A tool's message is for the assistant. The model must not write one.
        let is_tool = |name: &String| self.has_tools && !matches!(name.as_str(), "" | "assistant" | "user");
        let recipient = word_after(RECIPIENT).filter(is_tool);
        self.has_contents = false;
        self.state = State::Body(match (recipient, word_after(CHANNEL).as_deref()) {
            (Some(name), _) => {
                parts.push(Part::Call(name.strip_prefix(NAMESPACE).unwrap_or(&name).to_owned()));
                Kind::Arguments
            }
            (None, Some("analysis")) => Kind::Thought,
            (None, _) => Kind::Text,
        });
        true
    }

    /// Reads contents up to the end of the message.
    fn body(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        let end = ENDS.iter().filter_map(|end| Some((self.pending.find(end)?, end.len()))).min();
        let certain = match end {
            Some((at, _)) => at,
            None if last => self.pending.len(),
            None => ENDS.iter().map(|end| self.pending.len() - partial_len(&self.pending, end)).min().unwrap_or(0),
        };
        let contents: String = self.pending.drain(..certain).collect();
        self.say(contents, parts);
        let Some((_, marker)) = end else { return false };
        self.pending.drain(..marker);
        self.end(parts);
        self.state = State::Header;
        true
    }

    /// Returns contents of the current message.
    fn say(&mut self, contents: String, parts: &mut Vec<Part>) {
        let kind = match self.state {
            State::Body(kind) => kind,
            State::Begin | State::Header => Kind::Text,
        };
        if contents.is_empty() {
            return;
        }
        let has_said = self.has_said.get_mut(kind as usize).map(|said| std::mem::replace(said, true));
        let contents = match has_said {
            Some(true) if !self.has_contents => format!("\n{contents}"),
            _ => contents,
        };
        self.has_contents = true;
        parts.push(match kind {
            Kind::Thought => Part::Thought(contents),
            Kind::Text => Part::Text(contents),
            Kind::Arguments => Part::Arguments(contents),
        });
    }

    /// Ends the current message. A call without arguments has an empty object.
    fn end(&mut self, parts: &mut Vec<Part>) {
        if self.state == State::Body(Kind::Arguments) && !self.has_contents {
            parts.push(Part::Arguments("{}".into()));
            self.has_contents = true;
        }
    }
}
