//! From logits to tokens on the device: one launch for all rows of a step, whatever each row asks for.
//!
//! [`sample()`] does the same for every row as the CPU's sampler. Given the same logits, it returns the same token and
//! the same logprobs to the last bit, since both use the code of [`arithmetic`](crate::arithmetic) and [`noise`].
//!
//! 1. It finds the greatest raw logit, and refuses a row with a NaN or positive infinite logit.
//! 2. It computes the logarithm of the sum of exponentials for logprobs. Logprobs are of the raw logits.
//! 3. It finds the likeliest tokens with their logprobs, if requested: for reports, or the 2k candidates of beam
//!    search. The candidates must be allowed by the row's mask, so the mask is applied first there.
//! 4. If the row has a mask, the logits of tokens that cannot be chosen become negative infinity, in place. Penalties
//!    and biases change the logits of their tokens, also in place. A row with any of these is scanned again.
//! 5. If greedy, it takes the greatest logit, and the lower id among equals. Otherwise it scales the logits by the
//!    temperature, restricts them by top-k, then top-p, then min-p, and takes the token with the greatest `scaled logit
//!    + Gumbel noise`. This samples from the softmax, depends only on seed, position and token, and needs no sum.
//!
//! Grid: one block of [`THREADS`] for each row. `logits [rows][vocab]` in `f32`, rows 16-byte aligned.
//!
//! # Floor
//!
//! A row's `4 vocab` bytes are read from memory once and stay in L2 (64 rows of 152,000 tokens are 39 MB). Greedy rows
//! need one more pass, sampled rows two, and top-k, top-p and the likeliest tokens usually two each. An exponential is
//! some 20 instructions. A pass that sums exponentials takes a multiprocessor `vocab * 20 / 128` cycles, about 14 us
//! for 152,000 tokens. Other passes are bound by L2, about 6 us. None of this has been measured yet.
//!
//! # Ladder
//!
//! 1. Sort the row (radix sort: 4 passes that write as much as they read), softmax, prefix sum, draw.
//! 2. Radix select with histograms in shared memory: no sort, but logits crowd into few bins, and atomics on the same
//!    address take turns.
//! 3. (here) Counts and sums above a few pivots in registers, and a sort of at most 4,096 candidates. The Gumbel
//!    maximum replaces the prefix sum and the draw. The next step would be a cluster of blocks for each row, for
//!    batches smaller than the GPU.

mod choice;
pub mod noise;
mod request;
mod scan;
mod select;

pub use choice::{NO_TOKEN, floor_bytes, sample};
pub use request::{Adjustment, MAX_VOCAB, NO_MASK, Penalties, Refused, Request, mask_words};
pub use scan::THREADS;
pub(crate) use scan::warp_max_u64;
pub use select::CANDIDATES;
