//! Finds the command that a command line calls.

use crate::command::{Command, Program};
use crate::help;
use crate::suggest::shown;
use crate::words::{UsageError, is_command, names, no_command};

/// The action that a command line asks for.
pub enum Call<'a> {
    /// Print this help page.
    Page(String),
    /// Run this command with the words that follow its name.
    Run(&'static Command, &'a [String]),
}

/// Finds the command that `words` call.
///
/// # Errors
/// If there is no such command.
pub fn find<'a>(program: &Program, words: &'a [String]) -> Result<Call<'a>, UsageError> {
    let first = words.first().map(String::as_str);
    match (first, program.default()) {
        (Some("help"), _) => return page(program, &words[1..]),
        (Some("-h" | "--help"), _) if words.len() > 1 && is_command(program, &words[1]) => {
            return page(program, &words[1..]);
        }
        (Some("-V" | "--version"), Some(default)) => return Ok(Call::Run(default, &words[..1])),
        _ => {}
    }
    for &command in program.commands {
        if let Some(len) = command.named_by(words) {
            return Ok(Call::Run(command, &words[len..]));
        }
    }
    for len in [1, 2] {
        refuse_moved(program, words.get(..len).unwrap_or_default())?;
    }
    match program.default() {
        Some(_) if first == Some("bench") => group(program, "bench ", &words[1..]),
        Some(default) => Ok(Call::Run(default, words)),
        None => group(program, "", words),
    }
}

/// Finds a command of a group without a default. `prefix` begins the names of the group's commands.
fn group<'a>(program: &Program, prefix: &str, words: &'a [String]) -> Result<Call<'a>, UsageError> {
    match words.first().map(String::as_str) {
        None => {
            let (call, known) = (format!("{} {prefix}", program.name), names(program, prefix));
            Err(UsageError::new(format!("{call} needs a command: {known} ({call} --help)", call = call.trim_end())))
        }
        Some("help") if words.len() > 1 => {
            let name = prefix.split_whitespace().map(str::to_owned).chain(words[1..].iter().cloned());
            page(program, &name.collect::<Vec<_>>())
        }
        Some("-h" | "--help" | "help") => Ok(Call::Page(help::group_page(program, prefix))),
        Some(word) => Err(no_command_called(program, &format!("{prefix}{word}"))),
    }
}

/// Returns the help page of the command `name`.
fn page(program: &Program, name: &[String]) -> Result<Call<'static>, UsageError> {
    refuse_moved(program, name)?;
    let is_whole = name.is_empty();
    let name = name.join(" ");
    let page = match (name.as_str(), program.default()) {
        (word, default) if is_whole || matches!(word, "help" | "-h" | "--help") => {
            default.map_or_else(|| help::group_page(program, ""), |default| help::page(program, default))
        }
        ("bench", Some(_)) => help::group_page(program, "bench "),
        _ => match program.commands.iter().find(|command| command.name == name) {
            Some(command) => help::page(program, command),
            None => return Err(no_command_called(program, &name)),
        },
    };
    Ok(Call::Page(page))
}

/// Refuses a command that is now in another program.
fn refuse_moved(program: &Program, name: &[String]) -> Result<(), UsageError> {
    let name = name.join(" ");
    match program.moved.iter().find(|(old, _)| *old == name) {
        Some((old, new)) => {
            Err(UsageError::new(format!("`{} {old}` is now `cargo run -p lab -- {new}`", program.name)))
        }
        None => Ok(()),
    }
}

fn no_command_called(program: &Program, name: &str) -> UsageError {
    no_command(program, &format!("there is no command {}", shown(name)), name)
}
