//! Speculative decoding by prompt lookup: the next tokens are drafted from the sequence's own text and verified in one
//! step.
//!
//! Texts repeat themselves, above all if a model edits, quotes or summarises its prompt. So the scheduler looks for an
//! earlier occurrence of the last few tokens and drafts the tokens that followed it. A step computes the sequence's
//! last token and the draft at once and samples after each token. As long as each sample equals the drafted token, the
//! next sample is valid too. Random choices depend on the position, so drafting does not change the tokens.
//!
//! The method is Saxena's prompt lookup decoding (2023), verified as in Leviathan et al. (2023). The verification is
//! exact here, because a choice is a function of its logits.

use super::Scheduler;
use super::growth::Budget;
use crate::group::SequenceGroup;
use crate::kv::{Counts, blocks_needed};

/// Lengths of the suffixes to look for, longest first. A longer match makes a better draft. A single token is too
/// short.
const MATCH_LENGTHS: [usize; 3] = [4, 3, 2];

impl Scheduler {
    /// The number of sequences that get a token in this step, if it may draft tokens. A step drafts only if no group
    /// waits and all groups decode, so a draft never delays or preempts a group.
    pub(super) fn undecoded(&self) -> Option<usize> {
        let all_decode = || self.queue.is_empty() && self.running.iter().all(SequenceGroup::is_decoding);
        // A state cannot return to the token before a wrong draft.
        let may_draft = self.options.draft_tokens > 0 && !self.pool.has_states() && all_decode();
        may_draft.then(|| self.running.iter().map(|group| group.running.len()).sum())
    }

    /// Drafts the next tokens for the sequences of a decoding group, if this step may draft, and charges them to the
    /// budget. It leaves what later groups need: drafts are cut or dropped if tokens, rows of logits or blocks are
    /// short.
    pub(super) fn speculate(&mut self, at: usize, budget: &mut Budget) {
        let (group, Some(undecoded)) = (&mut self.running[at], &mut budget.undecoded) else { return };
        *undecoded = undecoded.saturating_sub(group.running.len());
        let claimed = *undecoded;
        if !group.may_be_drafted() {
            return;
        }
        let mut left = budget.tokens.saturating_sub(claimed).min(budget.rows);
        let max_output = group.max_output();
        for seq in &mut group.running {
            // The last token that an output may have is sampled, never drafted.
            let most = max_output.saturating_sub(seq.output().len() + 1);
            // A draft must not make a sequence long, because long sequences are computed again.
            let short = self.pool.boundary().and_then(|boundary| boundary.checked_sub(seq.tokens.len()));
            let most = most.min(short.unwrap_or(usize::MAX));
            let draft = lookup(&seq.tokens, most.min(left).min(self.options.draft_tokens)).to_vec();
            left -= draft.len();
            seq.draft(&draft);
        }
        let needed = blocks_needed(&self.pool, group.running.iter().map(|seq| (&seq.table, seq.pending())));
        let others = Counts::each(self.pool.groups().len(), claimed);
        if !(self.pool.fits(&needed.plus(others), 0) && self.pool.claim(needed)) {
            group.running.iter_mut().for_each(|seq| drop(seq.take_draft()));
        }
        budget.tokens -= group.num_drafted();
        budget.rows -= group.num_drafted();
    }
}

/// Drafts at most `most` tokens to follow `tokens`: those after the latest earlier occurrence of the last few tokens.
fn lookup(tokens: &[u32], most: usize) -> &[u32] {
    if most == 0 {
        return &[];
    }
    let find = |count: usize| {
        let (earlier, last) = (tokens.len().checked_sub(1)?, tokens.len().checked_sub(count)?);
        let at = tokens[..earlier].windows(count).rposition(|window| window == &tokens[last..])?;
        Some(&tokens[at + count..])
    };
    let found = MATCH_LENGTHS.into_iter().find_map(find).unwrap_or_default();
    &found[..found.len().min(most)]
}

#[cfg(test)]
mod tests {
    use super::lookup;

    #[test]
    fn a_draft_follows_the_longest_and_latest_match() {
        assert_eq!(lookup(&[1, 2, 3, 4, 9, 9, 2, 3, 4], 3), [9, 9, 2]);
        assert_eq!(lookup(&[1, 2, 7, 1, 2, 8, 1, 2], 1), [8], "the latest");
        assert_eq!(lookup(&[5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 2), [7, 6], "the longest");
        assert_eq!(lookup(&[3, 3, 3], 5), [3], "a run continues");
        assert!(lookup(&[1, 2, 3, 1], 5).is_empty(), "one token is no match");
        assert!(lookup(&[1, 2, 1, 2, 1, 2], 0).is_empty());
        assert!(lookup(&[1], 4).is_empty() && lookup(&[], 4).is_empty());
    }
}
