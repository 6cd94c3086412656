//! Text of tokens as they come, in pieces that never change afterwards, and the strings that end it.

use crate::error::Result;
use crate::tokenizer::{Role, Tokenizer};

/// Beyond this many tokens without settled text, a border inside the window is looked for.
const WINDOW: usize = 16;
/// UTF-8 characters have at most four bytes and each token at least one: what happens at a border is decided once this
/// many tokens follow it.
const DECIDED: usize = 4;

/// Turns the generated tokens of one output into text piece by piece. The pieces joined are the text of all tokens
/// decoded at once without special tokens.
///
/// Only a window of tokens is decoded each time: from the border before the last piece, whose text is known and serves
/// as context (decoders treat the beginning of a text in their own way), to the newest token. Text is held back while
/// its last character may be incomplete.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// Context, then tokens that are not settled. Tokens without text are left out.
    tokens: Vec<u32>,
    /// How many of `tokens` are context.
    context: usize,
    /// The text of the context.
    context_text: String,
}

impl Detokenizer {
    /// A detokenizer for a new output.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a token and returns the text that became certain, which is often empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String> {
        match tokenizer.role(token) {
            Role::Silent => return Ok(String::new()),
            // A run of byte tokens is valid UTF-8 or not as a whole, so it is decoded when it ends.
            Role::Byte => {
                self.tokens.push(token);
                return Ok(String::new());
            }
            Role::Text => self.tokens.push(token),
        }
        let text = tokenizer.decode(&self.tokens, true)?;
        if !text.ends_with(char::REPLACEMENT_CHARACTER) {
            return self.settle(tokenizer, self.tokens.len(), text);
        }
        if self.tokens.len() - self.context > WINDOW {
            return self.settle_partly(tokenizer, &text);
        }
        Ok(String::new())
    }

    /// Whether there are tokens whose text did not come out yet.
    pub fn holds_back(&self) -> bool {
        self.tokens.len() > self.context
    }

    /// Returns what was held back. The output is over; another begins with [`Detokenizer::new`].
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let text = tokenizer.decode(&self.tokens, true)?;
        let piece = text.get(self.context_text.len()..).unwrap_or_default().to_owned();
        *self = Self::default();
        Ok(piece)
    }

    /// Makes the tokens up to `end`, whose text is `text`, the border.
    fn settle(&mut self, tokenizer: &Tokenizer, end: usize, text: String) -> Result<String> {
        let Some(piece) = text.get(self.context_text.len()..).filter(|piece| !piece.is_empty()) else {
            return Ok(String::new());
        };
        let piece = piece.to_owned();
        self.tokens.drain(..self.context);
        self.context = end - self.context;
        self.context_text = tokenizer.decode(&self.tokens[..self.context], true)?;
        Ok(piece)
    }

    /// Settles a part of a window that has been ending in invalid UTF-8 for long. Models produce that only when they
    /// have gone astray, but it must not make the window grow for ever.
    fn settle_partly(&mut self, tokenizer: &Tokenizer, text: &str) -> Result<String> {
        let newest = self.tokens.len() - DECIDED;
        for end in (newest - DECIDED..=newest).rev() {
            let left = tokenizer.decode(&self.tokens[..end], true)?;
            let right = tokenizer.decode(&self.tokens[end..], true)?;
            if text.strip_prefix(left.as_str()) == Some(right.as_str()) {
                return self.settle(tokenizer, end, left);
            }
        }
        Ok(String::new())
    }
}

/// Finds stop strings in text that comes in pieces.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
}

/// What a [`StopMatcher`] makes of a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screened {
    /// Text that is certainly part of the output.
    pub text: String,
    /// The index of the stop string that was found, if one was; the text ends before it.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        StopMatcher { stops, held: String::new() }
    }

    /// Whether there is nothing to be found.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Adds a piece of text. After a stop string was found, nothing more is to be added.
    pub fn push(&mut self, piece: &str) -> Screened {
        if self.stops.is_empty() {
            return Screened { text: piece.to_owned(), stop: None };
        }
        self.held.push_str(piece);
        let stops = || self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let found = stops().filter_map(|(index, stop)| Some((self.held.find(stop.as_str())?, index))).min();
        if let Some((at, index)) = found {
            self.held.truncate(at);
            return Screened { text: std::mem::take(&mut self.held), stop: Some(index) };
        }
        let longest = stops().map(|(_, stop)| stop.len() - 1).max().unwrap_or(0);
        let certain = (0..=self.held.len())
            .rev()
            .take(longest + 1)
            .filter(|at| self.held.is_char_boundary(*at))
            .filter(|at| stops().any(|(_, stop)| stop.starts_with(&self.held[*at..])))
            .last()
            .unwrap_or(self.held.len());
        let held = self.held.split_off(certain);
        Screened { text: std::mem::replace(&mut self.held, held), stop: None }
    }

    /// Returns what was held back: the output ended, so it was no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut texts = Vec::new();
        for piece in pieces {
            let screened = matcher.push(piece);
            texts.push(screened.text);
            if screened.stop.is_some() {
                return (texts, screened.stop);
            }
        }
        texts.push(matcher.finish());
        (texts, None)
    }

    #[test]
    fn stop_strings_are_found_across_pieces() {
        assert_eq!(
            screen(&["END"], &["a", "E", "N", "D", "b"]),
            (vec!["a".into(), "".into(), "".into(), "".into()], Some(0))
        );
        assert_eq!(screen(&["x", "b"], &["abx"]), (vec!["a".into()], Some(1)));
        assert_eq!(screen(&["b", "abc"], &["a", "b"]), (vec!["".into(), "a".into()], Some(0)));
        assert_eq!(screen(&["\n\n"], &["a\n", "b\n", "\nc"]), (vec!["a".into(), "\nb".into(), "".into()], Some(0)));
    }

    #[test]
    fn what_was_no_stop_string_comes_out() {
        assert_eq!(screen(&["END"], &["EN", "X"]).0.concat(), "ENX");
        assert_eq!(screen(&["END"], &["a EN"]).0.concat(), "a EN");
        assert_eq!(screen(&["ab"], &["aaa", "a"]).0, ["aa", "a", "a"]);
        assert_eq!(screen(&["é!"], &["xé", "é", "?"]).0, ["x", "é", "é?", ""]);
        assert_eq!(screen(&["", "q"], &["abc"]).0, ["abc", ""]);
        assert_eq!(screen(&[], &["abc"]).0, ["abc", ""]);
    }

    #[test]
    fn nothing_is_held_longer_than_needed() {
        let mut matcher = StopMatcher::new(vec!["stop".into()]);
        assert_eq!(matcher.push("lists").text, "list");
        assert_eq!(matcher.push("to").text, "");
        assert_eq!(matcher.push("re").text, "store");
    }
}
