//! Running cargo without the settings of an outer cargo that may be running this program.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns a command that runs this cargo on the crate in `dir`, with the configuration that applies there.
pub fn command(cargo: &Path, dir: &Path) -> Command {
    let mut command = Command::new(cargo);
    command.current_dir(dir).stdin(Stdio::null());
    clean_environment(&mut command);
    // Cargo shows a build script's output only if the script fails. Without the progress messages, compiler errors are
    // easy to find.
    if env::var_os("OUT_DIR").is_some() {
        command.env("CARGO_TERM_QUIET", "true");
    }
    command
}

/// Returns the cargo that runs this program, or the one on the `PATH`.
pub fn active() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// Returns the directories in which cargo stores packages: one for each registry, and one for all of git.
pub fn downloads() -> Vec<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let Some(home) = home.or_else(|| Some(env::home_dir()?.join(".cargo"))) else { return Vec::new() };
    let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    registries.map(|entry| entry.path()).chain([home.join("git/checkouts")]).collect()
}

/// Removes variables that an outer cargo sets for its children: flags, wrappers, targets, its job server. Keeps the
/// settings for access to registries.
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
