//! The text of an output, taken apart as it comes.

use super::ToolFormat;
use super::call::{Call, Progress};

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";
/// What stands between a name and its arguments with some of Mistral's models.
const ARGUMENTS: &str = "[ARGS]";
/// Characters of a tool's name, at most: what is longer is a text.
const MAX_NAME: usize = 256;

/// A part of an answer, or more of the part before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// What the model thinks before it speaks.
    Thought(String),
    /// What it says.
    Text(String),
    /// A call of the tool with this name begins.
    Call(String),
    /// More of the arguments of the last call, JSON.
    Arguments(String),
}

/// Takes an answer apart. Made for each output.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    state: State,
    /// Text that is not read yet, or whose meaning is open.
    held: String,
    format: Option<ToolFormat>,
    names: Vec<String>,
    thinks: bool,
    /// Whether a thought has come.
    thought: bool,
    call: Call,
    /// What of the text a call was read from, in case that it is none.
    source: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but space has come.
    Begin,
    Thinking,
    /// Behind thoughts, or at the beginning of an answer without any.
    BeginText,
    Text,
    /// Behind what comes before calls.
    BeginCall,
    Call,
    /// Behind a call.
    Between,
}

impl AnswerReader {
    /// A reader of answers with calls in `format` of the tools with these names, if there are any, and with thoughts if the
    /// model `thinks`.
    pub fn new(format: Option<ToolFormat>, names: Vec<String>, thinks: bool) -> Self {
        let (call, held, source) = Default::default();
        AnswerReader { state: State::Begin, held, format, names, thinks, thought: false, call, source }
    }

    /// The reader for an answer to a prompt that has begun to think already.
    pub fn thinking(self) -> Self {
        AnswerReader { state: State::Thinking, thinks: true, ..self }
    }

