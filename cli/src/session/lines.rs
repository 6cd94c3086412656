//! Reads entries that a person types or that are piped to standard input.

use std::io::{self, IsTerminal};

use anyhow::{Context, Result};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, CompletionType, Config, Context as Completed, Editor, Helper};

use super::talk::COMMANDS;

/// Standard input. An entry that ends with a backslash continues on the next line.
pub struct Lines {
    /// The line editor on a terminal, with a history and completion of commands.
    editor: Option<Editor<Commands, DefaultHistory>>,
}

/// Completes commands and the file name of `/save`.
struct Commands {
    files: FilenameCompleter,
}

impl Completer for Commands {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, context: &Completed<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..at).unwrap_or_default();
        if typed.starts_with("/save ") {
            return self.files.complete(line, at, context);
        }
        let names = COMMANDS.iter().filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, names.map(|name| Pair { display: name.trim().into(), replacement: (*name).into() }).collect()))
    }
}

impl Hinter for Commands {
    type Hint = String;
}

impl Highlighter for Commands {}
impl Validator for Commands {}
impl Helper for Commands {}

/// The result of reading a line.
enum Line {
    Read(String),
    /// Ctrl-C discarded the line.
    Dropped,
    End,
}

impl Lines {
    /// Opens standard input, with a line editor if it is a terminal.
    ///
    /// # Errors
    /// If the terminal cannot be used.
    pub fn new() -> Result<Self> {
        // Use the terminal itself, because standard output may go to a file.
        let config = Config::builder().behavior(Behavior::PreferTerm).completion_type(CompletionType::List).build();
        let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        let mut editor =
            is_terminal.then(|| Editor::with_config(config)).transpose().context("cannot use the terminal")?;
        if let Some(editor) = &mut editor {
            editor.set_helper(Some(Commands { files: FilenameCompleter::new() }));
        }
        Ok(Lines { editor })
    }

    /// Returns the terminal's width if a person types there.
    pub fn width(&mut self) -> Option<usize> {
        Some(self.editor.as_mut()?.dimensions()?.0.into()).filter(|width| *width > 0)
    }

    /// Asks a question on the terminal. Any answer but yes means no. Without a terminal, the answer is no.
    ///
    /// # Errors
    /// If standard input cannot be read.
    pub fn confirm(&mut self, question: &str) -> Result<bool> {
        let Some(editor) = &mut self.editor else { return Ok(false) };
        match editor.readline(&format!("{question} [y/N] ")) {
            Ok(answer) => Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")),
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => Ok(false),
            Err(error) => Err(error).context("cannot read standard input"),
        }
    }

    /// Whether a person types at a terminal.
    pub fn is_terminal(&self) -> bool {
        self.editor.is_some()
    }

    /// Returns the next entry, or `None` at the end. Ctrl-C discards an unfinished entry.
    ///
    /// # Errors
    /// If standard input cannot be read.
    pub fn next(&mut self) -> Result<Option<String>> {
        let mut entry = String::new();
        loop {
            let line = self.line(if entry.is_empty() { "> " } else { "| " }).context("cannot read standard input")?;
            match line {
                Line::Read(line) => match line.strip_suffix('\\') {
                    Some(part) => entry = entry + part + "\n",
                    None => return Ok(Some(entry + &line)),
                },
                Line::Dropped => entry.clear(),
                Line::End => return Ok((!entry.is_empty()).then_some(entry)),
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Line> {
        let Some(editor) = &mut self.editor else {
            let mut line = String::new();
            let read = io::stdin().read_line(&mut line)?;
            let text = line.strip_suffix('\n').unwrap_or(&line);
            let text = text.strip_suffix('\r').unwrap_or(text);
            return Ok(if read == 0 { Line::End } else { Line::Read(text.to_owned()) });
        };
        match editor.readline(prompt) {
            Ok(line) => {
                editor.add_history_entry(&line)?;
                Ok(Line::Read(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Dropped),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error.into()),
        }
    }
}
