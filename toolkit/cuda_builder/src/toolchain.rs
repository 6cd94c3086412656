//! Finding a compiler that can compile kernels.
//!
//! Any recent release of rustc can, if it has the sources of its standard library. The build compiles `core` from
//! source with the flags that kernels need. The target's precompiled `core` is not used, because it was compiled
//! without these flags.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, RUSTC_VARIABLE};

/// A compiler with the sources of its standard library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    rustc: PathBuf,
    cargo: PathBuf,
    sources: PathBuf,
    version: String,
}

impl Toolchain {
    /// Looks for a compiler in this order: the one in [`RUSTC_VARIABLE`] (an error if it has no sources), the active
    /// one, and the system's.
    pub fn find() -> Result<Option<Toolchain>, Error> {
        if let Some(rustc) = env::var_os(RUSTC_VARIABLE).filter(|v| !v.is_empty()) {
            let rustc = PathBuf::from(rustc);
            return match Toolchain::at(&rustc) {
                Some(toolchain) => Ok(Some(toolchain)),
                None => Err(Error::NoSources { rustc }),
            };
        }
        // Cargo tells build scripts which compiler is active.
        let active = env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        let system = PathBuf::from("/usr/bin/rustc");
        Ok([active, system].iter().find_map(|rustc| Toolchain::at(rustc)))
    }

    /// Returns the toolchain of this compiler, or `None` if it lacks the standard library's sources.
    pub fn at(rustc: &Path) -> Option<Toolchain> {
        let ask = |arguments: &[&str]| {
            let mut command = Command::new(rustc);
            // An outer cargo sets this variable. With its libraries, this compiler would report the outer compiler's
            // identity.
            command.args(arguments).env_remove("LD_LIBRARY_PATH");
            let output = command.output().ok().filter(|o| o.status.success())?;
            String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
        };
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
        let sources = sysroot.join("lib/rustlib/src/rust");
        if !sources.join("library/core/src/lib.rs").is_file() {
            return None;
        }
        // Uses the toolchain's own programs instead of rustup's proxies, which choose a toolchain by the current
        // directory. Cargo reads the standard library's lock file, so its version should match the library's.
        let own = |name: &str| Some(sysroot.join("bin").join(name)).filter(|path| path.is_file());
        Some(Toolchain {
            rustc: own("rustc").unwrap_or_else(|| rustc.to_owned()),
            cargo: own("cargo").or_else(|| env::var_os("CARGO").map(PathBuf::from)).unwrap_or_else(|| "cargo".into()),
            sources,
            version: ask(&["--version"])?,
        })
    }

    /// Returns the path of the compiler.
    pub fn rustc(&self) -> &Path {
        &self.rustc
    }

    /// Returns the path of the cargo to run the compiler with.
    pub fn cargo(&self) -> &Path {
        &self.cargo
    }

    /// Returns the directory of the Rust sources, which contains the standard library.
    pub fn sources(&self) -> &Path {
        &self.sources
    }

    /// Returns the output of `rustc --version`.
    pub fn version(&self) -> &str {
        &self.version
    }
}
