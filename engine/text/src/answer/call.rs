//! The object of one call of a tool, read character by character.

/// What a character of a call was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Part of the call.
    More,
    /// Its last character.
    Done,
    /// None that a call can have there.
    Broken,
}

/// Reads an object with a name and arguments. Other members are passed over.
#[derive(Clone, Debug, Default)]
pub(super) struct Call {
    state: State,
    /// The raw text of the string or value that is being read.
    raw: String,
    key: String,
    in_string: bool,
    escaped: bool,
    depth: usize,
    /// Whether the arguments stand by themselves, without an object around them.
    is_bare: bool,
    /// The tool's name, as soon as it is known.
    pub name: Option<String>,
    /// Raw text of the arguments that nobody has taken yet.
    pub arguments: String,
    /// Whether there are arguments.
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
    /// A call of which the name is known and the arguments are to come.
    pub fn of(name: String) -> Self {
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

    /// Reads a character of a string. Whether it was its last.
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
            // The end of a number or a word, which is not part of it.
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
        if self.key == "name" {
            self.name = serde_json::from_str(&self.raw).ok();
        }
        self.raw.clear();
        self.state = State::Comma;
    }
}
