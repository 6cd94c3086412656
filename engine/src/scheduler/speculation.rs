//! Speculative decoding by prompt lookup: what follows is drafted from the sequence's own text, and verified in one step.
//!
//! Texts repeat themselves, above all where a model edits, quotes or summarises its prompt. So the last few tokens are looked
//! for further up, and what followed them there is the draft. A step computes the sequence's last token and the draft at once,
//! and samples after each token: as long as what is sampled is what was drafted, the next sample is valid too. Random choices
//! are addressed by position, so that the tokens are those that single steps would have given.
//!
//! After Saxena's prompt lookup decoding (2023); the verification is that of Leviathan et al. (2023), exact here, since a
//! choice is a function of its logits.

use super::Scheduler;
use super::growth::Budget;
use crate::group::SequenceGroup;
use crate::kv::blocks_needed;

/// Lengths of what is looked for, the longest first: a longer match makes a better draft, and a single token none.
const LOOKED_FOR: [usize; 3] = [4, 3, 2];

impl Scheduler {
    /// The sequences that are to get a token in a step in which more may be drafted. No group waits or is preempted for a
    /// draft: there is none while others wait or compute their prompts.
    pub(super) fn undecoded(&self) -> Option<usize> {
        let all_decode = || self.queue.is_empty() && self.running.iter().all(SequenceGroup::is_decoding);
        let may_draft = self.options.draft_tokens > 0 && all_decode();
        may_draft.then(|| self.running.iter().map(|group| group.running.len()).sum())
    }

    /// Drafts what comes next in the sequences of a group that decodes, if anything may be drafted in this step, and takes it
    /// off the budget. What later groups need is left to them: there is no draft where tokens, rows of logits or blocks are
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
            // The last token that an output may have is sampled, and not drafted.
            let most = max_output.saturating_sub(seq.output().len() + 1);
            let draft = lookup(&seq.tokens, most.min(left).min(self.options.draft_tokens)).to_vec();
            left -= draft.len();
            seq.draft(&draft);
        }
        let needed = blocks_needed(&self.pool, group.running.iter().map(|seq| (&seq.table, seq.pending())));
        if needed + claimed > self.pool.num_free() {
            group.running.iter_mut().for_each(|seq| drop(seq.take_draft()));
        }
        budget.tokens -= group.num_drafted();
        budget.rows -= group.num_drafted();
    }
}

/// At most `most` tokens that may follow `tokens`: those that followed the latest place further up where the last few tokens
/// stand as well.
fn lookup(tokens: &[u32], most: usize) -> &[u32] {
    if most == 0 {
        return &[];
    }
    let find = |count: usize| {
        let (earlier, last) = (tokens.len().checked_sub(1)?, tokens.len().checked_sub(count)?);
        let at = tokens[..earlier].windows(count).rposition(|window| window == &tokens[last..])?;
        Some(&tokens[at + count..])
    };
    let found = LOOKED_FOR.into_iter().find_map(find).unwrap_or_default();
    &found[..found.len().min(most)]
}

#[cfg(test)]
mod tests {
    use super::lookup;

    #[test]
    fn what_followed_the_longest_and_latest_match_is_drafted() {
        assert_eq!(lookup(&[1, 2, 3, 4, 9, 9, 2, 3, 4], 3), [9, 9, 2]);
        assert_eq!(lookup(&[1, 2, 7, 1, 2, 8, 1, 2], 1), [8], "the latest");
        assert_eq!(lookup(&[5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 2), [7, 6], "the longest");
        assert_eq!(lookup(&[3, 3, 3], 5), [3], "a run goes on");
        assert!(lookup(&[1, 2, 3, 1], 5).is_empty(), "one token is no match");
        assert!(lookup(&[1, 2, 1, 2, 1, 2], 0).is_empty());
        assert!(lookup(&[1], 4).is_empty() && lookup(&[], 4).is_empty());
    }
}
