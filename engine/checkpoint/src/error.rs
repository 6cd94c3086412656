//! The error type shared by the engine's crates.

use std::fmt;
use std::path::{Path, PathBuf};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in the library. Each message is one sentence that a user can act on. Causes are
/// available through [`std::error::Error::source`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The path that was being read.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The path that was being written.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// `config.json` or `generation_config.json` does not describe a model that can be run.
    #[error("invalid model configuration: {0}")]
    Config(String),
    /// The model is valid but of a kind this engine does not implement.
    #[error("unsupported model: {0}")]
    Unsupported(String),
    /// A weight file is damaged, or disagrees with the configuration.
    #[error("invalid weights in {}: {reason}", path.display())]
    Weights {
        /// The weight file, or the model directory when no single file is at fault.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An adapter's file is damaged, does not fit the model, or asks for something that this engine does not implement.
    #[error("cannot use the adapter {}: {reason}", path.display())]
    Adapter {
        /// The adapter's directory or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer files are missing or damaged, or a text cannot be encoded.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A request asks for something impossible. The engine can still serve other requests.
    #[error("invalid request: {0}")]
    Request(Refusal),
    /// An engine option is out of range.
    #[error("invalid option: {0}")]
    Option(String),
    /// No GPU can be used.
    #[error("no GPU can be used: {0}")]
    Device(String),
    /// The GPU or its driver failed. The current computation is lost.
    #[error("the GPU failed")]
    Gpu(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is not enough memory for the request.
    #[error("not enough memory: {0}")]
    Memory(String),
    /// The model computed logits that are NaN or infinite, so no token can be chosen.
    #[error("the model computed logits that are not numbers: its weights are damaged, or too large for their type")]
    NotANumber,
    /// A model could not be found on, or fetched from, the hub.
    #[error("{0}")]
    Hub(String),
}

/// Prints the sentence and its causes, because this is what a program prints whose `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

/// The reason for refusing a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field at fault: a field of the request's sampling parameters, `beam_width` or `prompt`. `None` if no single
    /// field is at fault.
    pub field: Option<&'static str>,
    /// The reason in words. It refers to fields by the names above.
    pub why: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl Error {
    /// Creates an [`Error::Request`] about `field`.
    pub fn request(field: &'static str, why: impl Into<String>) -> Self {
        Error::Request(Refusal { field: Some(field), why: why.into() })
    }

    /// Creates an [`Error::Io`] about `path`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Error::Io { path: path.as_ref().to_path_buf(), source }
    }

    /// Creates an [`Error::Adapter`] about `path`.
    pub fn adapter(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        Error::Adapter { path: path.as_ref().to_path_buf(), reason: reason.into() }
    }

    /// Creates an [`Error::Weights`] about `path`.
    pub fn weights(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        Error::Weights { path: path.as_ref().to_path_buf(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_returns_the_error_prints_a_sentence_with_its_cause() {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "there is no such file");
        let error = Error::Io { path: "model/config.json".into(), source };
        assert_eq!(format!("{error:?}"), "cannot read model/config.json: there is no such file");
    }
}
