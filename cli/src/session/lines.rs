//! What a person types, or what is piped to standard input, entry by entry.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, Result};

/// Standard input. An entry that ends with a backslash goes on in the next line.
pub struct Lines {
    /// Whether a person types, who is shown where.
    is_terminal: bool,
}

impl Lines {
    /// Standard input, which is a terminal or not.
    pub fn new() -> Self {
        Lines { is_terminal: io::stdin().is_terminal() && io::stderr().is_terminal() }
    }

    /// Whether a person types.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// The next entry; none at the end.
    ///
    /// # Errors
    /// If standard input cannot be read.
    pub fn next(&self) -> Result<Option<String>> {
        let mut entry = String::new();
        let mut is_begun = false;
        loop {
            self.prompt(if is_begun { "| " } else { "> " })?;
            let mut line = String::new();
            let read = io::stdin().lock().read_line(&mut line).context("cannot read standard input")?;
            if read == 0 {
                if self.is_terminal {
                    eprintln!();
                }
                return Ok(is_begun.then_some(entry));
            }
            let text = line.strip_suffix('\n').unwrap_or(&line);
            let text = text.strip_suffix('\r').unwrap_or(text);
            let Some(part) = text.strip_suffix('\\') else { return Ok(Some(entry + text)) };
            entry += part;
            entry.push('\n');
            is_begun = true;
        }
    }

    fn prompt(&self, prompt: &str) -> Result<()> {
        if self.is_terminal {
            let mut screen = io::stderr();
            screen.write_all(prompt.as_bytes())?;
            screen.flush()?;
        }
        Ok(())
    }
}
