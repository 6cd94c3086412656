//! Sorts the words of a command line before argh parses their values. It resolves short and long names and
//! `--name=value`, separates the engine's options from the command's own, and suggests corrections of mistyped names.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use argh::{FlagInfo, FlagInfoKind, FromArgs, Optionality};
use engine::tools::load::{ModelFiles, SHORT_NAMES};

use crate::command::{Command, Positionals, Program, Words};
use crate::engine_args::EngineArgs;
use crate::suggest::{nearest, shown};

/// Options whose value may be omitted, and the value that they get then.
const BARE: [(&str, &str); 1] = [("--early-stopping", "true")];

/// A mistake in a command line, in one sentence.
#[derive(Debug)]
pub struct UsageError(String);

impl Words {
    /// Sorts the words after the name of `command`.
    ///
    /// # Errors
    /// If the command does not accept an option or another word, or if a value is missing.
    pub fn sort(program: &'static Program, command: &'static Command, words: &[String]) -> Result<Self, UsageError> {
        let mut sorted = Words {
            command,
            program,
            own: Vec::new(),
            engine: Vec::new(),
            positionals: Vec::new(),
            help: false,
            models: 0,
            given: HashSet::new(),
        };
        let mut rest = words.iter().map(String::as_str).peekable();
        while let Some(word) = rest.next() {
            if word == "--" {
                rest.by_ref().try_for_each(|word| sorted.operand(word))?;
            } else if matches!(word, "-h" | "--help" | "help") {
                sorted.help = true;
            } else if word.starts_with('-') && word != "-" {
                let (flag, attached) = sorted.read(word)?;
                let bare = BARE.iter().find(|(name, _)| *name == flag.long).map(|(_, value)| *value);
                let value = match (&flag.kind, attached) {
                    (FlagInfoKind::Switch, None) => None,
                    (FlagInfoKind::Switch, Some(_)) => {
                        return Err(sorted.wrong(format!("{} takes no value", flag.long)));
                    }
                    (_, Some(value)) => Some(value),
                    (_, None) if bare.is_some() && rest.peek().is_none_or(|next| next.starts_with('-')) => bare,
                    (_, None) => match rest.next() {
                        Some(value) => Some(value),
                        None => return Err(sorted.wrong(format!("{} needs a value", flag.long))),
                    },
                };
                if value.is_some() && flag.optionality != Optionality::Repeating && !sorted.given.insert(flag.long) {
                    return Err(sorted.wrong(format!("{} is given twice", flag.long)));
                }
                sorted.push(flag.long, value);
            } else {
                sorted.operand(word)?;
            }
        }
        if sorted.models > 1 && !sorted.help {
            return Err(sorted.wrong("two models are given"));
        }
        Ok(sorted)
    }

    /// Parses the command's own options.
    ///
    /// # Errors
    /// If a value is invalid or a required option is missing.
    pub fn own<T: FromArgs>(&self) -> Result<T, UsageError> {
        self.parse(&self.own)
    }

    /// Parses the engine's options.
    ///
    /// # Errors
    /// Like [`Words::own`].
    pub fn engine(&self) -> Result<EngineArgs, UsageError> {
        self.parse(&self.engine)
    }

    /// Returns an error that refers to the command's help page.
    pub fn wrong(&self, sentence: impl fmt::Display) -> UsageError {
        UsageError(format!("{sentence} ({} --help shows all options)", self.program.call(self.command)))
    }

