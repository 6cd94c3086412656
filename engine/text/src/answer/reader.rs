//! Splits an output's text into parts, incrementally.

use super::marked::MarkedReader;
use super::messages::MessageReader;
use super::part::Part;
use super::{ThoughtFormat, Tool, ToolFormat};

/// Splits one output into parts.
#[derive(Clone, Debug)]
pub struct AnswerReader(Reader);

#[derive(Clone, Debug)]
enum Reader {
    /// One text, in which markers separate thoughts and calls.
    Marked(MarkedReader),
    /// Several messages.
    Messages(MessageReader),
}

impl AnswerReader {
    /// A reader for answers of a model with this tool format and these tools, and with thoughts in this format. `None` if
    /// there are no tool calls or no thoughts.
    pub fn new(format: Option<ToolFormat>, names: Vec<String>, thoughts: Option<ThoughtFormat>) -> Self {
        let is_messages = format == Some(ToolFormat::Harmony) || thoughts == Some(ThoughtFormat::Harmony);
        AnswerReader(match is_messages {
            true => Reader::Messages(MessageReader::new(format.is_some())),
            false => Reader::Marked(MarkedReader::new(format, names, thoughts)),
        })
    }

    /// The reader for answers that call these tools. Some formats write strings without quotes, so the schemas decide which
    /// arguments are strings.
    pub fn with_tools(self, tools: &[Tool]) -> Self {
        let Reader::Marked(reader) = self.0 else { return self };
        let strings = tools.iter().flat_map(|tool| {
            let members = tool.parameters.as_ref().and_then(|schema| schema["properties"].as_object());
            let strings = members.into_iter().flatten().filter(|(_, schema)| schema["type"] == "string");
            strings.map(|(argument, _)| (tool.name.clone(), argument.clone()))
        });
        AnswerReader(Reader::Marked(reader.with_strings(strings.collect())))
    }

    /// The reader for an answer to `prompt`, which may already open the thoughts or a message.
    pub fn after(self, prompt: &str) -> Self {
        AnswerReader(match self.0 {
            Reader::Marked(reader) => Reader::Marked(reader.after(prompt)),
            Reader::Messages(reader) => Reader::Messages(reader.after(prompt)),
        })
    }

    /// Adds text and returns the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        match &mut self.0 {
            Reader::Marked(reader) => reader.push(text),
            Reader::Messages(reader) => reader.push(text),
        }
    }

    /// Returns the remaining parts at the end of the output.
    pub fn finish(&mut self) -> Vec<Part> {
        match &mut self.0 {
            Reader::Marked(reader) => reader.finish(),
            Reader::Messages(reader) => reader.finish(),
        }
    }
}
