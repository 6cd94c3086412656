//! Running the compiler. This file decides what the PTX looks like: its text is part of the hash of the inputs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Arch, Error, Toolchain};

/// One run of cargo.
pub struct Job<'a> {
    pub toolchain: &'a Toolchain,
    pub crate_dir: &'a Path,
    pub root: &'a Path,
    pub package: &'a str,
    pub arch: Arch,
    pub features: &'a [String],
    pub target_dir: &'a Path,
}

/// The profile: the whole program as one module, with the lines of the source and no other debug information.
const PROFILE: [&str; 8] = [
    "opt-level=3",
    "lto=\"fat\"",
    "codegen-units=1",
    "panic=\"abort\"",
    "debug=\"line-directives-only\"",
    "debug-assertions=false",
    "overflow-checks=false",
    "strip=\"none\"",
];

impl Job<'_> {
    /// Compiles the crate, and returns what the compiler wrote. Cargo's messages go where this program's errors go.
    pub fn run(&self) -> Result<String, Error> {
        fs::create_dir_all(self.target_dir).map_err(Error::io(self.target_dir))?;
        let target_dir = fs::canonicalize(self.target_dir).map_err(Error::io(self.target_dir))?;
        // A file for each build: cargo does not write it again when nothing has changed since.
        let mut name = vec![self.package.to_owned()];
        name.extend(self.features.iter().cloned());
        let output = target_dir.join(format!("{}.{}.s", name.join("."), self.arch));

        let mut cargo = Command::new(self.toolchain.cargo());
        cargo.args(["rustc", "--lib", "--crate-type=cdylib", "--release", "--target=nvptx64-nvidia-cuda"]);
        cargo.arg("-Zbuild-std=core").arg("--manifest-path").arg(self.crate_dir.join("Cargo.toml"));
        cargo.arg("--target-dir").arg(&target_dir);
        if !self.features.is_empty() {
            cargo.arg("--features").arg(self.features.join(","));
        }
        for setting in PROFILE {
            cargo.arg("--config").arg(format!("profile.release.{setting}"));
        }
        // The PTX is what the compiler writes as assembly, of the whole program; there is nothing to link.
        cargo.arg("--").arg(format!("-Ctarget-cpu={}", self.arch));
        cargo.arg("-Clinker=true").arg("-Clinker-flavor=llbc");
        // What the tensor cores accumulate in is an array in the source, and registers only if every loop over it is
        // unrolled in full, which LLVM would not do by itself to long ones.
        cargo.arg("-Cllvm-args=-unroll-threshold=4096");
        let mut emit = OsString::from("--emit=asm=");
        emit.push(&output);
        cargo.arg(emit);

        clean_environment(&mut cargo);
        cargo.env("RUSTC", self.toolchain.rustc());
        // Stable compilers, too, are to take the unstable options and features that kernels need.
        cargo.env("RUSTC_BOOTSTRAP", "1");
        cargo.env("CARGO_ENCODED_RUSTFLAGS", self.flags()?);
        let status =
            cargo.stdin(Stdio::null()).stdout(Stdio::null()).status().map_err(Error::io(self.toolchain.cargo()))?;
        if !status.success() {
            return Err(Error::Failed(status));
        }
        fs::read_to_string(&output).map_err(Error::io(&output))
    }

    /// Flags for the kernels and for `core`.
    fn flags(&self) -> Result<OsString, Error> {
        // Jump threading copies code into the arms of a branch, barriers and shuffles included: rust-lang/rust#137086.
        let mut flags = OsString::from("-Zmir-enable-passes=-JumpThreading");
        // No machine's paths in the PTX: it is the same wherever it is built, and lines are found below the repository.
        for (from, to) in [(self.root, "."), (self.toolchain.sources(), "/rustc")] {
            flags.push("\x1f--remap-path-prefix=");
            flags.push(from);
            flags.push("=");
            flags.push(to);
        }
        Ok(flags)
    }
}

/// Removes what an outer cargo left for its own children: flags, wrappers, targets, its job server. What says how to
/// reach registries stays.
fn clean_environment(command: &mut Command) {
    const OTHERS: [&str; 13] = [
        "RUSTC",
        "RUSTDOC",
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "TARGET",
        "HOST",
        "PROFILE",
        "MAKEFLAGS",
        "MFLAGS",
        "LD_LIBRARY_PATH",
    ];
    const KEPT: [&str; 5] = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_TERM_"];
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let cargos = text.starts_with("CARGO") && !KEPT.iter().any(|kept| text.starts_with(kept));
        if cargos || OTHERS.contains(&&*text) {
            command.env_remove(&name);
        }
    }
}