    /// Reads more text. Returns what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        self.read(false)
    }

    /// The rest: the output is over.
    pub fn finish(&mut self) -> Vec<Part> {
        self.read(true)
    }

    fn read(&mut self, last: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        while self.step(last, &mut parts) {}
        if last {
            let rest = std::mem::take(&mut self.source) + &std::mem::take(&mut self.held);
            say(rest, &mut parts);
        }
        parts
    }

    /// Reads on to the next state. Whether there is one.
    fn step(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Begin => {
                let text = self.held.trim_start();
                if self.thinks && (text.starts_with(THINK) || (!last && THINK.starts_with(text))) {
                    let Some(rest) = text.strip_prefix(THINK) else { return false };
                    self.held = rest.to_owned();
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
            self.held = self.held.trim_start_matches('\n').to_owned();
        }
        let end = self.held.find(THOUGHT);
        let certain = match end {
            Some(end) => self.held[..end].trim_end_matches('\n').len(),
            None if last => self.held.len(),
            None => settled(&self.held, THOUGHT),
        };
        if certain > 0 {
            self.thought = true;
            parts.push(Part::Thought(self.held[..certain].to_owned()));
        }
        self.held.drain(..end.map_or(certain, |end| end + THOUGHT.len()));
        if end.is_some() {
            self.state = State::BeginText;
        }
        end.is_some()
    }

    /// At the beginning of a text: Llama's calls are in place of one.
    fn begin_text(&mut self, last: bool) -> bool {
        if self.thinks {
            self.held = self.held.trim_start_matches('\n').to_owned();
        }
        self.state = State::Text;
        if self.format == Some(ToolFormat::Llama) {
            let (text, marker) = (self.held.trim_start(), ToolFormat::Llama.marker());
            if !last && marker.starts_with(text) {
                self.state = State::BeginText;
                return false;
            }
            let text = text.strip_prefix(marker).map_or(text, str::trim_start);
            match text.starts_with('{') {
                true => {
                    self.held = text.to_owned();
                    self.state = State::BeginCall;
                }
                false if text.is_empty() && !last => {
                    self.state = State::BeginText;
                    return false;
                }
                false => {}
            }
        } else if self.thinks && self.held.is_empty() && !last {
            self.state = State::BeginText;
            return false;
        }
        true
    }

    fn text(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        let marker = self.format.filter(|format| *format != ToolFormat::Llama).map(ToolFormat::marker);
        let found = marker.and_then(|marker| self.held.find(marker).map(|at| (at, at + marker.len())));
        let certain = match (found, marker) {
            // Space before calls is not part of the text.
            (Some((at, _)), _) => self.held[..at].trim_end().len(),
            (None, Some(marker)) if !last => settled(&self.held, marker),
            _ => self.held.len(),
        };
        say(self.held[..certain].to_owned(), parts);
        match found {
            Some((at, end)) => {
                self.source = self.held[at..end].to_owned();
                self.held.drain(..end);
                self.state = State::BeginCall;
                true
            }
            None => {
                self.held.drain(..certain);
                false
            }
        }
    }

    /// Behind what comes before calls: an object, a list of them, or a name.
    fn begin_call(&mut self, parts: &mut Vec<Part>) -> bool {
        let space = self.held.len() - self.held.trim_start_matches(|c: char| c.is_whitespace()).len();
        let rest = &self.held[space..];
        let named = self.format == Some(ToolFormat::Mistral) && !rest.starts_with(['{', '[']);
        match rest.chars().next() {
            None => return false,
            Some('{') => self.call = Call::default(),
            Some('[') if self.format == Some(ToolFormat::Mistral) => {
                self.source.push_str(&self.held[..=space]);
                self.held.drain(..=space);
                return true;
            }
            Some(_) if named => {
                let Some(end) = rest.find('{').filter(|end| *end <= MAX_NAME) else {
                    return rest.len() > MAX_NAME && self.no_call(parts);
                };
                let name = rest[..end].trim().trim_end_matches(ARGUMENTS).to_owned();
                parts.push(Part::Call(name.clone()));
                self.call = Call::of(name);
                self.source.clear();
                self.held.drain(..space + end);
            }
            Some(_) => return self.no_call(parts),
        }
        self.state = State::Call;
        true
    }

    fn call(&mut self, parts: &mut Vec<Part>) -> bool {
        let known = self.call.name.is_some();
        let mut read = 0;
        let mut progress = Progress::More;
        for c in self.held.chars() {
            progress = self.call.push(c);
            read += c.len_utf8();
            if progress != Progress::More {
                break;
            }
        }
        let text: String = self.held.drain(..read).collect();
        // Without a sign before it, only the name of a tool tells a call from another object.
        let is_tool = |name: &String| self.format != Some(ToolFormat::Llama) || self.names.contains(name);
        match &self.call.name {
            Some(name) if known || is_tool(name) => {
                if !known {
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

    /// What was read is a text, and so is what follows.
    fn no_call(&mut self, parts: &mut Vec<Part>) -> bool {
        say(std::mem::take(&mut self.source), parts);
        if self.format == Some(ToolFormat::Llama) {
            self.format = None;
        }
        self.state = State::Text;
        true
    }

    /// Behind a call: what ends it, and the next one.
    fn between(&mut self, last: bool) -> bool {
        let (ends, next): (&[&str], &str) = match self.format {
            Some(ToolFormat::Hermes) => (&["</tool_call>"], ToolFormat::Hermes.marker()),
            Some(ToolFormat::Llama) => (&[";"], "{"),
            _ => (&[",", "]", ToolFormat::Mistral.marker()], "{"),
        };
        let mut rest = self.held.trim_start();
        while let Some(after) = ends.iter().find_map(|end| rest.strip_prefix(end)) {
            rest = after.trim_start();
        }
        let starts = [next].iter().chain(ends).any(|token| token.starts_with(rest));
        let named = self.format == Some(ToolFormat::Mistral) && self.held.contains(ToolFormat::Mistral.marker());
        let (held, waits) = (rest.to_owned(), starts && rest != next);
        if waits && !named {
            // Where only a part of what may follow is there, nothing is decided; at the end of an output it is no text.
            if rest.is_empty() || last {
                self.held.clear();
            }
            return false;
        }
        self.held = held;
        let follows = named || self.held.starts_with(next);
        if follows && self.format == Some(ToolFormat::Hermes) {
            self.held.drain(..next.len());
            self.source = next.to_owned();
        }
        self.state = if follows { State::BeginCall } else { State::Text };
        !self.held.is_empty()
    }
}

fn say(text: String, parts: &mut Vec<Part>) {
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

/// How much of a text is certain to stand before `marker`: neither the beginning of one at its end, nor space before it.
fn settled(text: &str, marker: &str) -> usize {
    let begins = |len: &usize| marker.is_char_boundary(*len) && text.ends_with(&marker[..*len]);
    let partial = (1..marker.len()).rev().find(begins).unwrap_or(0);
    text[..text.len() - partial].trim_end().len()
}
