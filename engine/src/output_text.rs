//! The text of an output as it grows: tokens in, settled text out, up to a stop string.

use crate::detokenizer::{Detokenizer, StopMatcher};
use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// The text of an output as it grows.
#[derive(Clone)]
pub(crate) struct OutputText {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    text: String,
    /// Whether a stop string has ended it.
    pub stopped: bool,
}

impl OutputText {
    /// An empty text that ends before any of `stops`, of tokens that follow those which `detokenizer` has.
    pub fn new(detokenizer: Detokenizer, stops: &[String]) -> Self {
        let stops = StopMatcher::new(stops.to_vec());
        OutputText { detokenizer, stops, text: String::new(), stopped: false }
    }

    /// Takes a token in and returns the text that it settles. Nothing follows a stop string.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String> {
        let piece = self.detokenizer.push(tokenizer, token)?;
        let mut text = self.screen(&piece);
        if self.detokenizer.holds_back() && !self.stopped && !self.stops.is_empty() {
            // With a stop string in what is held back the output ends here, and so no more can change it.
            let rest = self.detokenizer.clone().finish(tokenizer)?;
            if self.stops.clone().push(&rest).stop.is_some() {
                text.push_str(&self.screen(&rest));
            }
        }
        Ok(text)
    }

    /// All of the text, with what was held back in case more would come.
    pub fn finish(mut self, tokenizer: &Tokenizer) -> Result<String> {
        let rest = self.detokenizer.finish(tokenizer)?;
        self.screen(&rest);
        if !self.stopped {
            self.text.push_str(&self.stops.finish());
        }
        Ok(self.text)
    }

    fn screen(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        let screened = self.stops.push(piece);
        self.stopped = screened.stop.is_some();
        self.text.push_str(&screened.text);
        screened.text
    }
}
