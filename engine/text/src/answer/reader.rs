//! Splits an output's text into parts, incrementally.

use super::ToolFormat;
use super::call::{Call, Progress};

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";
/// The separator between a tool's name and its arguments in some of Mistral's models.
const ARGUMENTS: &str = "[ARGS]";
/// Most bytes in a tool's name. Anything longer is text.
const MAX_NAME: usize = 256;

/// A part of an answer, or a continuation of the previous part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The model's reasoning before its answer.
    Thought(String),
    /// Text of the answer.
    Text(String),
    /// The start of a call of the tool with this name.
    Call(String),
    /// More of the JSON arguments of the last call.
    Arguments(String),
}

/// Splits one output into parts.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    state: State,
    /// Text that is not read yet, or whose meaning is not certain yet.
    pending: String,
    format: Option<ToolFormat>,
    names: Vec<String>,
    thinks: bool,
    /// Whether any text of a thought was returned.
    thought: bool,
    call: Call,
    /// Text of the current call, to be returned as text if it turns out not to be a call.
    source: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space so far.
    Begin,
    Thinking,
    /// After the thoughts, or at the beginning of an answer without thoughts.
    BeginText,
    Text,
    /// After the marker that precedes calls.
    BeginCall,
    Call,
    /// After a call.
    Between,
}

impl AnswerReader {
    /// A reader for answers of a model with this tool format and these tools, and with thoughts if the model `thinks`.
    /// `format` is `None` if there are no tool calls.
    pub fn new(format: Option<ToolFormat>, names: Vec<String>, thinks: bool) -> Self {
        let (call, pending, source) = Default::default();
        AnswerReader { state: State::Begin, pending, format, names, thinks, thought: false, call, source }
    }

    /// The reader for an answer to a prompt that already opened the thoughts.
    pub fn thinking(self) -> Self {
        AnswerReader { state: State::Thinking, thinks: true, ..self }
    }

