//! Results that a request wants for its prompt's tokens: logprobs or hidden states.

use std::ops::Range;

use super::SequenceGroup;
use crate::embedding::Pooling;
use crate::sampling::{SampleRow, Sampled};
use crate::sequence::{FinishReason, TokenLogprob};

impl SequenceGroup {
    /// The prompt positions whose results are still missing: logits, for the logprob of the next token, or hidden
    /// states, to pool them.
    pub fn wanted(&self) -> Range<usize> {
        let Some(seq) = self.running.first() else { return 0..0 };
        match (&self.prompt_logprobs, self.params.pooling) {
            (Some(done), _) => done.len() - 1..seq.prompt_len - 1,
            (None, Some(Pooling::Mean)) => self.pooled.count()..seq.prompt_len,
            (None, Some(Pooling::Last)) if self.pooled.count() == 0 => seq.prompt_len - 1..seq.prompt_len,
            _ => 0..0,
        }
    }

    /// The tokens of a sequence that a prefix lookup may match: all of them, or those up to the first position with a
    /// missing result. The cache keeps neither logits nor hidden states. So a mean over all tokens has no prefix hits.
    pub fn lookup_tokens(&self, seq: usize) -> &[u32] {
        let (wanted, tokens) = (self.wanted(), &self.running[seq].tokens);
        if wanted.is_empty() { tokens } else { &tokens[..=wanted.start] }
    }

    /// The rows that give the logprobs of the tokens after `positions` of the prompt.
    pub fn score_rows(&self, positions: Range<usize>) -> impl Iterator<Item = SampleRow<'_>> {
        let (seq, top) = (&self.running[0], self.params.prompt_logprobs.unwrap_or(0));
        positions.map(move |p| {
            let (prompt, given) = (&seq.tokens[..=p], Some(seq.tokens[p + 1]));
            SampleRow { prompt, top, given, ..SampleRow::new(&self.params, 0) }
        })
    }

    /// Adds the logprobs at the next positions of [`Self::wanted`], one for each of `rows`.
    pub fn score(&mut self, rows: &[Sampled]) {
        let (Some(seq), Some(done)) = (self.running.first(), &mut self.prompt_logprobs) else { return };
        for row in rows {
            let token = seq.tokens[done.len()];
            let logprob = if row.token == token { row.logprob } else { f32::NEG_INFINITY };
            done.push(Some(TokenLogprob { token, logprob, top: row.top.clone() }));
        }
    }

    /// Adds the hidden states at the next positions of [`Self::wanted`].
    pub fn pool(&mut self, states: &[Vec<f32>]) {
        self.pooled.add(states);
    }

    /// The prompt's embedding. `None` if the request did not ask for it or it is not computed.
    pub fn embedding(&self) -> Option<Vec<f32>> {
        let is_pooled = self.pooled.count() > 0 && self.finished.iter().all(|o| o.finish_reason != FinishReason::Abort);
        is_pooled.then(|| self.pooled.normalised())
    }
}
