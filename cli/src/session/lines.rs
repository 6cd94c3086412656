//! What a person types, or what is piped to standard input, entry by entry.

use std::io::{self, IsTerminal};

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};

/// Standard input. An entry that ends with a backslash goes on in the next line.
pub struct Lines {
    /// Where a person types: lines can be edited, and those from before come back with the arrow keys.
    editor: Option<DefaultEditor>,
}

/// How the reading of a line ended.
enum Line {
    Read(String),
    /// By Ctrl-C.
    Dropped,
    End,
}

impl Lines {
    /// Standard input, which is a terminal or not.
    ///
    /// # Errors
    /// If it is a terminal that cannot be used.
    pub fn new() -> Result<Self> {
        // The terminal itself, and not standard output, which may go to a file.
        let config = Config::builder().behavior(Behavior::PreferTerm).build();
        let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        let editor = is_terminal.then(|| DefaultEditor::with_config(config)).transpose();
        Ok(Lines { editor: editor.context("cannot use the terminal")? })
    }

    /// Whether a person types.
    pub fn is_terminal(&self) -> bool {
        self.editor.is_some()
    }

    /// The next entry; none at the end. Ctrl-C drops what was typed of one.
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
