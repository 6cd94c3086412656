//! The text of a growing output: takes tokens, returns settled text, and stops at a stop string.

use crate::detokenizer::Detokenizer;
use crate::error::Result;
use crate::sampling::SamplingParams;
use crate::tokenizer::Tokenizer;
use text::stop_matcher::StopMatcher;

/// The text of an output as it grows.
#[derive(Clone)]
pub(crate) struct OutputText {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    text: String,
    /// The number of tokens of the output. No stop string counts until it exceeds `min_tokens`.
    pub tokens: usize,
    min_tokens: usize,
    /// Sum of the tokens' logprobs.
    pub sum: f64,
    /// Whether a token that ends the output is part of its text.
    include_end: bool,
    /// The index of the stop string that ended the output.
    pub stop: Option<usize>,
}

impl OutputText {
    /// An empty text with the settings of `params`. `detokenizer` may already have the tokens before the output.
    pub(crate) fn new(detokenizer: Detokenizer, params: &SamplingParams) -> Self {
        OutputText {
            detokenizer,
            stops: StopMatcher::new(params.stop.clone(), params.include_stop_str_in_output),
            text: String::new(),
            tokens: 0,
            min_tokens: params.min_tokens,
            sum: 0.0,
            include_end: params.include_stop_str_in_output,
            stop: None,
        }
    }

    /// Adds a token and returns the text that it settles. After a stop string, no text is returned. `ends` says that
    /// the token itself ends the output.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: u32, ends: bool) -> Result<String> {
        self.tokens += 1;
        if ends && !self.include_end {
            return Ok(String::new());
        }
        let piece = self.detokenizer.push(tokenizer, token)?;
        let mut text = self.screen(&piece);
        if self.detokenizer.holds_back() && self.may_stop() && !self.stops.is_empty() {
            // If the text that is held back contains a stop string, the output ends here. Later tokens cannot change
            // that.
            let rest = self.detokenizer.clone().finish(tokenizer)?;
            if self.stops.clone().push(&rest).stop.is_some() {
                text.push_str(&self.screen(&rest));
            }
        }
        Ok(text)
    }

    /// Returns the whole text, including text that was held back in case more tokens would follow.
    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let rest = self.detokenizer.finish(tokenizer)?;
        self.screen(&rest);
        if self.stop.is_none() {
            self.text.push_str(&self.stops.finish());
        }
        Ok(std::mem::take(&mut self.text))
    }

    fn may_stop(&self) -> bool {
        self.stop.is_none() && self.tokens > self.min_tokens
    }

    fn screen(&mut self, piece: &str) -> String {
        let text = if self.may_stop() {
            let screened = self.stops.push(piece);
            self.stop = screened.stop;
            screened.text
        } else if self.stop.is_none() {
            self.stops.pass(piece)
        } else {
            String::new()
        };
        self.text.push_str(&text);
        text
    }
}