    fn parse<T: FromArgs>(&self, words: &[String]) -> Result<T, UsageError> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        T::from_args(&[&self.program.call(self.command)], &words).map_err(|exit| {
            // argh's message starts with the option and its value, followed by the reason.
            let of = |pair: &[&str]| {
                exit.output
                    .strip_prefix(&format!("Error parsing option '{}' with value '{}': ", pair[0], pair[1]))
                    .map(|why| format!("{}: {why}", pair[0]))
            };
            let message = words.windows(2).find_map(of).unwrap_or(exit.output.clone());
            self.wrong(message.split_whitespace().collect::<Vec<_>>().join(" "))
        })
    }

    /// Finds the option that a word names, and the value that is part of the word.
    fn read<'a>(&self, word: &'a str) -> Result<(&'static FlagInfo<'static>, Option<&'a str>), UsageError> {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if let Some(flag) = self.command.flags().find(|flag| flag.long == name) {
            return Ok((flag, value));
        }
        let mut letters = word[1..].chars();
        let short = letters.next().filter(|letter| *letter != '-');
        // `-name` is a long option with a dash missing, not the short option `-n` with the value `ame`.
        let is_long = |flag: &FlagInfo<'_>| name.len() > 2 && flag.long.strip_prefix('-') == Some(name);
        if let Some(flag) = self.command.flags().find(|flag| short.is_some() && flag.short == short)
            && !self.command.flags().any(is_long)
        {
            let rest = letters.as_str();
            return Ok((flag, (!rest.is_empty()).then(|| rest.strip_prefix('=').unwrap_or(rest))));
        }
        Err(self.unknown(name))
    }

    /// Returns an error for an unknown option, with a suggestion if a similar one exists.
    fn unknown(&self, name: &str) -> UsageError {
        let others = || self.program.commands.iter().filter(|other| other.name != self.command.name);
        let longs = |command: &Command| command.flags().map(|flag| flag.long).collect::<Vec<_>>();
        if name == "-V" {
            return self.unknown("--version");
        }
        if let Some(other) = others().find(|other| longs(other).contains(&name)) {
            return self.wrong(format!(
                "{name} is an option of `{}`, not of `{}`",
                self.program.call(other),
                self.program.call(self.command)
            ));
        }
        let meant = nearest(name, longs(self.command).into_iter()).map(str::to_owned).or_else(|| {
            let near = |other: &&'static Command| {
                nearest(name, longs(other).into_iter()).map(|name| (name, self.program.call(other)))
            };
            others().find_map(near).map(|(name, call)| format!("{name} of `{call}`"))
        });
        let meant = meant.map_or(String::new(), |name| format!("; did you mean {name}?"));
        let plain = name.chars().all(|c| c.is_ascii_graphic()) && name.len() <= 40;
        let name = if plain { name.to_owned() } else { shown(name) };
        self.wrong(format!("there is no option {name}{meant}"))
    }

    fn push(&mut self, name: &str, value: Option<&str>) {
        self.models += usize::from(name == "--model");
        let is_own = self.command.own_flags().iter().any(|flag| flag.long == name);
        let words = if is_own { &mut self.own } else { &mut self.engine };
        words.push(name.to_owned());
        words.extend(value.map(str::to_owned));
    }

    /// Takes a word that is not an option. A model becomes the value of `--model`.
    fn operand(&mut self, word: &str) -> Result<(), UsageError> {
        match self.command.positionals {
            Positionals::Own(_) => self.positionals.push(word.to_owned()),
            Positionals::Model if is_model(self.program, word) => self.push("--model", Some(word)),
            _ => return Err(self.stray(word)),
        }
        Ok(())
    }

    /// Returns an error for a word that is neither an option nor a model.
    fn stray(&self, word: &str) -> UsageError {
        let name = shown(word);
        if word == "-" {
            return self.wrong("- is not an option; --prompt - reads a prompt from standard input");
        }
        if is_command(self.program, word) {
            return self.wrong(format!("the command comes first: {} {word}", self.program.name));
        }
        let is_default = self.command.is_default();
        if word.contains(char::is_whitespace) || word.is_empty() {
            let hint = if is_default { "; put --prompt (-p) before a prompt" } else { "" };
            return self.wrong(format!("unexpected word {name}{hint}"));
        }
        match nearest(word, SHORT_NAMES.iter().map(|(short, _)| *short)) {
            Some(model) if self.command.positionals == Positionals::Model => {
                self.wrong(format!("there is no command or model {name}; did you mean {model}?"))
            }
            _ if is_default && !self.own.is_empty() => self.wrong(format!(
                "unexpected word {name}: it is not a model, and a prompt of several words needs quotes"
            )),
            _ if is_default => no_command(self.program, &format!("there is no command or model {name}"), word),
            _ if self.command.positionals == Positionals::Model => self.wrong(format!("there is no model {name}")),
            _ => self.wrong(format!("unexpected word {name}")),
        }
    }
}

/// Whether `word` is the first word of a command's name.
pub fn is_command(program: &Program, word: &str) -> bool {
    program.commands.iter().any(|command| command.name.split(' ').next() == Some(word))
}

/// Returns an error that starts with `wrong`, lists the commands and suggests one similar to `name`.
pub fn no_command(program: &Program, wrong: &str, name: &str) -> UsageError {
    let commands = program.commands.iter().map(|command| command.name);
    let top = program.first_words().into_iter().chain(commands.clone());
    // A top-level command that was called as a benchmark.
    let own = name.strip_prefix("bench ").filter(|own| commands.clone().any(|command| command == *own));
    let meant = own.or_else(|| nearest(name, top)).map_or(String::new(), |name| format!("; did you mean {name}?"));
    let all = if name.starts_with("bench ") { names(program, "bench ") } else { listed(program.first_words()) };
    UsageError::new(format!("{wrong}; commands are {all}{meant}"))
}

/// Returns the names of the commands that start with `beginning`, without it.
pub fn names(program: &Program, beginning: &str) -> String {
    listed(program.commands.iter().filter_map(|command| command.name.strip_prefix(beginning)).collect())
}

/// Joins names with commas and a final "and".
fn listed(mut names: Vec<&str>) -> String {
    let last = names.pop().unwrap_or_default();
    format!("{} and {last}", names.join(", "))
}

/// Whether a word that is not an option names a model.
fn is_model(program: &Program, word: &str) -> bool {
    if is_command(program, word) {
        return false;
    }
    let is_short = || SHORT_NAMES.iter().any(|(short, _)| short.eq_ignore_ascii_case(word));
    word.contains('/') || is_short() || word == ModelFiles::bundled().name() || Path::new(word).exists()
}

impl UsageError {
    /// Creates an error from a sentence.
    pub fn new(sentence: String) -> Self {
        UsageError(sentence)
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}
