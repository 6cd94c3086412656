//! The commands of `quire`.

use crate::command::Program;
#[cfg(feature = "cuda")]
use crate::plan;
use crate::{bench, completions, generate, manual, quantize, serve, session};

/// The program `quire`.
pub static QUIRE: Program = Program {
    name: "quire",
    about: "Run and serve large language models.",
    commands: &[
        &generate::COMMAND,
        &session::COMMAND,
        &serve::COMMAND,
        &quantize::COMMAND,
        &bench::throughput::COMMAND,
        &bench::latency::COMMAND,
        &bench::serve::COMMAND,
        #[cfg(feature = "cuda")]
        &plan::COMMAND,
        &completions::COMMAND,
        &manual::COMMAND,
    ],
    moved: &[
        ("bench floor", "floor"),
        ("bench sharing", "sharing"),
        ("bench prefix", "prefix"),
        ("bench trace", "trace"),
        ("paper", "paper"),
        ("kernels", "kernels"),
    ],
};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use crate::command::Words;
    use crate::dispatch::{Call, find};
    use crate::help;

    fn called(line: &str) -> (&'static str, Vec<String>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match find(&QUIRE, &words).unwrap() {
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
        for &command in QUIRE.commands {
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
        for &command in QUIRE.commands {
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
        for &command in QUIRE.commands {
            for word in &words {
                // Try each word alone and followed by a value.
                for line in [&[word.clone()][..], &[word.clone(), "1".into()]] {
                    let Err(wrong) = Words::sort(&QUIRE, command, line) else { continue };
                    let message = wrong.to_string();
                    assert!(!message.is_empty() && !message.contains(char::is_control), "{word:?}: {message:?}");
                }
            }
        }
    }

    #[test]
    fn every_option_is_on_its_commands_page_once() {
        for &command in QUIRE.commands {
            let page = help::page(&QUIRE, command);
            for flag in command.flags() {
                let options = page.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
                let names = options.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
                assert_eq!(names.filter(|name| *name == flag.long).count(), 1, "{}: {}", command.name, flag.long);
            }
            assert!(page.lines().all(|line| line.chars().count() <= help::WIDTH && line.trim_end() == line), "{page}");
        }
    }
}