    /// Adds text and returns the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.pending.push_str(text);
        self.read(false)
    }

    /// Returns the remaining parts at the end of the output.
    pub fn finish(&mut self) -> Vec<Part> {
        self.read(true)
    }

    fn read(&mut self, last: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        while self.step(last, &mut parts) {}
        if last {
            let rest = std::mem::take(&mut self.source) + &std::mem::take(&mut self.pending);
            say(rest, &mut parts);
        }
        parts
    }

    /// Reads until the state changes. Returns false if more text is needed or nothing is left.
    fn step(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Begin => {
                let text = self.pending.trim_start();
                if self.thinks && (text.starts_with(THINK) || (!last && THINK.starts_with(text))) {
                    let Some(rest) = text.strip_prefix(THINK) else { return false };
                    self.pending = rest.to_owned();
                    self.state = State::Thinking;
                } else {
                    self.state = State::BeginText;
                }
                true
            }
            State::Thinking => self.think(last, parts),
            State::BeginText => self.begin_text(last),
            State::Text => self.text(last, parts),
            State::BeginCall => self.begin_call(parts),
            State::Call => self.call(parts),
            State::Between => self.between(last),
        }
    }

    fn think(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        // Line breaks around thoughts are not part of them.
        if !self.thought {
            self.pending = self.pending.trim_start_matches('\n').to_owned();
        }
        let end = self.pending.find(THOUGHT);
        let certain = match end {
            Some(end) => self.pending[..end].trim_end_matches('\n').len(),
            None if last => self.pending.len(),
            None => certain_len(&self.pending, THOUGHT),
        };
        if certain > 0 {
            self.thought = true;
            parts.push(Part::Thought(self.pending[..certain].to_owned()));
        }
        self.pending.drain(..end.map_or(certain, |end| end + THOUGHT.len()));
        if end.is_some() {
            self.state = State::BeginText;
        }
        end.is_some()
    }

    /// Reads the beginning of a text. Llama writes calls in place of text.
    fn begin_text(&mut self, last: bool) -> bool {
        if self.thinks {
            self.pending = self.pending.trim_start_matches('\n').to_owned();
        }
        self.state = State::Text;
        if self.format == Some(ToolFormat::Llama) {
            let (text, marker) = (self.pending.trim_start(), ToolFormat::Llama.marker());
            if !last && marker.starts_with(text) {
                self.state = State::BeginText;
                return false;
            }
            let text = text.strip_prefix(marker).map_or(text, str::trim_start);
            match text.starts_with('{') {
                true => {
                    self.pending = text.to_owned();
                    self.state = State::BeginCall;
                }
                false if text.is_empty() && !last => {
                    self.state = State::BeginText;
                    return false;
                }
                false => {}
            }
        } else if self.thinks && self.pending.is_empty() && !last {
            self.state = State::BeginText;
            return false;
        }
        true
    }

    fn text(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        let marker = self.format.filter(|format| *format != ToolFormat::Llama).map(ToolFormat::marker);
        let found = marker.and_then(|marker| self.pending.find(marker).map(|at| (at, at + marker.len())));
        let certain = match (found, marker) {
            // White space before calls is not part of the text.
            (Some((at, _)), _) => self.pending[..at].trim_end().len(),
            (None, Some(marker)) if !last => certain_len(&self.pending, marker),
            _ => self.pending.len(),
        };
        say(self.pending[..certain].to_owned(), parts);
        match found {
            Some((at, end)) => {
                self.source = self.pending[at..end].to_owned();
                self.pending.drain(..end);
                self.state = State::BeginCall;
                true
            }
            None => {
                self.pending.drain(..certain);
                false
            }
        }
    }

    /// Reads the beginning of a call: an object, a list of objects, or a name.
    fn begin_call(&mut self, parts: &mut Vec<Part>) -> bool {
        let space = self.pending.len() - self.pending.trim_start_matches(|c: char| c.is_whitespace()).len();
        let rest = &self.pending[space..];
        let named = self.format == Some(ToolFormat::Mistral) && !rest.starts_with(['{', '[']);
        match rest.chars().next() {
            None => return false,
            Some('{') => self.call = Call::default(),
            Some('[') if self.format == Some(ToolFormat::Mistral) => {
                self.source.push_str(&self.pending[..=space]);
                self.pending.drain(..=space);
                return true;
            }
            Some(_) if named => {
                let Some(end) = rest.find('{').filter(|end| *end <= MAX_NAME) else {
                    return rest.len() > MAX_NAME && self.no_call(parts);
                };
                let name = rest[..end].trim().trim_end_matches(ARGUMENTS).to_owned();
                parts.push(Part::Call(name.clone()));
                self.call = Call::named(name);
                self.source.clear();
                self.pending.drain(..space + end);
            }
            Some(_) => return self.no_call(parts),
        }
        self.state = State::Call;
        true
    }

    fn call(&mut self, parts: &mut Vec<Part>) -> bool {
        let was_named = self.call.name.is_some();
        let mut read = 0;
        let mut progress = Progress::More;
        for c in self.pending.chars() {
            progress = self.call.push(c);
            read += c.len_utf8();
            if progress != Progress::More {
                break;
            }
        }
        let text: String = self.pending.drain(..read).collect();
        // Llama's calls need no marker, so only a tool's name tells a call from another object.
        let is_tool = |name: &String| self.format != Some(ToolFormat::Llama) || self.names.contains(name);
        match &self.call.name {
            Some(name) if was_named || is_tool(name) => {
                if !was_named {
                    parts.push(Part::Call(name.clone()));
                }
                self.source.clear();
                let mut arguments = std::mem::take(&mut self.call.arguments);
                if progress == Progress::Done && !self.call.has_arguments {
                    arguments = "{}".into();
                }
                if !arguments.is_empty() {
                    parts.push(Part::Arguments(arguments));
                }
                if progress != Progress::More {
                    self.state = State::Between;
                }
                progress != Progress::More
            }
            other => {
                self.source.push_str(&text);
                (other.is_some() || progress != Progress::More) && self.no_call(parts)
            }
        }
    }

    /// Returns the text read so far as text. The text after it is text too.
    fn no_call(&mut self, parts: &mut Vec<Part>) -> bool {
        say(std::mem::take(&mut self.source), parts);
        if self.format == Some(ToolFormat::Llama) {
            self.format = None;
        }
        self.state = State::Text;
        true
    }

    /// Reads the end of a call and looks for the next one.
    fn between(&mut self, last: bool) -> bool {
        let (ends, next): (&[&str], &str) = match self.format {
            Some(ToolFormat::Hermes) => (&["</tool_call>"], ToolFormat::Hermes.marker()),
            Some(ToolFormat::Llama) => (&[";"], "{"),
            _ => (&[",", "]", ToolFormat::Mistral.marker()], "{"),
        };
        let mut rest = self.pending.trim_start();
        while let Some(after) = ends.iter().find_map(|end| rest.strip_prefix(end)) {
            rest = after.trim_start();
        }
        let starts = [next].iter().chain(ends).any(|token| token.starts_with(rest));
        let named = self.format == Some(ToolFormat::Mistral) && self.pending.contains(ToolFormat::Mistral.marker());
        let (pending, waits) = (rest.to_owned(), starts && rest != next);
        if waits && !named {
            // A partial separator or marker decides nothing yet. At the end of an output it is dropped.
            if rest.is_empty() || last {
                self.pending.clear();
            }
            return false;
        }
        self.pending = pending;
        let follows = named || self.pending.starts_with(next);
        if follows && self.format == Some(ToolFormat::Hermes) {
            self.pending.drain(..next.len());
            self.source = next.to_owned();
        }
        self.state = if follows { State::BeginCall } else { State::Text };
        !self.pending.is_empty()
    }
}

fn say(text: String, parts: &mut Vec<Part>) {
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

/// The length of `text` that is certainly before `marker`. A partial marker at the end does not count, nor does white
/// space before it.
fn certain_len(text: &str, marker: &str) -> usize {
    let begins = |len: &usize| marker.is_char_boundary(*len) && text.ends_with(&marker[..*len]);
    let partial = (1..marker.len()).rev().find(begins).unwrap_or(0);
    text[..text.len() - partial].trim_end().len()
}
