//! The formats in which models write thoughts before their answers.

use crate::constraint::Thoughts;

/// A format in which models write thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThoughtFormat {
    /// `<think>` and `</think>`.
    Think,
    /// As [`ThoughtFormat::Think`], with `<response>` and `</response>` around the answer: Granite 3.3.
    Granite,
    /// `Here is my thought process:` and `Here is my response:`: Granite 3.2.
    Granite32,
    /// `<|START_THINKING|>` and `<|END_THINKING|>`, with markers around the answer too: Command R7B.
    Cohere,
    /// `<|channel>thought` and `<channel|>`: Gemma 4.
    Gemma4,
    /// Messages in the channel `analysis`: gpt-oss.
    Harmony,
}

impl ThoughtFormat {
    /// The format that a chat template shows. `mentions` tells whether the template contains a string.
    pub fn of_template(mentions: impl Fn(&str) -> bool) -> Option<Self> {
        let shows = [
            (ThoughtFormat::Harmony, mentions("<|channel|>analysis")),
            (ThoughtFormat::Cohere, mentions("<|END_THINKING|>")),
            (ThoughtFormat::Gemma4, mentions("<channel|>")),
            (ThoughtFormat::Granite, mentions("</think>") && mentions("<response>")),
            (ThoughtFormat::Granite32, mentions("Here is my thought process:")),
            (ThoughtFormat::Think, mentions("</think>")),
        ];
        shows.into_iter().find(|(_, shows)| *shows).map(|(format, _)| format)
    }

    /// The text before thoughts.
    pub const fn open(self) -> &'static str {
        match self {
            ThoughtFormat::Think | ThoughtFormat::Granite => "<think>",
            ThoughtFormat::Granite32 => "Here is my thought process:",
            ThoughtFormat::Cohere => "<|START_THINKING|>",
            ThoughtFormat::Gemma4 => "<|channel>thought\n",
            ThoughtFormat::Harmony => "<|channel|>analysis<|message|>",
        }
    }

    /// The token that begins thoughts, as text.
    pub const fn open_token(self) -> &'static str {
        match self {
            ThoughtFormat::Gemma4 => "<|channel>",
            ThoughtFormat::Harmony => "<|channel|>",
            other => other.open(),
        }
    }

    /// The text after thoughts. It is a single token, except Granite 3.2's.
    pub const fn close(self) -> &'static str {
        match self {
            ThoughtFormat::Think | ThoughtFormat::Granite => "</think>",
            ThoughtFormat::Granite32 => "Here is my response:",
            ThoughtFormat::Cohere => "<|END_THINKING|>",
            ThoughtFormat::Gemma4 => "<channel|>",
            ThoughtFormat::Harmony => "<|end|>",
        }
    }

    /// Markers around the answer. They are not part of it.
    pub(super) const fn frame(self) -> &'static [&'static str] {
        match self {
            ThoughtFormat::Granite => &["<response>", "</response>"],
            ThoughtFormat::Cohere => &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
            ThoughtFormat::Think | ThoughtFormat::Granite32 | ThoughtFormat::Gemma4 | ThoughtFormat::Harmony => &[],
        }
    }

    /// Whether the markers are special tokens. Special tokens must then be part of the text.
    pub const fn shows_special_tokens(self) -> bool {
        matches!(self, ThoughtFormat::Cohere | ThoughtFormat::Gemma4 | ThoughtFormat::Harmony)
    }

    /// Whether a prompt has already opened the thoughts.
    pub fn is_open(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open().trim_end())
    }

    /// Whether a prompt has already closed the thoughts.
    pub fn is_closed(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.close())
    }

    /// Where an answer to `prompt` begins, relative to the thoughts. `token` returns the id of a token. With `has_tools`, a
    /// call may take the place of the answer.
    pub fn beginning(self, prompt: &str, token: impl Fn(&str) -> Option<u32>, has_tools: bool) -> Thoughts {
        let thoughts = || match self {
            ThoughtFormat::Harmony => {
                let marks = [token("<|channel|>")?, token("final")?, token("<|message|>")?];
                // The message that the prompt has begun.
                let begun = prompt.rsplit_once("<|start|>assistant").map_or("", |(_, begun)| begun);
                let is_answer = |header: &str| header.contains("<|channel|>final");
                let has_ended = |text: &str| ["<|end|>", "<|return|>", "<|call|>"].iter().any(|end| text.contains(end));
                let read = match begun.split_once("<|message|>") {
                    Some((header, text)) if is_answer(header) && !has_ended(text) => return None,
                    Some(_) => 0,
                    None if is_answer(begun) => 2,
                    None => usize::from(begun.ends_with("<|channel|>")),
                };
                let call = if has_tools { token("<|call|>") } else { None };
                Some(Thoughts::Message { marks, read, call })
            }
            _ => {
                let (begin, end) = (token(self.open_token())?, token(self.close())?);
                match self.is_closed(prompt) {
                    _ if self.is_open(prompt) => Some(Thoughts::Until(end)),
                    true => None,
                    false => Some(Thoughts::Possible { begin, end }),
                }
            }
        };
        thoughts().unwrap_or(Thoughts::Over)
    }
}
