//! Why a PTX text was refused.

/// Why a PTX text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct ParseError {
    /// Line of the PTX text, counted from one.
    pub line: u32,
    /// What is wrong with it; for an instruction, its opcode is named.
    pub message: String,
    /// Whether the text is right, and asks for a form that the emulator does not have.
    pub(crate) is_form: bool,
}

impl ParseError {
    /// What is wrong with the text.
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self { line, message: message.into(), is_form: false }
    }

    /// A form that the emulator does not have.
    pub(crate) fn form(line: u32, message: impl Into<String>) -> Self {
        Self { is_form: true, ..Self::new(line, message) }
    }
}
