//! Text of tokens as they come, in pieces that never change afterwards.

use crate::tokenizer::{Role, Tokenizer};
use checkpoint::error::Result;

/// Beyond this many tokens without settled text, a border inside the window is looked for.
const WINDOW: usize = 16;
/// UTF-8 characters have at most four bytes and each token at least one: what happens at a border is decided once this
/// many tokens follow it.
const DECIDED: usize = 4;

/// Turns the generated tokens of one output into text piece by piece. The pieces joined are the text of all tokens
/// decoded at once.
///
/// Only a window of tokens is decoded each time: from the border before the last piece, whose text is known and serves
/// as context (decoders treat the beginning of a text in their own way), to the newest token. Text is held back while
/// its last character may be incomplete.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    /// Whether special tokens have no text.
    skip_special: bool,
    /// Context, then tokens that are not settled. Tokens without text are left out.
    tokens: Vec<u32>,
    /// How many of `tokens` are context.
    context: usize,
    /// The text of the context.
    context_text: String,
}

impl Detokenizer {
    /// A detokenizer for a new output, in which special tokens have no text if `skip_special`.
    pub fn new(skip_special: bool) -> Self {
        Detokenizer { skip_special, tokens: Vec::new(), context: 0, context_text: String::new() }
    }

    /// Adds a token and returns the text that became certain, which is often empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String> {
        match tokenizer.role(token) {
            Role::Silent => return Ok(String::new()),
            Role::Special if self.skip_special => return Ok(String::new()),
            // A run of byte tokens is valid UTF-8 or not as a whole, so it is decoded when it ends.
            Role::Byte => {
                self.tokens.push(token);
                return Ok(String::new());
            }
            Role::Special | Role::Text => self.tokens.push(token),
        }
        let text = tokenizer.decode(&self.tokens, self.skip_special)?;
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
        let text = tokenizer.decode(&self.tokens, self.skip_special)?;
        let piece = text.get(self.context_text.len()..).unwrap_or_default().to_owned();
        *self = Self::new(self.skip_special);
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
        self.context_text = tokenizer.decode(&self.tokens[..self.context], self.skip_special)?;
        Ok(piece)
    }

    /// Settles a part of a window that has been ending in invalid UTF-8 for long. No sensible text has that, but a
    /// model may produce it, and the window must not grow for ever.
    fn settle_partly(&mut self, tokenizer: &Tokenizer, text: &str) -> Result<String> {
        let newest = self.tokens.len() - DECIDED;
        for end in (newest - DECIDED..=newest).rev() {
            let left = tokenizer.decode(&self.tokens[..end], self.skip_special)?;
            let right = tokenizer.decode(&self.tokens[end..], self.skip_special)?;
            if text.strip_prefix(left.as_str()) == Some(right.as_str()) {
                return self.settle(tokenizer, end, left);
            }
        }
        Ok(String::new())
    }
}
