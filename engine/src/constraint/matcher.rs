//! How far an output is on its way through a grammar.

use std::fmt;
use std::sync::Arc;

use kernels::sampling::mask_words;
use rayon::prelude::*;

/// What an output must be: a compiled grammar. Clones are the same constraint.
#[derive(Clone)]
pub struct Constraint(Arc<Beginning>, Thoughts);

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
    matcher: llguidance::Matcher,
    vocab_size: usize,
    eos: Arc<[u32]>,
}

/// Has read a sequence's output, and says which tokens may follow. A clone reads on by itself.
pub struct Matcher {
    inner: llguidance::Matcher,
    vocab_size: usize,
    eos: Arc<[u32]>,
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
        Constraint(Arc::new(Beginning { matcher, vocab_size, eos }), Thoughts::Over)
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
        let Beginning { matcher, vocab_size, eos } = &*self.0;
        let (inner, eos) = (matcher.deep_clone(), eos.clone());
        Matcher { inner, vocab_size: *vocab_size, eos, thoughts: self.1, mask: Vec::new() }
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
        let words = mask_words(self.vocab_size as u32) as usize;
        self.mask.clear();
        if let Thoughts::Until(_) = self.thoughts {
            self.mask.resize(words, u32::MAX);
            // Thoughts alone are no answer.
            self.eos.iter().for_each(|&token| allow(&mut self.mask, token, false));
            return;
        }
        match self.inner.compute_mask() {
            Ok(bits) => {
                self.mask.extend(&bits.as_slice()[..words]);
                // The end is one more token of the library's vocabulary, and any of several of the model's.
                let ends = bits.is_allowed(self.vocab_size as u32);
                if let Some(last) = self.mask.last_mut() {
                    *last &= u32::MAX >> (words * 32 - self.vocab_size);
                }
                if ends {
                    self.eos.iter().for_each(|&token| allow(&mut self.mask, token, true));
                }
            }
            Err(_) => self.mask.resize(words, 0),
        }
        if let Thoughts::Possible { begin, .. } = self.thoughts {
            allow(&mut self.mask, begin, true);
        }
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
        let token = if self.eos.contains(&token) { self.vocab_size as u32 } else { token };
        match self.inner.try_consume_tokens(&[token]) {
            Ok(1) if self.inner.is_stopped() => Reading::Complete,
            Ok(1) => Reading::Open,
            _ => Reading::Refused,
        }
    }

    /// Whether the output would be complete if it ended here.
    pub fn may_end(&mut self) -> bool {
        self.inner.is_stopped() && !self.inner.is_error() || self.inner.is_accepting().unwrap_or(false)
    }
}

impl Clone for Matcher {
    fn clone(&self) -> Self {
        // Deep, so that matchers of one request do not wait for each other.
        Matcher { inner: self.inner.deep_clone(), mask: self.mask.clone(), eos: self.eos.clone(), ..*self }
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

/// Computes the masks of all `matchers`, several at a time.
pub fn compute_masks(mut matchers: Vec<&mut Matcher>) {
    match matchers.as_mut_slice() {
        [] => {}
        [one] => one.compute_mask(),
        several => several.par_iter_mut().for_each(|matcher| matcher.compute_mask()),
    }
}
