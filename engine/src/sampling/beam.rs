//! Beam search (4.4 of the paper) with Hugging Face's semantics: which candidates continue, which are finished, and
//! when the search is over. This module sees only scores and tokens. The caller forks and frees the sequences.

use super::{Beam, EarlyStopping};

/// A running beam extended by one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Index of the extended beam.
    pub parent: usize,
    /// The token.
    pub token: u32,
    /// The token's logprob.
    pub logprob: f32,
    /// Sum of the logprobs of all generated tokens, including this one.
    pub sum: f64,
}

/// The fate of a candidate: a running sequence `S`, a finished output `O`, or none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Branch<S, O> {
    /// The sequence continues.
    Runs(S),
    /// The candidate's token ends the sequence.
    Ends(O),
    /// The token is not allowed after all.
    Dead,
}

/// The result of one step of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct Advance<S, O> {
    /// The beams that continue, best first. Empty when the search is over.
    pub running: Vec<S>,
    /// Outputs that finished in this step, best first. The caller merges them with those finished before.
    pub finished: Vec<O>,
}

impl Beam {
    /// The number of tokens that each running beam must propose, so that enough of them are not end-of-sequence tokens.
    /// A grammar may end sequences with other tokens. Then fewer beams may continue.
    pub fn num_candidates(&self, num_eos: usize) -> usize {
        self.width * 2.max(1 + num_eos)
    }

    /// Chooses among `candidates`, which may be fewer than the beams. Calls `branch` for the best candidates, in order,
    /// until enough beams continue.
    pub fn advance<S, O>(
        &self,
        mut candidates: Vec<Candidate>,
        num_eos: usize,
        mut branch: impl FnMut(&Candidate) -> Branch<S, O>,
    ) -> Advance<S, O> {
        candidates.sort_by(|a, b| b.sum.total_cmp(&a.sum));
        candidates.truncate(self.num_candidates(num_eos));
        let mut step = Advance { running: Vec::with_capacity(self.width), finished: Vec::new() };
        let mut better = 0;
        for candidate in &candidates {
            if step.running.len() == self.width {
                break;
            }
            match branch(candidate) {
                Branch::Runs(seq) => step.running.push(seq),
                // Only the best `width` candidates may finish. A candidate below them is no better than the beams that
                // continue.
                Branch::Ends(output) if better < self.width => step.finished.push(output),
                Branch::Ends(_) => {}
                Branch::Dead => continue,
            }
            better += 1;
        }
        step
    }

    /// Whether the search is over, given `width` finished sequences. `worst` is the lowest score of these. The best
    /// running beam has the logprob sum `sum` after `length` tokens, of at most `max_length`.
    pub fn is_done(&self, worst: f64, sum: f64, length: usize, max_length: usize) -> bool {
        match self.early_stopping {
            EarlyStopping::Yes => true,
            EarlyStopping::Never if self.length_penalty > 0.0 => worst >= self.score(sum, max_length),
            EarlyStopping::No | EarlyStopping::Never => worst >= self.score(sum, length),
        }
    }

    /// The score of a sequence of `length` generated tokens.
    pub fn score(&self, sum: f64, length: usize) -> f64 {
        sum / (length as f64).powf(f64::from(self.length_penalty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beam(early_stopping: EarlyStopping) -> Beam {
        Beam { width: 2, length_penalty: 1.0, early_stopping }
    }

    fn candidate(parent: usize, token: u32, sum: f64) -> Candidate {
        Candidate { parent, token, logprob: -1.0, sum }
    }

    /// Advances a search. Tokens from 9 on end a sequence, and token 0 is not allowed. In the `last` step every token
    /// ends its sequence.
    fn advance(candidates: Vec<Candidate>, last: bool) -> Advance<u32, u32> {
        beam(EarlyStopping::No).advance(candidates, 1, |c| match c.token {
            0 => Branch::Dead,
            token if last || token >= 9 => Branch::Ends(token),
            token => Branch::Runs(token),
        })
    }

    #[test]
    fn an_end_below_the_width_is_dropped_and_others_move_up() {
        let all = vec![
            candidate(0, 9, -1.0),
            candidate(1, 5, -2.0),
            candidate(0, 9, -3.0),
            candidate(1, 6, -4.0),
            candidate(1, 7, -5.0),
        ];
        assert_eq!(advance(all, false), Advance { running: vec![5, 6], finished: vec![9] });
    }

    #[test]
    fn enough_candidates_are_proposed_to_allow_for_every_end() {
        assert_eq!([0, 1, 3].map(|num_eos| beam(EarlyStopping::No).num_candidates(num_eos)), [4, 4, 8]);
    }

    #[test]
    fn the_last_step_finishes_the_best() {
        let all = vec![candidate(0, 3, -1.0), candidate(1, 9, -2.0), candidate(0, 4, -3.0)];
        assert_eq!(advance(all, true), Advance { running: vec![], finished: vec![3, 9] });
    }

    #[test]
    fn fewer_candidates_than_beams_leave_fewer_beams() {
        assert_eq!(advance(vec![candidate(1, 5, -2.0)], false), Advance { running: vec![5], finished: vec![] });
        let all = vec![candidate(0, 10, -1.0), candidate(0, 0, -2.0), candidate(0, 11, -3.0), candidate(1, 12, -4.0)];
        assert_eq!(advance(all, false), Advance { running: vec![], finished: vec![10, 11] });
        assert_eq!(advance(vec![], false), Advance { running: vec![], finished: vec![] });
    }

    #[test]
    fn stops_when_no_running_beam_can_win() {
        assert!(beam(EarlyStopping::Yes).is_done(-9.0, -1.0, 2, 20));
        assert!(!beam(EarlyStopping::No).is_done(-2.1, -4.0, 2, 20));
        assert!(beam(EarlyStopping::No).is_done(-1.9, -4.0, 2, 20));
        // A sum of -4 could still become a mean of -0.2 over 20 tokens.
        assert!(!beam(EarlyStopping::Never).is_done(-1.9, -4.0, 2, 20));
        // With a negative penalty, a sum of -4 scores best at its current length: -8.
        let shorter = Beam { length_penalty: -1.0, ..beam(EarlyStopping::Never) };
        assert!(shorter.is_done(-7.9, -4.0, 2, 20) && !shorter.is_done(-8.1, -4.0, 2, 20));
    }
}
