//! What an answer says: the text of an output taken apart into thoughts, text and calls of tools, as it comes.
//!
//! Models write calls of tools in forms of their own, which their chat templates show: a [`ToolFormat`] is one of them. An
//! [`AnswerReader`] is given an output's text piece by piece and gives [`Part`]s. What may turn out to be something else is
//! held back until that is known; the parts are the same however the text is cut into pieces.

mod call;
mod format;
mod grammar;
mod reader;

pub use format::ToolFormat;
pub use grammar::{Tool, calls};
pub use reader::{AnswerReader, Part};
