//! Finding a compiler that can compile kernels.
//!
//! Any rustc of a recent release can, with the sources of its standard library: `core` is compiled along, with the
//! flags that kernels need. The target's ready-made `core` does not serve, as it was compiled without them.

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
    /// Looks, in this order, at the compiler that [`RUSTC_VARIABLE`] names (an error if it cannot), the active one, and
    /// the system's.
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

    /// The toolchain of this compiler, if it has the sources.
    pub fn at(rustc: &Path) -> Option<Toolchain> {
        let ask = |arguments: &[&str]| {
            let mut command = Command::new(rustc);
            // An outer cargo's: with its compiler's libraries this one would take itself for that one.
            command.args(arguments).env_remove("LD_LIBRARY_PATH");
            let output = command.output().ok().filter(|o| o.status.success())?;
            String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
        };
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
        let sources = sysroot.join("lib/rustlib/src/rust");
        if !sources.join("library/core/src/lib.rs").is_file() {
            return None;
        }
        // The toolchain's own programs, rather than proxies that choose one by the current directory. Cargo reads the
        // standard library's lock file, and is best as old as that.
        let own = |name: &str| Some(sysroot.join("bin").join(name)).filter(|path| path.is_file());
        Some(Toolchain {
            rustc: own("rustc").unwrap_or_else(|| rustc.to_owned()),
            cargo: own("cargo").or_else(|| env::var_os("CARGO").map(PathBuf::from)).unwrap_or_else(|| "cargo".into()),
            sources,
            version: ask(&["--version"])?,
        })
    }

    /// The compiler.
    pub fn rustc(&self) -> &Path {
        &self.rustc
    }

    /// The cargo to run it with.
    pub fn cargo(&self) -> &Path {
        &self.cargo
    }

    /// The sources of its standard library.
    pub fn sources(&self) -> &Path {
        &self.sources
    }

    /// What `rustc --version` says.
    pub fn version(&self) -> &str {
        &self.version
    }
}
