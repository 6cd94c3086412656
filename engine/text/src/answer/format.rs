//! The forms in which models write calls of tools.

use std::fmt;

/// A form in which models write calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>`, an object with `name` and `arguments`, `</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// An object with `name` and `parameters` in place of a text, maybe after `<|python_tag|>`; several with semicolons
    /// between them: Llama 3.1 to 3.3.
    Llama,
    /// `[TOOL_CALLS]` and a list of objects with `name` and `arguments`, or a name and its arguments: Mistral.
    Mistral,
}

impl ToolFormat {
    /// All of them.
    pub const ALL: [ToolFormat; 3] = [ToolFormat::Hermes, ToolFormat::Llama, ToolFormat::Mistral];

    /// vLLM's name of the form.
    pub const fn name(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "hermes",
            ToolFormat::Llama => "llama3_json",
            ToolFormat::Mistral => "mistral",
        }
    }

    /// The form that a chat template shows; nothing if it is none of these. `mentions` says whether a text is in the template.
    pub fn of_template(mentions: impl Fn(&str) -> bool) -> Option<Self> {
        // Those of other models, which begin alike.
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

    /// What comes before calls.
    pub(super) const fn marker(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "<tool_call>",
            ToolFormat::Llama => "<|python_tag|>",
            ToolFormat::Mistral => "[TOOL_CALLS]",
        }
    }

    /// Whether what comes before calls is a special token, so that special tokens must be shown in the text.
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
        let known = Self::ALL.map(ToolFormat::name).join(", ");
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or(format!("{name:?} is none of {known}"))
    }
}
