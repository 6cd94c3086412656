//! A step of a beam search group: surviving beams are forked and the others freed (4.4 of the paper).

use super::SequenceGroup;
use crate::constraint::Reading;
use crate::sampling::{Beam, Branch, Candidate, Sampled};
use crate::sequence::{FinishReason, Output, Sequence};

impl SequenceGroup {
    /// Adds the likeliest tokens of each beam. The search then continues or ends. The candidates of a constrained beam
    /// are tokens that its grammar allows, possibly few or none.
    pub(super) fn advance_beams(&mut self, beam: Beam, sampled: &[Sampled]) {
        let parents = std::mem::take(&mut self.running);
        let length = parents.first().map_or(0, |s| s.output().len()) + 1;
        let candidates = sampled.iter().zip(&parents).enumerate().flat_map(|(parent, (s, seq))| {
            let possible = s.top.iter().filter(|top| top.1 > f32::NEG_INFINITY);
            possible.map(move |&(token, logprob)| {
                let sum = seq.cumulative_logprob + f64::from(logprob);
                Candidate { parent, token, logprob, sum }
            })
        });
        let reported = self.params.logprobs.unwrap_or(0);
        let step = beam.advance(candidates.collect(), self.ends.len(), |c| {
            let top = &sampled[c.parent].top;
            let mut seq = parents[c.parent].clone();
            let reading = seq.matcher.as_mut().map_or(Reading::Open, |matcher| matcher.read(c.token));
            seq.push(c.token, c.logprob, &top[..top.len().min(reported)]);
            match reading {
                Reading::Refused => Branch::Dead,
                _ if self.ends.contains(&c.token) => Branch::Ends(ended(beam, seq, FinishReason::Stop)),
                Reading::Complete => Branch::Ends(ended(beam, seq, FinishReason::Stop)),
                Reading::Open if length >= self.max_output => Branch::Ends(ended(beam, seq, FinishReason::Length)),
                Reading::Open => Branch::Runs(seq),
            }
        });
        self.finished.extend(step.finished);
        if self.finished.is_empty() && step.running.is_empty() {
            // No beam can continue and none has ended before, so the current beams are returned as they are.
            self.finished.extend(parents.into_iter().map(|seq| ended(beam, seq, FinishReason::Length)));
        }
        self.finished.sort_by(|a, b| b.score.unwrap_or(0.0).total_cmp(&a.score.unwrap_or(0.0)));
        self.finished.truncate(beam.width);
        let worst = self.finished.get(beam.width - 1).and_then(|o| o.score);
        let best = step.running.first().map_or(f64::NEG_INFINITY, |seq| seq.cumulative_logprob);
        if !worst.is_some_and(|worst| beam.is_done(worst, best, length, self.max_output)) {
            // The new beams are forked before the parents are dropped. Blocks that only the parents reference are
            // freed.
            self.running = step.running;
        }
    }
}

/// Finishes a beam and scores it.
fn ended(beam: Beam, seq: Sequence, reason: FinishReason) -> Output {
    let score = beam.score(seq.cumulative_logprob, seq.output().len().max(1));
    seq.finish(reason, Some(score))
}
