//! Errors of PTX texts.

/// An error in a PTX text, or a form of PTX that the emulator does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct ParseError {
    /// Line of the PTX text, counted from one.
    pub line: u32,
    /// A description of the error. It names the opcode if an instruction is at fault.
    pub message: String,
    /// Whether the text is valid, but uses a form that the emulator does not support.
    pub(crate) is_form: bool,
}

impl ParseError {
    /// Creates an error in the text.
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self { line, message: message.into(), is_form: false }
    }

    /// Creates an error for a form that the emulator does not support.
    pub(crate) fn form(line: u32, message: impl Into<String>) -> Self {
        Self { is_form: true, ..Self::new(line, message) }
    }
}
