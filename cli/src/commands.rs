//! The commands of `quire`: what they are called, which options they have, and which one a command line means.

use anyhow::Result;
use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo};

use crate::engine_args::EngineArgs;
use crate::suggest::{nearest, shown};
use crate::words::{Usage, Words};
use crate::{args, bench, help, kernels, serve};

/// A command.
pub struct Command {
    /// The words that call it.
    pub name: &'static str,
    /// What it takes beside options.
    pub operands: Operands,
    /// Its own options.
    pub info: fn() -> CommandInfoWithArgs,
    /// Headings, and the options below each; what is not listed follows.
    pub groups: &'static [(&'static str, &'static [&'static str])],
    /// Whether it runs an engine, and so has the options of [`EngineArgs`] as well.
    pub runs_engine: bool,
    /// Calls to show on its page.
    pub examples: &'static [&'static str],
    /// What it does.
    pub run: fn(&Words) -> Result<()>,
}

/// Words of a command that belong to no option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// There are none.
    None,
    /// The model, as with `--model`.
    Model,
    /// The command reads them itself; this is how its page shows them.
    Own(&'static str),
}

/// All of them. The first is also what is meant when no command is named.
pub static COMMANDS: [&Command; 9] = [
    &args::COMMAND,
    &serve::COMMAND,
    &bench::throughput::COMMAND,
    &bench::latency::COMMAND,
    &bench::serve::COMMAND,
    &bench::floor::COMMAND,
    &bench::sharing::COMMAND,
    &bench::prefix::COMMAND,
    &kernels::COMMAND,
];

/// What a command line asks for.
pub enum Call<'a> {
    /// A page of help.
    Page(String),
    /// A command, with the words that follow its name.
    Run(&'static Command, &'a [String]),
}

impl Command {
    /// The command that is meant when none is named.
    pub fn default() -> &'static Command {
        COMMANDS[0]
    }

    /// Whether it is that one.
    pub fn is_default(&self) -> bool {
        self.name == Command::default().name
    }

    /// How it is called.
    pub fn call(&self) -> String {
        if self.is_default() { "quire".into() } else { format!("quire {}", self.name) }
    }

    /// Its own options, and the engine's where it runs one.
    pub fn flags(&self) -> impl Iterator<Item = &'static FlagInfo<'static>> {
        self.own_flags().iter().chain(self.engine_flags())
    }

    /// Its own options.
    pub fn own_flags(&self) -> &'static [FlagInfo<'static>] {
        (self.info)().flags
    }

    /// The engine's options, if it runs one.
    pub fn engine_flags(&self) -> impl Iterator<Item = &'static FlagInfo<'static>> {
        let flags = if self.runs_engine { EngineArgs::get_args_info().flags } else { &[] };
        flags.iter().filter(|flag| flag.long != "--help")
    }

    /// How many of the first words are this command's name, if they are.
    fn named_by(&self, words: &[String]) -> Option<usize> {
        let name: Vec<&str> = self.name.split(' ').collect();
        (words.len() >= name.len() && name.iter().zip(words).all(|(name, word)| name == word)).then_some(name.len())
    }
}

/// The command that `words` call.
///
/// # Errors
/// A sentence, if there is no such command.
pub fn find(words: &[String]) -> Result<Call<'_>, Usage> {
    let first = words.first().map(String::as_str);
    match first {
        Some("help") => return page(&words[1..]).map(Call::Page),
        Some("-h" | "--help") if words.len() > 1 && is_command(&words[1]) => return page(&words[1..]).map(Call::Page),
        Some("-V" | "--version") => return Ok(Call::Run(Command::default(), &words[..1])),
        _ => {}
    }
    for command in COMMANDS {
        if let Some(len) = command.named_by(words) {
            return Ok(Call::Run(command, &words[len..]));
        }
    }
    if first != Some("bench") {
        return Ok(Call::Run(Command::default(), words));
    }
    match words.get(1).map(String::as_str) {
        None => Err(Usage::new(format!("bench needs a command: {} (quire bench --help)", names("bench ")))),
        Some("help") if words.len() > 2 => page(&[&words[..1], &words[2..]].concat()).map(Call::Page),
        Some("-h" | "--help" | "help") => Ok(Call::Page(help::bench_page())),
        Some(word) => Err(no_command_called(&format!("bench {word}"))),
    }
}

/// Whether a word is the first of a command's name.
pub fn is_command(word: &str) -> bool {
    COMMANDS.iter().any(|command| command.name.split(' ').next() == Some(word))
}

/// The page of the command of this name.
fn page(name: &[String]) -> Result<String, Usage> {
    if name.is_empty() {
        return Ok(help::page(Command::default()));
    }
    let name = name.join(" ");
    match name.as_str() {
        "help" | "-h" | "--help" => Ok(help::page(Command::default())),
        "bench" => Ok(help::bench_page()),
        _ => match COMMANDS.iter().find(|command| command.name == name) {
            Some(command) => Ok(help::page(command)),
            None => Err(no_command_called(&name)),
        },
    }
}

fn no_command_called(name: &str) -> Usage {
    no_command(&format!("there is no command {}", shown(name)), name)
}

/// Says which commands there are, after what is wrong with `name`.
pub fn no_command(wrong: &str, name: &str) -> Usage {
    let top = ["bench", "help"].into_iter().chain(COMMANDS.iter().map(|command| command.name));
    // A command of its own that was looked for among the benchmarks.
    let own = name.strip_prefix("bench ").filter(|own| COMMANDS.iter().any(|command| command.name == *own));
    let meant = own.or_else(|| nearest(name, top)).map_or(String::new(), |name| format!("; did you mean {name}?"));
    let all = if name.starts_with("bench ") { names("bench ") } else { "serve, bench, kernels and help".into() };
    Usage::new(format!("{wrong}; commands are {all}{meant}"))
}

/// The names of the commands that begin so, without the beginning.
fn names(beginning: &str) -> String {
    let mut names: Vec<_> = COMMANDS.iter().filter_map(|command| command.name.strip_prefix(beginning)).collect();
    let last = names.pop().unwrap_or_default();
    format!("{} and {last}", names.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    fn called(line: &str) -> (&'static str, Vec<String>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match find(&words).unwrap() {
            Call::Run(command, rest) => (command.name, rest.to_vec()),
            Call::Page(_) => panic!("{line} is answered with a page"),
        }
    }

    #[test]
    fn a_command_is_known_by_its_first_words() {
        assert_eq!(called("--prompt serve"), ("generate", vec!["--prompt".into(), "serve".into()]));
        assert_eq!(called("generate --json"), ("generate", vec!["--json".into()]));
        assert_eq!(called("serve --port 0"), ("serve", vec!["--port".into(), "0".into()]));
        assert_eq!(called("bench serve --rate 1").0, "bench serve");
        assert_eq!(called(""), ("generate", vec![]));
    }

    #[test]
    fn headings_name_options_that_there_are_each_once() {
        for command in COMMANDS {
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
        for command in COMMANDS {
            let mut names: Vec<String> = command.flags().map(|flag| flag.long.to_owned()).collect();
            names.extend(command.flags().filter_map(|flag| flag.short).map(String::from));
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{}", command.name);
        }
    }
}
