//! Beam search (4.4 of the paper) with Hugging Face's semantics: which candidates go on, which are finished, and when
//! the search is over. Knows scores and tokens only; the caller forks and frees the sequences.

use super::{Beam, EarlyStopping};

/// A running beam extended by one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Index of the beam that is extended.
    pub parent: usize,
    /// The token.
    pub token: u32,
    /// The token's logprob.
    pub logprob: f32,
    /// Sum of logprobs of all generated tokens, this one included.
    pub sum: f64,
}

/// A candidate that ended its sequence, with its final score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hypothesis {
    /// The last step of the sequence.
    pub candidate: Candidate,
    /// `sum / length^length_penalty`.
    pub score: f64,
}

/// The result of one step of the search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advance {
    /// The beams that run on, best first. Empty when the search is over.
    pub running: Vec<Candidate>,
    /// Candidates that finished in this step, best first. Each is still to be offered to the list of the best.
    pub finished: Vec<Hypothesis>,
}

impl Beam {
    /// Tokens that each running beam must propose, so that enough that are not end-of-sequence remain.
    pub fn num_candidates(&self, num_eos: usize) -> usize {
        self.width * 2.max(1 + num_eos)
    }

    /// Chooses among `candidates`, whose sequences all have `length` generated tokens with the candidate. `last` says
    /// that no sequence may grow further.
    pub fn advance(&self, mut candidates: Vec<Candidate>, eos: &[u32], length: usize, last: bool) -> Advance {
        candidates.sort_by(|a, b| b.sum.total_cmp(&a.sum));
        candidates.truncate(self.num_candidates(eos.len()));
        let ends = |c: &Candidate| last || eos.contains(&c.token);
        // Only the best `width` may finish: one below them is no better than what runs on.
        let finished = candidates.iter().take(self.width).filter(|c| ends(c));
        let finished = finished.map(|c| Hypothesis { candidate: *c, score: self.score(c.sum, length) }).collect();
        let running = candidates.into_iter().filter(|c| !ends(c)).take(self.width).collect();
        Advance { running, finished }
    }

    /// Whether the search is over: `width` sequences are finished, the worst of them with score `worst`, and the best
    /// running one has `sum` after `length` tokens of at most `max_length`.
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

    #[test]
    fn an_end_below_the_width_is_dropped_and_others_move_up() {
        let all = vec![
            candidate(0, 9, -1.0),
            candidate(1, 5, -2.0),
            candidate(0, 9, -3.0),
            candidate(1, 6, -4.0),
            candidate(1, 7, -5.0),
        ];
        let step = beam(EarlyStopping::No).advance(all, &[9], 2, false);
        assert_eq!(step.finished, [Hypothesis { candidate: candidate(0, 9, -1.0), score: -0.5 }]);
        assert_eq!(step.running.iter().map(|c| c.token).collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn enough_is_proposed_that_every_end_may_be_among_it() {
        assert_eq!([0, 1, 3].map(|num_eos| beam(EarlyStopping::No).num_candidates(num_eos)), [4, 4, 8]);
    }

    #[test]
    fn the_last_step_finishes_the_best() {
        let all = vec![candidate(0, 3, -1.0), candidate(1, 9, -2.0), candidate(0, 4, -3.0)];
        let step = beam(EarlyStopping::No).advance(all, &[9], 4, true);
        assert_eq!(step.finished.iter().map(|f| f.candidate.token).collect::<Vec<_>>(), [3, 9]);
        assert!(step.running.is_empty());
    }

    #[test]
    fn stops_when_no_running_beam_can_win() {
        assert!(beam(EarlyStopping::Yes).is_done(-9.0, -1.0, 2, 20));
        assert!(!beam(EarlyStopping::No).is_done(-2.1, -4.0, 2, 20));
        assert!(beam(EarlyStopping::No).is_done(-1.9, -4.0, 2, 20));
        // A sum of -4 could still become a mean of -0.2 over 20 tokens.
        assert!(!beam(EarlyStopping::Never).is_done(-1.9, -4.0, 2, 20));
        // With a negative penalty the sum of -4 is worth most as it is: -8.
        let shorter = Beam { length_penalty: -1.0, ..beam(EarlyStopping::Never) };
        assert!(shorter.is_done(-7.9, -4.0, 2, 20) && !shorter.is_done(-8.1, -4.0, 2, 20));
    }
}
