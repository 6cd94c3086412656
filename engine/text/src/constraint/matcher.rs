//! Matchers, which follow an output through its grammar.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use kernels::sampling::mask_words;
use llguidance::toktrie::SimpleVob;
use rayon::prelude::*;

use super::deadline::within_deadline;

/// A compiled grammar that outputs must follow. Clones share the compiled grammar and its lexer.
#[derive(Clone)]
pub struct Constraint(Arc<Beginning>, Thoughts);

/// A weak reference to a constraint, valid while a request uses it.
#[derive(Clone)]
pub(super) struct LiveConstraint(Weak<Beginning>);

/// Where an output is relative to the model's thoughts. The grammar applies only after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thoughts {
    /// No thoughts, or they have ended.
    #[default]
    Over,
    /// The output may begin with the token `begin`. If it does, the thoughts last up to the token `end`.
    Possible {
        /// Token that begins the thoughts.
        begin: u32,
        /// Token that ends the thoughts.
        end: u32,
    },
    /// The output is in the thoughts, which last up to this token.
    Until(u32),
    /// The output consists of messages with headers. The thoughts last up to the contents of the answer's message.
    Message {
        /// The token before a channel, the token of the answer's channel, and the token before contents.
        marks: [u32; 3],
        /// Number of marks that the current header has so far.
        read: usize,
        /// The token that ends a tool call, if the request has tools. The output may end with it.
        call: Option<u32>,
    },
}

impl Thoughts {
    /// The state after another token.
    fn after(self, token: u32) -> Self {
        match self {
            Thoughts::Possible { begin, end } if token == begin => Thoughts::Until(end),
            Thoughts::Until(end) if token != end => self,
            Thoughts::Message { marks: [_, _, message], read: 2, .. } if token == message => Thoughts::Over,
            Thoughts::Message { marks, read, call } => {
                let [channel, name, _] = marks;
                // The contents' type may come between the channel and the contents.
                let read = match read {
                    _ if token == channel => 1,
                    1 if token == name => 2,
                    2 => 2,
                    _ => 0,
                };
                Thoughts::Message { marks, read, call }
            }
            Thoughts::Possible { .. } | Thoughts::Until(_) | Thoughts::Over => Thoughts::Over,
        }
    }

    /// Whether all tokens may follow, except ends of the output.
    fn is_within(self) -> bool {
        matches!(self, Thoughts::Until(_) | Thoughts::Message { .. })
    }
}

struct Beginning {
    /// The initial state of all matchers. They share its lexer. Most of the work on a mask is to compute lexer states
    /// for the first time, so a state that one sequence has reached is cached for all.
    matcher: llguidance::Matcher,
    /// The same initial state with a lexer that is never used. The number of lexer states is limited. When the shared
    /// lexer exceeds the limit, each matcher continues with a copy of this one.
    fresh: llguidance::Matcher,
    /// Whether the shared lexer has failed.
    is_spent: AtomicBool,
    vocab_size: usize,
    eos: Arc<[u32]>,
    unchecked: Vec<String>,
}

/// The grammar state of one sequence, which says which tokens may follow. Clones advance independently.
pub struct Matcher {
    inner: llguidance::Matcher,
    beginning: Arc<Beginning>,
    /// The tokens that `inner` has read.
    tokens: Vec<u32>,
    /// Whether the lexer belongs to this matcher alone.
    has_own_lexer: bool,
    thoughts: Thoughts,
    mask: Vec<u32>,
}

/// The state of an output after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The output may or must continue.
    Open,
    /// The output is complete and nothing can follow.
    Complete,
    /// The token is not allowed and was not read.
    Refused,
}

impl Constraint {
    pub(super) fn new(
        matcher: llguidance::Matcher,
        vocab_size: usize,
        eos: Arc<[u32]>,
        unchecked: Vec<String>,
    ) -> Self {
        let (fresh, is_spent) = (matcher.deep_clone(), AtomicBool::new(false));
        Constraint(Arc::new(Beginning { matcher, fresh, is_spent, vocab_size, eos, unchecked }), Thoughts::Over)
    }

    /// Returns a weak reference to this constraint.
    pub(super) fn live(&self) -> LiveConstraint {
        LiveConstraint(Arc::downgrade(&self.0))
    }

    /// Returns the constraint with these settings for the model's thoughts.
    pub fn after(self, thoughts: Thoughts) -> Self {
        Constraint(self.0, thoughts)
    }

    /// The size of the vocabulary that the constraint was compiled for.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    /// The conditions of the grammar's schemas that outputs are not checked for, each after its position.
    pub fn unchecked(&self) -> &[String] {
        &self.0.unchecked
    }

