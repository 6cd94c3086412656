//! From logits to tokens on the device: one launch for a step's rows, whatever each asks for.
//!
//! [`sample()`] does for every row what the CPU's sampler does, and gives the same token and the same logprobs to the
//! last bit, given the same logits: both use the code of [`arithmetic`](crate::arithmetic) and [`noise`].
//!
//! 1. The greatest raw logit; a row with a NaN or an infinite logit is refused.
//! 2. The logarithm of the sum of exponentials, for logprobs, which are of the raw logits.
//! 3. The likeliest tokens with their logprobs, if wanted: for reports, and for beam search its 2k candidates, which are
//!    of those that the row's mask allows: there the mask comes first.
//! 4. A mask, if the row has one: the logits of tokens that cannot be chosen become negative infinity, in place. Penalties
//!    and biases, in place too, of the tokens that have them. A row that has any of these is scanned again.
//! 5. Greedy: the greatest logit, the lower id among equals. Otherwise logits are scaled by the temperature, restricted
//!    by top-k, then top-p, then min-p, and the token with the greatest `scaled logit + Gumbel noise` is taken: a
//!    sample of the softmax that depends on seed, position and token alone, and needs no sum.
//!
//! Grid: a block of [`THREADS`] for each row. `logits [rows][vocab]` in `f32`, rows 16-byte aligned.
//!
//! # Floor
//!
//! A row's `4 vocab` bytes are read from memory once, and stay in L2 (64 rows of 152,000 tokens are 39 MB) for one more
//! pass if greedy, two if sampled, and usually two each for top-k, top-p and the likeliest tokens. An exponential is
//! some 20 instructions: a pass that sums them takes a multiprocessor `vocab * 20 / 128` cycles, about 14 us for
//! 152,000 tokens; others are bound by L2, about 6 us. No figure is measured yet.
//!
//! # Ladder
//!
//! 1. Sort the row (radix sort: 4 passes that write as much as they read), softmax, prefix sum, draw.
//! 2. Radix select with histograms in shared memory: no sort, but logits crowd into few bins, so that atomics on the
//!    same address take turns.
//! 3. (here) Counts and sums above a few pivots in registers, and a sort of at most 4,096 candidates; the Gumbel
//!    maximum in place of a prefix sum and a draw. Next would be a cluster of blocks a row, for batches smaller than
//!    the GPU.

mod choice;
pub mod noise;
mod request;
mod scan;
mod select;

pub use choice::{NO_TOKEN, floor_bytes, sample};
pub use request::{Adjustment, MAX_VOCAB, NO_MASK, Penalties, Refused, Request, mask_words};
pub use scan::THREADS;
pub use select::CANDIDATES;
