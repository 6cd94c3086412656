//! What can go wrong.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use crate::{RUSTC_VARIABLE, SOURCE_VARIABLE};

/// The reason why a build failed. `Debug` prints the same sentence as `Display`, for `unwrap` in build scripts.
pub enum Error {
    /// A file could not be read or written, or a program not be started.
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The environment variable has none of its values.
    UnknownSource,
    /// Prebuilt PTX was asked for, and is not of these sources.
    Stale {
        /// The file that is stale, or missing.
        prebuilt: PathBuf,
    },
    /// The prebuilt PTX is not of these sources, and there is no compiler.
    NoToolchain {
        /// The file that is stale, or missing.
        prebuilt: PathBuf,
    },
    /// The compiler named by the environment has no sources of the standard library.
    NoSources {
        /// The compiler.
        rustc: PathBuf,
    },
    /// Outside of a build script the target directory must be given.
    NoTargetDir,
    /// Cargo does not find what the crate depends on.
    Unresolved {
        /// The crate.
        crate_dir: PathBuf,
        /// What cargo says.
        said: String,
    },
    /// Cargo has said why.
    Failed(ExitStatus),
    /// The manifest or the PTX is not as expected.
    Unexpected(String),
}

impl Error {
    /// For `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}

/// What gives a machine a compiler for kernels, in a sentence's end.
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
                    " asks for prebuilt PTX (in Quire's repository `cargo run -p quire-cuda-builder` makes it anew)"
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
            Error::NoTargetDir => write!(f, "outside of a build script a target directory must be given"),
            Error::Unresolved { crate_dir, said } => {
                write!(f, "cargo cannot tell what {} depends on: {said}", crate_dir.display())
            }
            Error::Failed(status) => write!(f, "the kernels do not compile ({status}); cargo says why above"),
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
