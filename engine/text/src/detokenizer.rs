//! Incremental detokenization: text of tokens as they arrive, in pieces that never change afterwards.

use crate::tokenizer::{Role, Tokenizer};
use checkpoint::error::Result;

/// After this many tokens without settled text, settle a part of the window.
const WINDOW: usize = 16;
/// UTF-8 characters have at most four bytes and each token has at least one. So once this many tokens follow a border,
/// the text at the border is final.
const DECIDED: usize = 4;

/// Turns the generated tokens of one output into text, piece by piece. The concatenated pieces equal the text of all
/// tokens decoded at once.
///
/// Only a window of tokens is decoded each time. It reaches from the start of the last piece to the newest token. The
/// last piece serves as context, because decoders treat the beginning of a text specially. Text is held back while its
/// last character may be incomplete.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    /// Whether special tokens have no text.
    skip_special: bool,
    /// Context, followed by tokens whose text is not settled. Tokens without text are left out.
    tokens: Vec<u32>,
    /// The number of context tokens.
    context: usize,
    /// The text of the context.
    context_text: String,
}

impl Detokenizer {
    /// A detokenizer for a new output. With `skip_special`, special tokens have no text.
    pub fn new(skip_special: bool) -> Self {
        Detokenizer { skip_special, tokens: Vec::new(), context: 0, context_text: String::new() }
    }

    /// Adds a token and returns the newly settled text, which is often empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String> {
        match tokenizer.role(token) {
            Role::Silent => return Ok(String::new()),
            Role::Special if self.skip_special => return Ok(String::new()),
            // A run of byte tokens is valid or invalid UTF-8 as a whole, so it is decoded when it ends.
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

    /// Whether some tokens' text has not been returned yet.
    pub fn holds_back(&self) -> bool {
        self.tokens.len() > self.context
    }

    /// Returns the text that was held back, and resets the detokenizer for another output.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let text = tokenizer.decode(&self.tokens, self.skip_special)?;
        let piece = text.get(self.context_text.len()..).unwrap_or_default().to_owned();
        *self = Self::new(self.skip_special);
        Ok(piece)
    }

    /// Settles the tokens up to `end`, whose text is `text`.
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

    /// Settles a part of a window that has long ended in invalid UTF-8. No sensible text does, but a model may produce
    /// it, and the window must not grow without limit.
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
