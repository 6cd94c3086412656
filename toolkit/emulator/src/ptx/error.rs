//! Why a PTX text was refused.

/// Why a PTX text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct ParseError {
    /// Line of the PTX text, counted from one.
    pub line: u32,
    /// What is wrong with it; for an instruction, its opcode is named.
    pub message: String,
}

impl ParseError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}
