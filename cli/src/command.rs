//! Describes programs and commands as data: names, options and the functions that run them.

use std::collections::HashSet;

use anyhow::Result;
use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo};

use crate::engine_args::EngineArgs;

/// The name of the command that runs when none is named.
const DEFAULT: &str = "generate";

/// A program with commands: `quire` or `lab`.
pub struct Program {
    /// The word that calls it.
    pub name: &'static str,
    /// Its purpose, for the list of its commands.
    pub about: &'static str,
    /// All commands. `generate` runs if the command line names no other.
    pub commands: &'static [&'static Command],
    /// Former commands, and their names in `lab`.
    pub moved: &'static [(&'static str, &'static str)],
}

/// A command of a program.
pub struct Command {
    /// Its name, one word or two: `serve`, `bench latency`.
    pub name: &'static str,
    /// The arguments that it accepts besides options.
    pub positionals: Positionals,
    /// Returns argh's description of its own options.
    pub info: fn() -> CommandInfoWithArgs,
    /// Headings of the help page and the options under each. Unlisted options follow.
    pub groups: &'static [(&'static str, &'static [&'static str])],
    /// Whether it runs an engine and therefore also accepts the options of [`EngineArgs`].
    pub runs_engine: bool,
    /// Example calls for its help page.
    pub examples: &'static [&'static str],
    /// Runs the command.
    pub run: fn(&Words) -> Result<()>,
}

/// Arguments that are not options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positionals {
    /// None are accepted.
    None,
    /// A model, as with `--model`.
    Model,
    /// The command parses them itself. The text shows them on the help page.
    Own(&'static str),
}

impl Positionals {
    /// Returns their text for a help page, with a trailing space unless it is empty.
    pub fn shown(self) -> &'static str {
        match self {
            Positionals::None => "",
            Positionals::Model => "[model] ",
            Positionals::Own(positionals) => positionals,
        }
    }
}

/// The words after a command's name, sorted by who parses them.
pub struct Words {
    /// The command.
    pub command: &'static Command,
    /// The program, for names of other commands.
    pub program: &'static Program,
    /// The command's own options and their values.
    pub own: Vec<String>,
    /// The engine's options and their values.
    pub engine: Vec<String>,
    /// Arguments that are not options, if the command parses them itself.
    pub positionals: Vec<String>,
    /// Whether the help page was requested.
    pub help: bool,
    /// How many times a model was named.
    pub models: usize,
    /// Options seen so far that may be given only once.
    pub given: HashSet<&'static str>,
}

impl Program {
    /// Returns the command that runs if the command line names no other.
    pub fn default(&self) -> Option<&'static Command> {
        self.commands.iter().copied().find(|command| command.is_default())
    }

    /// Returns the words that call a command, such as `quire serve`.
    pub fn call(&self, command: &Command) -> String {
        if command.is_default() { self.name.into() } else { format!("{} {}", self.name, command.name) }
    }

    /// Returns the first word of each command, and `help`.
    pub fn first_words(&self) -> Vec<&'static str> {
        let firsts = self.commands.iter().filter_map(|command| command.name.split(' ').next());
        let mut words: Vec<&str> = firsts.chain(["help"]).collect();
        words.dedup();
        words
    }
}

impl Command {
    /// Whether this command runs when none is named.
    pub fn is_default(&self) -> bool {
        self.name == DEFAULT
    }

    /// Returns its own options, then the engine's if it runs one.
    pub fn flags(&self) -> impl Iterator<Item = &'static FlagInfo<'static>> {
        self.own_flags().iter().chain(self.engine_flags())
    }

    /// Returns its own options.
    pub fn own_flags(&self) -> &'static [FlagInfo<'static>] {
        (self.info)().flags
    }

    /// Returns the engine's options if it runs one.
    pub fn engine_flags(&self) -> impl Iterator<Item = &'static FlagInfo<'static>> {
        let flags = if self.runs_engine { EngineArgs::get_args_info().flags } else { &[] };
        flags.iter().filter(|flag| flag.long != "--help")
    }

    /// Returns the number of words in this command's name if `words` begin with it.
    pub fn named_by(&self, words: &[String]) -> Option<usize> {
        let name: Vec<&str> = self.name.split(' ').collect();
        (words.len() >= name.len() && name.iter().zip(words).all(|(name, word)| name == word)).then_some(name.len())
    }
}