    /// Creates a matcher for the start of an output.
    pub fn matcher(&self) -> Matcher {
        let (inner, beginning) = (self.0.matcher.clone(), self.0.clone());
        Matcher { inner, beginning, tokens: Vec::new(), has_own_lexer: false, thoughts: self.1, mask: Vec::new() }
    }
}

impl LiveConstraint {
    /// Returns the constraint, if a request still uses it and its shared lexer has not failed.
    pub(super) fn get(&self) -> Option<Constraint> {
        let beginning = self.0.upgrade().filter(|beginning| !beginning.is_spent.load(Ordering::Relaxed));
        beginning.map(|beginning| Constraint(beginning, Thoughts::Over))
    }

    /// Whether a request still uses the constraint.
    pub(super) fn is_used(&self) -> bool {
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
    /// The tokens that may follow, as of the last [`compute_masks`]. Each token has one bit, starting at the lowest bit
    /// of the first word.
    pub fn mask(&self) -> &[u32] {
        &self.mask
    }

    /// Computes the mask. It allows no token if the output cannot continue, or if the computation exceeds its limits.
    pub fn compute_mask(&mut self) {
        let Beginning { vocab_size, ref eos, .. } = *self.beginning;
        let words = mask_words(vocab_size as u32) as usize;
        self.mask.clear();
        if self.thoughts.is_within() {
            self.mask.resize(words, u32::MAX);
            // The output must not end within the thoughts, except with a call.
            eos.iter().for_each(|&token| allow(&mut self.mask, token, false));
            if let Thoughts::Message { call: Some(call), .. } = self.thoughts {
                allow(&mut self.mask, call, true);
            }
            return;
        }
        match self.bits() {
            Some(bits) => {
                self.mask.extend(&bits.as_slice()[..words]);
                // The library has one end token after the vocabulary. The model may have several.
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

    /// Computes the mask in the library's form.
    fn bits(&mut self) -> Option<SimpleVob> {
        match within_deadline(self.inner.cancellation_handle(), || self.inner.compute_mask()) {
            Err(_) if self.use_own_lexer() => {
                within_deadline(self.inner.cancellation_handle(), || self.inner.compute_mask()).ok()
            }
            bits => bits.ok(),
        }
    }

    /// Continues with a lexer of its own after the shared one has failed. Returns false if it already has one or if its
    /// own lexer fails, too.
    fn use_own_lexer(&mut self) -> bool {
        // A cancelled mask would take as long with another lexer.
        if self.has_own_lexer || self.inner.is_cancelled() {
            return false;
        }
        self.beginning.is_spent.store(true, Ordering::Relaxed);
        let mut inner = self.beginning.fresh.deep_clone();
        self.has_own_lexer = inner.consume_tokens(&self.tokens).is_ok();
        if self.has_own_lexer {
            self.inner = inner;
        }
        self.has_own_lexer
    }

    /// Whether this matcher has a lexer of its own.
    #[cfg(test)]
    pub(super) fn has_own_lexer(&self) -> bool {
        self.has_own_lexer
    }

    /// Returns a key that is equal for matchers that share a lexer.
    fn lexer(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.beginning).addr(), if self.has_own_lexer { std::ptr::from_ref(self).addr() } else { 0 })
    }

    /// Reads the output's next token.
    pub fn read(&mut self, token: u32) -> Reading {
        let (before, after) = (self.thoughts, self.thoughts.after(token));
        self.thoughts = after;
        if before.is_within() || after.is_within() {
            return Reading::Open;
        }
        let Beginning { vocab_size, ref eos, .. } = *self.beginning;
        let token = if eos.contains(&token) { vocab_size as u32 } else { token };
        let mut taken = self.inner.try_consume_tokens(&[token]);
        if taken.is_err() && self.use_own_lexer() {
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
        // After the shared lexer has failed, the clone gets a copy of this matcher's own lexer.
        let inner = if self.has_own_lexer { self.inner.deep_clone() } else { self.inner.clone() };
        let (beginning, tokens, mask) = (self.beginning.clone(), self.tokens.clone(), self.mask.clone());
        Matcher { inner, beginning, tokens, mask, ..*self }
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").field("state", &self.inner.stop_reason()).finish_non_exhaustive()
    }
}

/// Sets or clears a token's bit. Ignores tokens outside the mask.
fn allow(mask: &mut [u32], token: u32, may_follow: bool) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        let bit = 1 << (token % 32);
        *word = if may_follow { *word | bit } else { *word & !bit };
    }
}

/// Computes the masks of all `matchers`. Matchers that share a lexer run one after the other, because they would wait
/// for it. Different lexers run in parallel.
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
