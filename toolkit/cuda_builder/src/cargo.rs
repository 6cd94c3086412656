//! Cargo as this crate runs it: apart from the cargo that may be running this very program.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A run of this cargo on the crate in `dir`, with the configuration that holds there.
pub fn command(cargo: &Path, dir: &Path) -> Command {
    let mut command = Command::new(cargo);
    command.current_dir(dir).stdin(Stdio::null());
    clean_environment(&mut command);
    // What a build script prints is shown only where it fails, and what the compiler says should not drown in it.
    if env::var_os("OUT_DIR").is_some() {
        command.env("CARGO_TERM_QUIET", "true");
    }
    command
}

/// The cargo that runs this program, or else the one on the path.
pub fn active() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// The directories that cargo puts packages into: one for each registry, and one for all of git.
pub fn downloads() -> Vec<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let Some(home) = home.or_else(|| Some(env::home_dir()?.join(".cargo"))) else { return Vec::new() };
    let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    registries.map(|entry| entry.path()).chain([home.join("git/checkouts")]).collect()
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
