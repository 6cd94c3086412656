//! Parses the object of one tool call, character by character.

/// The effect of a character on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The character is part of the call, and more follow.
    More,
    /// The character completes the call.
    Done,
    /// The character cannot occur here.
    Broken,
}

/// Parses an object with a name and arguments. Other members are ignored.
#[derive(Clone, Debug, Default)]
pub(super) struct Call {
    state: State,
    /// Raw text of the string or value being read.
    raw: String,
    key: String,
    in_string: bool,
    escaped: bool,
    depth: usize,
    /// Whether the arguments come alone, without an object around them.
    is_bare: bool,
    /// The tool's name, once it is read.
    pub name: Option<String>,
    /// Raw text of the arguments that has not been taken yet.
    pub arguments: String,
    /// Whether any arguments were read.
    pub has_arguments: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Begin,
    Key,
    Colon,
    Value,
    InValue,
    Comma,
    Done,
}

impl Call {
    /// A call whose name is read already and whose arguments follow.
    pub fn named(name: String) -> Self {
        Call { state: State::Value, key: "arguments".into(), name: Some(name), is_bare: true, ..Call::default() }
    }

    /// Reads a character.
    pub fn push(&mut self, c: char) -> Progress {
        match self.state {
            State::Begin if c == '{' => self.state = State::Key,
            State::Key if c == '"' || self.in_string => {
                if self.text(c) {
                    self.key = serde_json::from_str(&self.raw).unwrap_or_default();
                    self.raw.clear();
                    self.state = State::Colon;
                }
            }
            State::Colon if c == ':' => self.state = State::Value,
            State::Key | State::Comma if c == '}' => return self.done(),
            State::Comma if c == ',' => self.state = State::Key,
            State::Value if !c.is_whitespace() && (!self.is_bare || c == '{') => {
                self.state = State::InValue;
                return self.value(c);
            }
            State::InValue => return self.value(c),
            _ if c.is_whitespace() => {}
            _ => return Progress::Broken,
        }
        Progress::More
    }

    fn done(&mut self) -> Progress {
        self.state = State::Done;
        Progress::Done
    }

    /// Reads a character of a string. Returns true at the closing quote.
    fn text(&mut self, c: char) -> bool {
        self.raw.push(c);
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' if self.in_string => {
                self.in_string = false;
                return true;
            }
            '"' => self.in_string = true,
            _ => {}
        }
        false
    }

    fn value(&mut self, c: char) -> Progress {
        let ends = if self.in_string || c == '"' {
            self.text(c) && self.depth == 0
        } else if self.depth == 0 && (matches!(c, ',' | '}') || c.is_whitespace()) {
            // This character ends a number or a word and is not part of it.
            self.take_value();
            return self.push(c);
        } else {
            self.raw.push(c);
            match c {
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            matches!(c, '}' | ']') && self.depth == 0
        };
        if ["arguments", "parameters"].contains(&self.key.as_str()) {
            self.has_arguments = true;
            self.arguments.push(c);
        }
        if ends {
            self.take_value();
            if self.is_bare {
                return self.done();
            }
        }
        Progress::More
    }

    fn take_value(&mut self) {
        if ["name", "tool_name"].contains(&self.key.as_str()) {
            self.name = serde_json::from_str(&self.raw).ok();
        }
        self.raw.clear();
        self.state = State::Comma;
    }
}
