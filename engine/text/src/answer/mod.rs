//! Splits an output's text into thoughts, text and tool calls, as it is generated.
//!
//! Models write tool calls and thoughts in different formats, which their chat templates show. [`ToolFormat`] and
//! [`ThoughtFormat`] list the supported ones. An [`AnswerReader`] receives an output's text piece by piece and returns [`Part`]s. Text whose meaning is
//! not certain yet is held back. The parts are the same however the text is cut into pieces.

mod call;
mod format;
mod grammar;
mod marked;
mod messages;
mod notation;
mod part;
mod reader;
mod thoughts;

pub use format::ToolFormat;
pub use grammar::{Tool, calls, calls_or_document};
pub use part::Part;
pub use reader::AnswerReader;
pub use thoughts::ThoughtFormat;
