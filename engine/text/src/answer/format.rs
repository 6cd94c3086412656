//! The formats in which models write tool calls.

use std::fmt;

/// A format in which models write tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>`, an object with `name` and `arguments`, `</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM3.
    Hermes,
    /// An object with `name` and `parameters` in place of text, possibly after `<|python_tag|>`. Several calls are
    /// separated by semicolons: Llama 3.1 to 3.3.
    Llama,
    /// `[TOOL_CALLS]`, followed by a list of objects with `name` and `arguments`, or by a name and its arguments:
    /// Mistral.
    Mistral,
    /// `<|tool_call|>` or `<tool_call>`, followed by a list of objects with `name` and `arguments`: Granite 3.
    Granite,
    /// `<|START_ACTION|>`, a list of objects with `tool_call_id`, `tool_name` and `parameters`, `<|END_ACTION|>`:
    /// Command R7B.
    Cohere,
    /// `<|tool_call|>` or `functools`, followed by a list of objects with `name` and `arguments`, possibly before
    /// `<|/tool_call|>`: Phi-4-mini.
    Phi4,
    /// A tool's name in place of text, then its arguments on the next line: GLM-4.
    Glm4,
    /// `<|tool_call>call:`, a name and arguments in a notation of its own, `<tool_call|>`: Gemma 4.
    Gemma4,
    /// `<function_calls>`, a call in Python's syntax on each line, `</function_calls>`: OLMo 3.
    Olmo3,
    /// `<|tool_call_start|>`, a list of calls in Python's syntax, `<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `<tool_call>`, `<function=name>`, a `<parameter=name>` for each argument, `</function>`, `</tool_call>`: Qwen3-Coder,
    /// Qwen3.5.
    Qwen3Coder,
    /// A message whose header names the tool, and whose contents are the arguments: gpt-oss.
    Harmony,
}

/// How a format presents calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// A marker, then one object.
    Object,
    /// A marker, then a list of objects. Mistral's models may write a name and an object instead.
    List,
    /// An object in place of text.
    Bare,
    /// A name and an object in place of text.
    Named,
    /// A marker, then text that is not JSON, up to this marker.
    Block(&'static str),
    /// A message.
    Message,
}

impl ToolFormat {
    /// All formats.
    pub const ALL: [ToolFormat; 12] = [
        ToolFormat::Hermes,
        ToolFormat::Llama,
        ToolFormat::Mistral,
        ToolFormat::Granite,
        ToolFormat::Cohere,
        ToolFormat::Phi4,
        ToolFormat::Glm4,
        ToolFormat::Gemma4,
        ToolFormat::Olmo3,
        ToolFormat::Lfm2,
        ToolFormat::Qwen3Coder,
        ToolFormat::Harmony,
    ];

