//! How outputs become messages.

use engine::tools::answer::{AnswerReader, Part, ToolFormat};

/// How outputs become messages. Each choice of a request begins with a clone.
#[derive(Clone, Debug)]
pub struct AnswerForm {
    /// The format of the model's tool calls, if tools may be called.
    pub format: Option<ToolFormat>,
    /// Whether the request names the tool to call. The finish reason of such a call is `stop`.
    pub is_named: bool,
    /// Splits the output into parts.
    reader: AnswerReader,
    /// Whether reasoning is part of the answer.
    shows_thoughts: bool,
    /// Whether the answer may have several calls. Otherwise the beginning of a second call ends it.
    is_parallel: bool,
    /// Calls read so far.
    calls: usize,
}

impl AnswerForm {
    /// Creates the form of answers that `reader` splits.
    pub fn new(reader: AnswerReader, shows_thoughts: bool) -> Self {
        AnswerForm { format: None, is_named: false, reader, shows_thoughts, is_parallel: true, calls: 0 }
    }

    /// Returns the form of answers that may call tools in this format.
    pub fn with_calls(self, format: ToolFormat, is_named: bool, is_parallel: bool) -> Self {
        AnswerForm { format: Some(format), is_named, is_parallel, ..self }
    }

    /// Adds text and returns the parts of the answer that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let parts = self.reader.push(text);
        self.kept(parts)
    }

    /// Returns the remaining parts at the end of the output.
    pub fn finish(&mut self) -> Vec<Part> {
        let parts = self.reader.finish();
        self.kept(parts)
    }

    /// Whether the answer ended before its output, which continues with calls that are not part of the answer.
    pub fn is_over(&self) -> bool {
        !self.is_parallel && self.calls > 1
    }

    fn kept(&mut self, mut parts: Vec<Part>) -> Vec<Part> {
        parts.retain(|part| {
            self.calls += usize::from(matches!(part, Part::Call(_)));
            !self.is_over() && (self.shows_thoughts || !matches!(part, Part::Thought(_)))
        });
        parts
    }
}
