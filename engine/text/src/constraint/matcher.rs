//! How far an output is on its way through a grammar.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use kernels::sampling::mask_words;
use llguidance::toktrie::SimpleVob;
use rayon::prelude::*;

use super::deadline::within_deadline;

/// What an output must be: a compiled grammar. Clones are the same constraint.
#[derive(Clone)]
pub struct Constraint(Arc<Beginning>, Thoughts);

/// A constraint for as long as any request has it.
pub(super) struct LiveConstraint(Weak<Beginning>);

/// Where a model thinks before it speaks. A grammar is about what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thoughts {
    /// Not at all, or not any more.
    #[default]
    Over,
    /// The output may begin with the token `begin`; then it thinks up to the token `end`.
    Possible {
        /// Begins thoughts.
        begin: u32,
        /// Ends them.
        end: u32,
    },
    /// It thinks, up to this token.
    Until(u32),
}

struct Beginning {
    /// All matchers begin as this one, and share its lexer. Most of the work on a mask is to find states of the lexer that were
    /// not met before; what one sequence has met is there for all.
    matcher: llguidance::Matcher,
    /// The same with a lexer that stays as it is. A lexer may have so many states and no more; a matcher whose lexer fails goes
    /// on with a copy of this one.
    fresh: llguidance::Matcher,
    /// Whether the lexer that is shared has failed.
    is_spent: AtomicBool,
    vocab_size: usize,
    eos: Arc<[u32]>,
}

/// Has read a sequence's output, and says which tokens may follow. A clone reads on by itself.
pub struct Matcher {
    inner: llguidance::Matcher,
    beginning: Arc<Beginning>,
    /// What `inner` has read.
    tokens: Vec<u32>,
    /// Whether its lexer is its own.
    is_alone: bool,
    thoughts: Thoughts,
    mask: Vec<u32>,
}

/// How an output is after one more token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It may or must go on.
    Open,
    /// It is complete, and nothing can follow.
    Complete,
    /// The token cannot follow, and was not read.
    Refused,
}

impl Constraint {
    pub(super) fn new(matcher: llguidance::Matcher, vocab_size: usize, eos: Arc<[u32]>) -> Self {
        let (fresh, is_spent) = (matcher.deep_clone(), AtomicBool::new(false));
        Constraint(Arc::new(Beginning { matcher, fresh, is_spent, vocab_size, eos }), Thoughts::Over)
    }

    /// The same, as long as another has it.
    pub(super) fn live(&self) -> LiveConstraint {
        LiveConstraint(Arc::downgrade(&self.0))
    }

    /// The same, of what comes after thoughts.
    pub fn after(self, thoughts: Thoughts) -> Self {
        Constraint(self.0, thoughts)
    }

    /// How many tokens the vocabulary has that it was compiled for.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    /// A matcher at the beginning.
    pub fn matcher(&self) -> Matcher {
        let (inner, beginning) = (self.0.matcher.clone(), self.0.clone());
        Matcher { inner, beginning, tokens: Vec::new(), is_alone: false, thoughts: self.1, mask: Vec::new() }
    }
}

impl LiveConstraint {
    /// The constraint, if a request has it, and there is more that its lexer can do.
    pub(super) fn get(&self) -> Option<Constraint> {
        let beginning = self.0.upgrade().filter(|beginning| !beginning.is_spent.load(Ordering::Relaxed));
        beginning.map(|beginning| Constraint(beginning, Thoughts::Over))
    }

