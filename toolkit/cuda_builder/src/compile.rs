//! Runs the compiler. This file affects the PTX, so its text is part of the hash of the inputs.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::packages::Packages;
use crate::{Arch, Error, Toolchain, cargo};

/// One run of cargo.
pub struct CargoRun<'a> {
    pub toolchain: &'a Toolchain,
    pub crate_dir: &'a Path,
    pub packages: &'a Packages,
    pub arch: Arch,
    pub features: &'a [String],
    pub target_dir: &'a Path,
}

/// The profile: the whole program as one module, with source lines and no other debug information.
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

impl CargoRun<'_> {
    /// Compiles the crate and returns the compiler's assembly. Cargo's messages go to this program's standard error.
    pub fn run(&self) -> Result<String, Error> {
        fs::create_dir_all(self.target_dir).map_err(Error::io(self.target_dir))?;
        let target_dir = fs::canonicalize(self.target_dir).map_err(Error::io(self.target_dir))?;
        // Each build has its own file, because cargo does not write the file again if nothing has changed.
        let mut name = vec![self.packages.kernels().name.clone()];
        name.extend(self.features.iter().cloned());
        let output = target_dir.join(format!("{}.{}.s", name.join("."), self.arch));

        let mut cargo = cargo::command(self.toolchain.cargo(), self.crate_dir);
        cargo.args(["rustc", "--lib", "--crate-type=cdylib", "--release", "--target=nvptx64-nvidia-cuda"]);
        cargo.arg("-Zbuild-std=core").arg("--target-dir").arg(&target_dir);
        if !self.features.is_empty() {
            cargo.arg("--features").arg(self.features.join(","));
        }
        for setting in PROFILE {
            cargo.arg("--config").arg(format!("profile.release.{setting}"));
        }
        // The PTX is the assembly that the compiler writes for the whole program, so the linker is skipped.
        cargo.arg("--").arg(format!("-Ctarget-cpu={}", self.arch));
        cargo.arg("-Clinker=true").arg("-Clinker-flavor=llbc");
        // In the source, the tensor cores' accumulators are an array. They stay in registers only if every loop over
        // the array is fully unrolled, which LLVM does not do by default for long loops.
        cargo.arg("-Cllvm-args=-unroll-threshold=4096");
        let mut emit = OsString::from("--emit=asm=");
        emit.push(&output);
        cargo.arg(emit);

        cargo.env("RUSTC", self.toolchain.rustc());
        // Lets stable compilers accept the unstable options and features that kernels need.
        cargo.env("RUSTC_BOOTSTRAP", "1");
        cargo.env("CARGO_ENCODED_RUSTFLAGS", self.flags());
        let status = cargo.stdout(Stdio::null()).status().map_err(Error::io(self.toolchain.cargo()))?;
        if !status.success() {
            return Err(Error::Failed(status));
        }
        fs::read_to_string(&output).map_err(Error::io(&output))
    }

    /// Returns the flags for the kernels and for `core`.
    fn flags(&self) -> OsString {
        // Jump threading duplicates code into the arms of a branch, including barriers and shuffles:
        // rust-lang/rust#137086.
        let mut flags = OsString::from("-Zmir-enable-passes=-JumpThreading");
        // Removes the machine's paths, so the PTX is the same wherever it is built. Source paths are relative to the
        // workspace.
        let mut remap = |from: &Path, to: &str| {
            flags.push("\x1f--remap-path-prefix=");
            flags.push(from);
            flags.push("=");
            flags.push(to);
        };
        remap(self.packages.root(), ".");
        remap(self.toolchain.sources(), "/rustc");
        for (dir, name) in self.packages.outside() {
            remap(dir, &format!("/{name}"));
        }
        for dir in cargo::downloads() {
            remap(&dir, "/cargo");
        }
        flags
    }
}
