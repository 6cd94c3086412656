//! Lists the commands of `quire` and finds the one that a command line calls.

use crate::command::Command;
#[cfg(feature = "cuda")]
use crate::kernels;
use crate::suggest::shown;
use crate::words::{UsageError, is_command, names, no_command};
use crate::{bench, completions, generate, help, manual, quantize, serve, session};
#[cfg(feature = "cuda")]
use crate::{paper, plan};

/// All commands. The first one runs when none is named.
pub static COMMANDS: &[&Command] = &[
    &generate::COMMAND,
    &session::COMMAND,
    &serve::COMMAND,
    &quantize::COMMAND,
    &bench::throughput::COMMAND,
    &bench::latency::COMMAND,
    &bench::serve::COMMAND,
    #[cfg(feature = "cuda")]
    &bench::floor::COMMAND,
    &bench::sharing::COMMAND,
    &bench::prefix::COMMAND,
    &bench::trace::COMMAND,
    #[cfg(feature = "cuda")]
    &plan::COMMAND,
    #[cfg(feature = "cuda")]
    &paper::COMMAND,
    #[cfg(feature = "cuda")]
    &kernels::COMMAND,
    &completions::COMMAND,
    &manual::COMMAND,
];

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
pub fn find(words: &[String]) -> Result<Call<'_>, UsageError> {
    let first = words.first().map(String::as_str);
    match first {
        Some("help") => return page(&words[1..]).map(Call::Page),
        Some("-h" | "--help") if words.len() > 1 && is_command(COMMANDS, &words[1]) => {
            return page(&words[1..]).map(Call::Page);
        }
        Some("-V" | "--version") => return Ok(Call::Run(COMMANDS[0], &words[..1])),
        _ => {}
    }
    for &command in COMMANDS {
        if let Some(len) = command.named_by(words) {
            return Ok(Call::Run(command, &words[len..]));
        }
    }
    if first != Some("bench") {
        return Ok(Call::Run(COMMANDS[0], words));
    }
    match words.get(1).map(String::as_str) {
        None => {
            Err(UsageError::new(format!("bench needs a command: {} (quire bench --help)", names(COMMANDS, "bench "))))
        }
        Some("help") if words.len() > 2 => page(&[&words[..1], &words[2..]].concat()).map(Call::Page),
        Some("-h" | "--help" | "help") => Ok(Call::Page(help::bench_page(COMMANDS))),
        Some(word) => Err(no_command_called(&format!("bench {word}"))),
    }
}

/// Returns the help page of the command `name`.
fn page(name: &[String]) -> Result<String, UsageError> {
    if name.is_empty() {
        return Ok(help::page(COMMANDS, COMMANDS[0]));
    }
    let name = name.join(" ");
    match name.as_str() {
        "help" | "-h" | "--help" => Ok(help::page(COMMANDS, COMMANDS[0])),
        "bench" => Ok(help::bench_page(COMMANDS)),
        _ => match COMMANDS.iter().find(|command| command.name == name) {
            Some(command) => Ok(help::page(COMMANDS, command)),
            None => Err(no_command_called(&name)),
        },
    }
}

fn no_command_called(name: &str) -> UsageError {
    no_command(COMMANDS, &format!("there is no command {}", shown(name)), name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use crate::command::Words;

    fn called(line: &str) -> (&'static str, Vec<String>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match find(&words).unwrap() {
            Call::Run(command, rest) => (command.name, rest.to_vec()),
            Call::Page(_) => panic!("{line} prints a help page"),
        }
    }

    #[test]
    fn the_first_words_name_the_command() {
        assert_eq!(called("--prompt serve"), ("generate", vec!["--prompt".into(), "serve".into()]));
        assert_eq!(called("generate --json"), ("generate", vec!["--json".into()]));
        assert_eq!(called("serve --port 0"), ("serve", vec!["--port".into(), "0".into()]));
        assert_eq!(called("bench serve --rate 1").0, "bench serve");
        assert_eq!(called(""), ("generate", vec![]));
    }

    #[test]
    fn headings_list_existing_options_once() {
        for &command in COMMANDS {
            let mut listed: Vec<&str> = command.groups.iter().flat_map(|group| group.1).copied().collect();
            for name in &listed {
                assert!(command.flags().any(|flag| flag.long == *name), "{}: {name}", command.name);
            }
            listed.sort_unstable();
            assert!(listed.windows(2).all(|pair| pair[0] != pair[1]), "{}", command.name);
        }
    }

    #[test]
    fn no_two_options_of_a_command_have_the_same_name() {
        for &command in COMMANDS {
            let mut names: Vec<String> = command.flags().map(|flag| flag.long.to_owned()).collect();
            names.extend(command.flags().filter_map(|flag| flag.short).map(String::from));
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{}", command.name);
        }
    }

    #[test]
    fn any_words_are_sorted_or_refused_in_one_line() {
        let pieces = ["-", "--", "=", "p", "n", "prompt", "é", "\n", " ", "\u{1b}", "9"];
        let mut words: Vec<String> = vec![String::new()];
        for _ in 0..3 {
            let longer = words.iter().flat_map(|word| pieces.map(|piece| format!("{word}{piece}"))).collect::<Vec<_>>();
            words.extend(longer);
            words.sort_unstable();
            words.dedup();
        }
        for &command in COMMANDS {
            for word in &words {
                // Try each word alone and followed by a value.
                for line in [&[word.clone()][..], &[word.clone(), "1".into()]] {
                    let Err(wrong) = Words::sort(COMMANDS, command, line) else { continue };
                    let message = wrong.to_string();
                    assert!(!message.is_empty() && !message.contains(char::is_control), "{word:?}: {message:?}");
                }
            }
        }
    }

    #[test]
    fn every_option_is_on_its_commands_page_once() {
        for &command in COMMANDS {
            let page = help::page(COMMANDS, command);
            for flag in command.flags() {
                let options = page.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
                let names = options.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
                assert_eq!(names.filter(|name| *name == flag.long).count(), 1, "{}: {}", command.name, flag.long);
            }
            assert!(page.lines().all(|line| line.chars().count() <= help::WIDTH && line.trim_end() == line), "{page}");
        }
    }
}
