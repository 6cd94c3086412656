//! The state of a completion that is being streamed.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::record::Answer;
use crate::workload::Lengths;

/// A completion that is being streamed. Times are relative to the start of the run, as in [`Answer`].
#[derive(Default)]
pub struct Received {
    first: Option<Duration>,
    /// Chunks with text.
    pieces: usize,
    usage: Option<Usage>,
    done: bool,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
}

impl Received {
    /// Processes the data of an event that arrived at `now`.
    ///
    /// # Errors
    /// If the data is an error, or not part of a completion.
    pub fn take(&mut self, data: &[u8], now: Duration) -> Result<(), String> {
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let chunk: Chunk = serde_json::from_slice(data).map_err(|e| format!("a chunk is not a completion: {e}"))?;
        if let Some(error) = chunk.error {
            return Err(error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned));
        }
        if chunk.choices.iter().filter_map(|choice| choice.text.as_ref()).any(|text| !text.is_empty()) {
            self.first.get_or_insert(now);
            self.pieces += 1;
        }
        self.usage = chunk.usage.or(self.usage.take());
        Ok(())
    }

    /// Returns the answer to a request of these lengths. Call it when the stream has ended.
    ///
    /// # Errors
    /// If the stream ended before the completion did.
    pub fn answer(self, lengths: Lengths) -> Result<Answer, String> {
        if !self.done {
            return Err("the stream ended before [DONE]".into());
        }
        let counted = self.usage.is_some();
        let (prompt_tokens, output_tokens) =
            self.usage.map_or((lengths.prompt, self.pieces), |usage| (usage.prompt_tokens, usage.completion_tokens));
        Ok(Answer { first: self.first, prompt_tokens, output_tokens, counted })
    }
}