    /// vLLM's name of the format. The names `glm4` and `lfm2` are Quire's.
    pub const fn name(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "hermes",
            ToolFormat::Llama => "llama3_json",
            ToolFormat::Mistral => "mistral",
            ToolFormat::Granite => "granite",
            ToolFormat::Cohere => "cohere_command3",
            ToolFormat::Phi4 => "phi4_mini_json",
            ToolFormat::Glm4 => "glm4",
            ToolFormat::Gemma4 => "gemma4",
            ToolFormat::Olmo3 => "olmo3",
            ToolFormat::Lfm2 => "lfm2",
            ToolFormat::Qwen3Coder => "qwen3_coder",
            ToolFormat::Harmony => "openai",
        }
    }

    /// The format that a chat template shows. `None` if it shows another format or none. `mentions` tells whether the
    /// template contains a string.
    pub fn of_template(mentions: impl Fn(&str) -> bool) -> Option<Self> {
        let is_coder = mentions("<function=") && mentions("<parameter=") && mentions("<tool_call>");
        // Formats of other models that begin similarly.
        if mentions("<function=") && !is_coder || mentions("<arg_key>") || mentions("<｜tool") {
            return None;
        }
        let shows = [
            (ToolFormat::Harmony, mentions("<|channel|>commentary") && mentions("<|call|>")),
            (ToolFormat::Gemma4, mentions("<|tool_call>")),
            (ToolFormat::Qwen3Coder, is_coder),
            (ToolFormat::Lfm2, mentions("<|tool_call_start|>") || mentions("<|tool_list_start|>")),
            (ToolFormat::Cohere, mentions("<|START_ACTION|>")),
            (ToolFormat::Olmo3, mentions("<function_calls>")),
            (ToolFormat::Phi4, mentions("<|/tool|>") || mentions("functools")),
            // Granite 4 closes its calls, as Hermes does.
            (ToolFormat::Granite, mentions("<|start_of_role|>") && !mentions("</tool_call>")),
            (ToolFormat::Hermes, mentions("<tool_call>")),
            (ToolFormat::Mistral, mentions("[TOOL_CALLS]")),
            (ToolFormat::Llama, mentions("python_tag") || mentions("\"parameters\": dictionary")),
            (ToolFormat::Glm4, mentions("<|observation|>")),
        ];
        shows.into_iter().find(|(_, shows)| *shows).map(|(format, _)| format)
    }

    /// The markers before calls. A model may use any of them.
    pub(super) const fn markers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &["<tool_call>"],
            ToolFormat::Llama => &["<|python_tag|>"],
            ToolFormat::Mistral => &["[TOOL_CALLS]"],
            ToolFormat::Granite => &["<|tool_call|>", "<tool_call>"],
            ToolFormat::Cohere => &["<|START_ACTION|>"],
            ToolFormat::Phi4 => &["<|tool_call|>", "functools"],
            ToolFormat::Glm4 | ToolFormat::Harmony => &[],
            ToolFormat::Gemma4 => &["<|tool_call>"],
            ToolFormat::Olmo3 => &["<function_calls>"],
            ToolFormat::Lfm2 => &["<|tool_call_start|>"],
            ToolFormat::Qwen3Coder => &["<tool_call>"],
        }
    }

    /// The texts that may follow a call besides white space. They are not part of the answer.
    pub(super) const fn ends(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &["</tool_call>"],
            ToolFormat::Llama => &[";"],
            ToolFormat::Mistral => &[",", "]", "[TOOL_CALLS]"],
            ToolFormat::Granite => &[",", "]", "</tool_call>"],
            ToolFormat::Cohere => &[",", "]", "<|END_ACTION|>"],
            ToolFormat::Phi4 => &[",", "]", "<|/tool_call|>"],
            ToolFormat::Glm4
            | ToolFormat::Gemma4
            | ToolFormat::Olmo3
            | ToolFormat::Lfm2
            | ToolFormat::Qwen3Coder
            | ToolFormat::Harmony => &[],
        }
    }

    pub(super) const fn layout(self) -> Layout {
        match self {
            ToolFormat::Hermes => Layout::Object,
            ToolFormat::Llama => Layout::Bare,
            ToolFormat::Mistral | ToolFormat::Granite | ToolFormat::Cohere | ToolFormat::Phi4 => Layout::List,
            ToolFormat::Glm4 => Layout::Named,
            ToolFormat::Gemma4 => Layout::Block("<tool_call|>"),
            ToolFormat::Olmo3 => Layout::Block("</function_calls>"),
            ToolFormat::Lfm2 => Layout::Block("<|tool_call_end|>"),
            ToolFormat::Qwen3Coder => Layout::Block("</tool_call>"),
            ToolFormat::Harmony => Layout::Message,
        }
    }

    /// Whether the marker before calls is a special token. Special tokens must then be part of the text.
    pub const fn shows_special_tokens(self) -> bool {
        !matches!(self, ToolFormat::Hermes | ToolFormat::Glm4 | ToolFormat::Olmo3 | ToolFormat::Qwen3Coder)
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
