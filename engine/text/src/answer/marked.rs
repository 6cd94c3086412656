//! Splits an output in which markers separate thoughts, text and calls.

use super::call::{Call, Progress};
use super::format::Layout;
use super::part::Part;
use super::{ThoughtFormat, ToolFormat, notation};

/// The separator between a tool's name and its arguments in some of Mistral's models.
const ARGUMENTS: &str = "[ARGS]";
/// Most bytes in a tool's name. Anything longer is text.
const MAX_NAME: usize = 256;
/// Most bytes between the markers of calls that are not JSON. Anything longer is text.
const MAX_BLOCK: usize = 1 << 18;
/// Most characters of white space before a marker that are not part of the text.
const MAX_SPACE: usize = 64;
/// Most markers in a block that end it too early. Text with more is no call, which bounds the time of reading it.
const MAX_ENDS: usize = 16;

/// Splits one output with markers into parts.
#[derive(Clone, Debug)]
pub(super) struct MarkedReader {
    state: State,
    /// Text that is not read yet, or whose meaning is not certain yet.
    pending: String,
    format: Option<ToolFormat>,
    names: Vec<String>,
    /// Arguments that are strings, each with the name of its tool.
    strings: Vec<(String, String)>,
    thoughts: Option<ThoughtFormat>,
    /// Whether any text of a thought was returned.
    thought: bool,
    call: Call,
    /// Text of the current call, to be returned as text if it turns out not to be a call.
    source: String,
    /// How much of a block was searched for its end.
    searched: usize,
    /// The markers at the end of a block that were found and do not end it.
    failed: usize,
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
    /// After the marker before text that is not JSON.
    Block,
    /// After a call.
    Between,
}

impl MarkedReader {
    /// A reader for answers of a model with this tool format and these tools, and with thoughts in this format. `None` if
    /// there are no tool calls or no thoughts.
    pub(super) fn new(format: Option<ToolFormat>, names: Vec<String>, thoughts: Option<ThoughtFormat>) -> Self {
        let (call, pending, source, searched, failed) = Default::default();
        MarkedReader {
            state: State::Begin,
            pending,
            format,
            names,
            strings: Vec::new(),
            thoughts,
            thought: false,
            call,
            source,
            searched,
            failed,
        }
    }

    /// Sets the arguments that are strings, each with the name of its tool.
    pub(super) fn with_strings(self, strings: Vec<(String, String)>) -> Self {
        MarkedReader { strings, ..self }
    }

    /// The reader for an answer to `prompt`, which may already open the thoughts.
    pub(super) fn after(self, prompt: &str) -> Self {
        let is_open = self.thoughts.is_some_and(|thoughts| thoughts.is_open(prompt));
        MarkedReader { state: if is_open { State::Thinking } else { self.state }, ..self }
    }