    /// Whether a request has it.
    pub(super) fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) && self.1 == other.1
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Matcher {
    /// The tokens that may follow, as of the last [`compute_masks`]: a bit for each token, the first in the lowest bit of
    /// the first word.
    pub fn mask(&self) -> &[u32] {
        &self.mask
    }

    /// Computes the mask. It is empty if the output cannot go on, or if finding that out is more work than is allowed.
    pub fn compute_mask(&mut self) {
        let Beginning { vocab_size, ref eos, .. } = *self.beginning;
        let words = mask_words(vocab_size as u32) as usize;
        self.mask.clear();
        if let Thoughts::Until(_) = self.thoughts {
            self.mask.resize(words, u32::MAX);
            // Thoughts alone are no answer.
            eos.iter().for_each(|&token| allow(&mut self.mask, token, false));
            return;
        }
        match self.bits() {
            Some(bits) => {
                self.mask.extend(&bits.as_slice()[..words]);
                // The end is one more token of the library's vocabulary, and any of several of the model's.
                let ends = bits.is_allowed(vocab_size as u32);
                if let Some(last) = self.mask.last_mut() {
                    *last &= u32::MAX >> (words * 32 - vocab_size);
                }
                if ends {
                    self.beginning.eos.iter().for_each(|&token| allow(&mut self.mask, token, true));
                }
            }
            None => self.mask.resize(words, 0),
        }
        if let Thoughts::Possible { begin, .. } = self.thoughts {
            allow(&mut self.mask, begin, true);
        }
    }

    /// The mask as the library has it.
    fn bits(&mut self) -> Option<SimpleVob> {
        match within_deadline(self.inner.cancellation_handle(), || self.inner.compute_mask()) {
            Err(_) if self.step_aside() => {
                within_deadline(self.inner.cancellation_handle(), || self.inner.compute_mask()).ok()
            }
            bits => bits.ok(),
        }
    }

    /// Goes on with a lexer of its own, after that of all has failed. False if it has one already, or comes no further with it.
    fn step_aside(&mut self) -> bool {
        // A cancelled mask would take as long with another lexer.
        if self.is_alone || self.inner.is_cancelled() {
            return false;
        }
        self.beginning.is_spent.store(true, Ordering::Relaxed);
        let mut inner = self.beginning.fresh.deep_clone();
        self.is_alone = inner.consume_tokens(&self.tokens).is_ok();
        if self.is_alone {
            self.inner = inner;
        }
        self.is_alone
    }

    /// Whether its lexer is its own.
    #[cfg(test)]
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// What is the same for matchers that share a lexer.
    fn lexer(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.beginning).addr(), if self.is_alone { std::ptr::from_ref(self).addr() } else { 0 })
    }

    /// Reads one more token.
    pub fn read(&mut self, token: u32) -> Reading {
        match self.thoughts {
            Thoughts::Possible { begin, end } if token == begin => {
                self.thoughts = Thoughts::Until(end);
                return Reading::Open;
            }
            Thoughts::Until(end) => {
                if token == end {
                    self.thoughts = Thoughts::Over;
                }
                return Reading::Open;
            }
            Thoughts::Possible { .. } | Thoughts::Over => self.thoughts = Thoughts::Over,
        }
        let Beginning { vocab_size, ref eos, .. } = *self.beginning;
        let token = if eos.contains(&token) { vocab_size as u32 } else { token };
        let mut taken = self.inner.try_consume_tokens(&[token]);
        if taken.is_err() && self.step_aside() {
            taken = self.inner.try_consume_tokens(&[token]);
        }
        if !matches!(taken, Ok(1)) {
            return Reading::Refused;
        }
        self.tokens.push(token);
        if self.inner.is_stopped() { Reading::Complete } else { Reading::Open }
    }

    /// Whether the output would be complete if it ended here.
    pub fn may_end(&mut self) -> bool {
        self.inner.is_stopped() && !self.inner.is_error() || self.inner.is_accepting().unwrap_or(false)
    }
}

impl Clone for Matcher {
    fn clone(&self) -> Self {
        // A lexer that has failed for all is not shared again.
        let inner = if self.is_alone { self.inner.deep_clone() } else { self.inner.clone() };
        let (beginning, tokens, mask) = (self.beginning.clone(), self.tokens.clone(), self.mask.clone());
        Matcher { inner, beginning, tokens, mask, ..*self }
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").field("state", &self.inner.stop_reason()).finish_non_exhaustive()
    }
}

/// Sets a token's bit, if it has one.
fn allow(mask: &mut [u32], token: u32, may_follow: bool) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        let bit = 1 << (token % 32);
        *word = if may_follow { *word | bit } else { *word & !bit };
    }
}

/// Computes the masks of all `matchers`: one after the other where they share a lexer, and would wait for it; others at a time.
pub fn compute_masks(mut matchers: Vec<&mut Matcher>) {
    matchers.sort_by_key(|matcher| matcher.lexer());
    let mut groups: Vec<_> = matchers.chunk_by_mut(|a, b| a.lexer() == b.lexer()).collect();
    let compute = |group: &mut &mut [&mut Matcher]| group.iter_mut().for_each(|matcher| matcher.compute_mask());
    match groups.as_mut_slice() {
        [] => {}
        [one] => compute(one),
        several => several.par_iter_mut().for_each(compute),
    }
}
