//! A command, as data: what it is called, which options it has and what it runs.

use std::collections::HashSet;

use anyhow::Result;
use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo};

use crate::engine_args::EngineArgs;

/// The name of the command that is meant when none is named.
const DEFAULT: &str = "generate";

/// A command.
pub struct Command {
    /// The words that call it.
    pub name: &'static str,
    /// What it takes beside options.
    pub positionals: Positionals,
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
pub enum Positionals {
    /// There are none.
    None,
    /// The model, as with `--model`.
    Model,
    /// The command reads them itself; this is how its page shows them.
    Own(&'static str),
}

impl Positionals {
    /// How a page of help shows them, with a space behind if there are any.
    pub fn shown(self) -> &'static str {
        match self {
            Positionals::None => "",
            Positionals::Model => "[model] ",
            Positionals::Own(positionals) => positionals,
        }
    }
}

/// The words that follow a command's name, sorted.
pub struct Words {
    /// The command.
    pub command: &'static Command,
    /// All commands that there are, to say what was probably meant.
    pub all: &'static [&'static Command],
    /// Its own options and their values.
    pub own: Vec<String>,
    /// The engine's.
    pub engine: Vec<String>,
    /// Words that belong to no option, where the command reads them itself.
    pub positionals: Vec<String>,
    /// Whether the page of help is asked for.
    pub help: bool,
    /// How often a model was named.
    pub models: usize,
    /// Options that were read and may stand once.
    pub given: HashSet<&'static str>,
}

impl Command {
    /// Whether it is that one.
    pub fn is_default(&self) -> bool {
        self.name == DEFAULT
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
    pub fn named_by(&self, words: &[String]) -> Option<usize> {
        let name: Vec<&str> = self.name.split(' ').collect();
        (words.len() >= name.len() && name.iter().zip(words).all(|(name, word)| name == word)).then_some(name.len())
    }
}
