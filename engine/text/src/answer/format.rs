//! The formats in which models write tool calls.

use std::fmt;

/// A format in which models write tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>`, an object with `name` and `arguments`, `</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// An object with `name` and `parameters` in place of text, possibly after `<|python_tag|>`. Several calls are
    /// separated by semicolons: Llama 3.1 to 3.3.
    Llama,
    /// `[TOOL_CALLS]`, followed by a list of objects with `name` and `arguments`, or by a name and its arguments:
    /// Mistral.
    Mistral,
}

impl ToolFormat {
    /// All formats.
    pub const ALL: [ToolFormat; 3] = [ToolFormat::Hermes, ToolFormat::Llama, ToolFormat::Mistral];

    /// vLLM's name of the format.
    pub const fn name(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "hermes",
            ToolFormat::Llama => "llama3_json",
            ToolFormat::Mistral => "mistral",
        }
    }

    /// The format that a chat template shows. `None` if it shows another format or none. `mentions` tells whether the
    /// template contains a string.
    pub fn of_template(mentions: impl Fn(&str) -> bool) -> Option<Self> {
        // Formats of other models that begin similarly.
        if mentions("<function=") || mentions("<arg_key>") || mentions("<｜tool") {
            return None;
        }
        let shows = [
            (ToolFormat::Hermes, mentions("<tool_call>")),
            (ToolFormat::Mistral, mentions("[TOOL_CALLS]")),
            (ToolFormat::Llama, mentions("python_tag") || mentions("\"parameters\": dictionary")),
        ];
        shows.into_iter().find(|(_, shows)| *shows).map(|(format, _)| format)
    }

    /// The marker before calls.
    pub(super) const fn marker(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "<tool_call>",
            ToolFormat::Llama => "<|python_tag|>",
            ToolFormat::Mistral => "[TOOL_CALLS]",
        }
    }

    /// Whether the marker before calls is a special token. Special tokens must then be part of the text.
    pub const fn shows_special_tokens(self) -> bool {
        !matches!(self, ToolFormat::Hermes)
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for ToolFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = Self::ALL.map(ToolFormat::name).join(", ");
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or(format!("{name:?} is not one of {all}"))
    }
}
