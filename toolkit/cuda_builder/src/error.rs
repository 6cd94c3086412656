//! The errors of this crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use crate::{RUSTC_VARIABLE, SOURCE_VARIABLE};

/// The reason why a build failed. `Debug` prints the same sentence as `Display`, for `unwrap` in build scripts.
pub enum Error {
    /// A file could not be read or written, or a program could not be started.
    Io {
        /// The file or program.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The environment variable has an unknown value.
    UnknownSource,
    /// Prebuilt PTX was requested, but it was not made from these sources.
    Stale {
        /// The file that is stale, or missing.
        prebuilt: PathBuf,
    },
    /// The prebuilt PTX was not made from these sources, and no compiler was found.
    NoToolchain {
        /// The file that is stale, or missing.
        prebuilt: PathBuf,
    },
    /// The compiler in the environment variable lacks the sources of the standard library.
    NoSources {
        /// The compiler.
        rustc: PathBuf,
    },
    /// Outside a build script, the target directory must be given.
    NoTargetDir,
    /// Cargo cannot resolve the crate's dependencies.
    Unresolved {
        /// The crate's directory.
        crate_dir: PathBuf,
        /// Cargo's error message.
        said: String,
    },
    /// Cargo failed, and has printed the reason.
    Failed(ExitStatus),
    /// The manifest or the PTX is not as expected.
    Unexpected(String),
}

impl Error {
    /// Returns a function for `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}

/// How to install a compiler for kernels, for the end of a sentence.
const REMEDY: &str = "install the standard library's sources (`rustup component add rust-src`, or on Debian \
                      `apt install rustc-web rust-web-src`)";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Error::UnknownSource => write!(f, "{SOURCE_VARIABLE} must be `auto`, `build` or `prebuilt`"),
            Error::Stale { prebuilt } => {
                write!(f, "{} was not made from these kernel sources, and {SOURCE_VARIABLE}", prebuilt.display())?;
                write!(
                    f,
                    " asks for prebuilt PTX (in Quire's repository `cargo run -p quire-cuda-builder` compiles it again)"
                )
            }
            Error::NoToolchain { prebuilt } => {
                if prebuilt.exists() {
                    write!(f, "{} was not made from these kernel sources, and ", prebuilt.display())?;
                }
                write!(
                    f,
                    "no compiler for kernels was found: {REMEDY}, or name a rustc that has them in {RUSTC_VARIABLE}"
                )
            }
            Error::NoSources { rustc } => {
                write!(f, "{}, named by {RUSTC_VARIABLE}, cannot compile kernels: {REMEDY}", rustc.display())
            }
            Error::NoTargetDir => write!(f, "outside a build script, a target directory must be given"),
            Error::Unresolved { crate_dir, said } => {
                write!(f, "cargo cannot resolve the dependencies of {}: {said}", crate_dir.display())
            }
            Error::Failed(status) => write!(f, "the kernels do not compile ({status}): see cargo's errors above"),
            Error::Unexpected(what) => f.write_str(what),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