    /// Adds text and returns the parts that are certain now.
    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.pending.push_str(text);
        self.read(false)
    }

    /// Returns the remaining parts at the end of the output.
    pub(super) fn finish(&mut self) -> Vec<Part> {
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
            State::Begin => self.begin(last),
            State::Thinking => self.think(last, parts),
            State::BeginText => self.begin_text(last, parts),
            State::Text => self.text(last, parts),
            State::BeginCall => self.begin_call(parts),
            State::Call => self.call(parts),
            State::Block => self.block(last, parts),
            State::Between => self.between(last),
        }
    }

    /// Reads the beginning of an answer, which may be thoughts.
    fn begin(&mut self, last: bool) -> bool {
        let text = self.pending.trim_start();
        let open = self.thoughts.map_or("", ThoughtFormat::open);
        self.state = State::BeginText;
        if let Some(rest) = text.strip_prefix(open).filter(|_| !open.is_empty()) {
            self.pending = rest.to_owned();
            self.state = State::Thinking;
        } else if !last && !open.is_empty() && open.starts_with(text) {
            self.state = State::Begin;
            return false;
        }
        true
    }

    fn think(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        // White space before thoughts and line breaks after them are not part of them.
        if !self.thought {
            self.pending = self.pending.trim_start_matches([' ', '\n']).to_owned();
        }
        let close = self.thoughts.map_or("", ThoughtFormat::close);
        let end = self.pending.find(close);
        let certain = match end {
            Some(end) => self.pending[..end].trim_end_matches('\n').len(),
            None if last => self.pending.len(),
            None => certain_len(&self.pending, close),
        };
        if certain > 0 {
            self.thought = true;
            parts.push(Part::Thought(self.pending[..certain].to_owned()));
        }
        self.pending.drain(..end.map_or(certain, |end| end + close.len()));
        if end.is_some() {
            self.state = State::BeginText;
        }
        end.is_some()
    }

    /// Reads the beginning of a text. Some models write calls in place of text.
    fn begin_text(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        if self.thoughts.is_some() {
            self.pending = self.pending.trim_start_matches('\n').to_owned();
        }
        let is_call = match self.format.map(ToolFormat::layout) {
            Some(Layout::Bare) => self.is_bare_call(last),
            Some(Layout::Named) => self.is_named_call(last, parts),
            _ if self.thoughts.is_some() && self.pending.is_empty() && !last => None,
            _ => Some(false),
        };
        self.state = match is_call {
            None => State::BeginText,
            Some(true) if self.call.name.is_some() => State::Call,
            Some(true) => State::BeginCall,
            Some(false) => State::Text,
        };
        is_call.is_some()
    }

    /// Whether a call without a marker follows. Removes what comes before it. `None` if that is not certain yet.
    fn is_bare_call(&mut self, last: bool) -> Option<bool> {
        let (text, marker) = (self.pending.trim_start(), ToolFormat::Llama.markers()[0]);
        if !last && marker.starts_with(text) {
            return None;
        }
        let text = text.strip_prefix(marker).map_or(text, str::trim_start);
        if text.starts_with('{') {
            self.pending = text.to_owned();
            return Some(true);
        }
        (!text.is_empty() || last).then_some(false)
    }

    /// Whether the name of a tool and an object follow. Removes and returns the name. `None` if that is not certain yet.
    fn is_named_call(&mut self, last: bool, parts: &mut Vec<Part>) -> Option<bool> {
        let text = self.pending.trim_start();
        let (line, after) = text.split_once('\n').map_or((text, None), |(line, rest)| (line, Some(rest.trim_start())));
        let could_be = |name: &String| match after {
            None => name.starts_with(line.trim_end()),
            Some(after) => name == line.trim_end() && (after.is_empty() || after.starts_with('{')),
        };
        let name = self.names.iter().find(|name| could_be(name)).cloned();
        match (name, after) {
            (Some(name), Some(after)) if after.starts_with('{') => {
                self.pending = after.to_owned();
                parts.push(Part::Call(name.clone()));
                self.call = Call::named(name);
                Some(true)
            }
            (Some(_), _) if !last => None,
            _ => Some(false),
        }
    }

    fn text(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        let markers = match self.format.map(|format| (format, format.layout())) {
            Some((format, Layout::Object | Layout::List | Layout::Block(_))) => format.markers(),
            _ => &[],
        };
        let frame = self.thoughts.map_or(&[][..], ThoughtFormat::frame);
        let all = || markers.iter().chain(frame);
        // The first marker. Of two at the same place, the longer one.
        let found = all()
            .filter_map(|marker| Some((self.pending.find(marker)?, std::cmp::Reverse(marker.len()), *marker)))
            .min()
            .map(|(at, _, marker)| (at, marker));
        let certain = match found {
            // White space before calls is not part of the text.
            Some((at, _)) => trimmed_len(&self.pending[..at]),
            None if !last => all().map(|marker| certain_len(&self.pending, marker)).min().unwrap_or(self.pending.len()),
            None => self.pending.len(),
        };
        say(self.pending[..certain].to_owned(), parts);
        let Some((at, marker)) = found else {
            self.pending.drain(..certain);
            return false;
        };
        let source: String = self.pending.drain(..at + marker.len()).collect();
        if !frame.contains(&marker) {
            self.source = source[certain..].to_owned();
            self.state = match self.format.map(ToolFormat::layout) {
                Some(Layout::Block(_)) => State::Block,
                _ => State::BeginCall,
            };
        }
        true
    }

    /// Reads text that is not JSON, up to the marker that ends it.
    fn block(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        let Some((format, Layout::Block(end))) = self.format.map(|format| (format, format.layout())) else {
            return self.no_call(parts);
        };
        // A string in the block may contain the marker.
        let mut from = self.searched.saturating_sub(end.len() - 1);
        while !self.pending.is_char_boundary(from) {
            from -= 1;
        }
        let ends = self.pending[from..].match_indices(end).map(|(at, _)| (from + at, from + at + end.len()));
        let ends: Vec<_> = ends.filter(|(_, to)| *to > self.searched).collect();
        self.failed += ends.len();
        let calls = ends
            .into_iter()
            .find_map(|(at, to)| Some((notation::parse(format, &self.pending[..at], &self.strings)?, to)))
            .or_else(|| last.then(|| notation::parse_cut(format, &self.pending, &self.strings)).flatten());
        let Some((calls, to)) = calls else {
            self.searched = self.pending.len();
            let has_ended = last || self.pending.len() > MAX_BLOCK || self.failed > MAX_ENDS;
            return has_ended && self.no_call(parts);
        };
        for (name, arguments) in calls {
            parts.push(Part::Call(name));
            parts.push(Part::Arguments(serde_json::Value::Object(arguments).to_string()));
        }
        self.source.clear();
        (self.searched, self.failed) = (0, 0);
        self.pending.drain(..to);
        self.state = State::Between;
        true
    }

    /// Reads the beginning of a call: an object, a list of objects, or a name.
    fn begin_call(&mut self, parts: &mut Vec<Part>) -> bool {
        let space = self.pending.len() - self.pending.trim_start_matches(|c: char| c.is_whitespace()).len();
        let rest = &self.pending[space..];
        let named = self.format == Some(ToolFormat::Mistral) && !rest.starts_with(['{', '[']);
        match rest.chars().next() {
            None => return false,
            Some('{') => self.call = Call::default(),
            // A list without calls.
            Some(']') if self.source.ends_with('[') => {
                self.source.clear();
                self.state = State::Between;
                return true;
            }
            Some('[') if self.format.map(ToolFormat::layout) == Some(Layout::List) => {
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
        (self.searched, self.failed) = (0, 0);
        if self.format == Some(ToolFormat::Llama) {
            self.format = None;
        }
        self.state = State::Text;
        true
    }

    /// Reads the end of a call and looks for the next one.
    fn between(&mut self, last: bool) -> bool {
        let Some(format) = self.format else { return self.no_call(&mut Vec::new()) };
        let is_marked = matches!(format.layout(), Layout::Object | Layout::Block(_));
        let next = if is_marked { format.markers()[0] } else { "{" };
        let ends = format.ends();
        let (mut rest, mut named) = (self.pending.trim_start(), false);
        while let Some((end, after)) = ends.iter().find_map(|end| Some((*end, rest.strip_prefix(end)?))) {
            // Mistral's marker may separate calls, and a name may follow it.
            named |= format == ToolFormat::Mistral && format.markers().contains(&end);
            rest = after.trim_start();
        }
        let starts = [next].iter().chain(ends).any(|token| token.starts_with(rest));
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
        if follows && is_marked {
            self.pending.drain(..next.len());
            self.source = next.to_owned();
        }
        self.state = match format.layout() {
            _ if !follows => State::Text,
            Layout::Block(_) => State::Block,
            _ => State::BeginCall,
        };
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
    trimmed_len(&text[..text.len() - partial_len(text, marker)])
}

/// The length of the beginning of `marker` at the end of `text`.
pub(super) fn partial_len(text: &str, marker: &str) -> usize {
    let begins = |len: &usize| marker.is_char_boundary(*len) && text.ends_with(&marker[..*len]);
    (1..marker.len()).rev().find(begins).unwrap_or(0)
}

/// The length of `text` without the white space at its end. Only the last [`MAX_SPACE`] characters count, so that endless
/// white space is not held back.
fn trimmed_len(text: &str) -> usize {
    let space = text.chars().rev().take(MAX_SPACE).take_while(|c| c.is_whitespace());
    text.len() - space.map(char::len_utf8).sum::<usize>()
}
