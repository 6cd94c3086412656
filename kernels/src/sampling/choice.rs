//! The kernel [`sample()`], with the steps that choose a token in order.

use cuda_std::prelude::*;

use super::noise::{MAX_GUMBEL, Noise, gumbel};
use super::request::{Adjustment, NO_MASK, Request, mask_words};
use super::scan::{LogitRow, THREADS, Team};
use super::select::{collect, reset, threshold};
use crate::arithmetic::{logprob, rank, score, token, weight};
use cuda_std::unroll::unroll;

/// The token of a row that cannot be sampled, because a logit is NaN or positive infinity, or all are negative
/// infinity.
pub const NO_TOKEN: u32 = u32::MAX;

/// Bytes that must be read for `rows` rows.
pub const fn floor_bytes(rows: u64, vocab: u64) -> u64 {
    4 * rows * vocab
}

/// Chooses a token for each row.
///
/// - `logits`: `[rows][vocab]`, rows `stride` elements apart (a multiple of 4). The kernel overwrites the logits of
///   adjusted tokens, and of tokens that a mask rules out.
/// - `requests`: `[rows]`. A request's adjustments are a range of `adjustments`, and its likeliest tokens a range of
///   `top_tokens` and `top_logprobs`.
/// - `masks`: `[masks][mask_words(vocab)]`, see [`mask_words`]. Several rows may share one.
/// - `tokens`, `logprobs`: `[rows]`. A row that cannot be sampled gets only [`NO_TOKEN`].
/// - `top_tokens`, `top_logprobs`: the likeliest tokens of each row, best first. If a mask leaves fewer tokens than
///   requested, the others are [`NO_TOKEN`], and their logprobs are not written.
///
/// # Safety
/// The arrays have these shapes, and `logits` is 16-byte aligned. Requests pass [`Request::check`]. Adjusted tokens are
/// in the vocabulary, and no row adjusts one twice. `masks` has all masks that requests name. The launch has a block of
/// [`THREADS`] for each row.
#[kernel(dependent, max_threads = 512)]
pub unsafe fn sample(
    logits: *mut f32,
    stride: u32,
    vocab: u32,
    requests: *const Request,
    adjustments: *mut Adjustment,
    masks: *const u32,
    tokens: *mut u32,
    logprobs: *mut f32,
    top_tokens: *mut u32,
    top_logprobs: *mut f32,
) {
    let row = thread::block_idx_x() as usize;
    let leads = thread::thread_idx_x() == 0;
    // SAFETY: the arrays have their shapes and requests are checked, by this kernel's contract. Branches around
    // barriers depend only on numbers that all threads of the block share, so the threads take them together.
    unsafe {
        let request = *requests.add(row);
        let logits = logits.add(row * stride as usize);
        let raw = LogitRow::raw(logits, vocab);
        let mut team = Team::new();
        reset();

        let best = likeliest(&mut team, &raw);
        // Read from the row, since ranks do not distinguish 0.0 from -0.0. If a logit is NaN or positive infinity, this
        // reads the row's first logit, which is then unused.
        let greatest = *logits.add(token(best) as usize);
        if best == u64::MAX || greatest == f32::NEG_INFINITY {
            if leads {
                *tokens.add(row) = NO_TOKEN;
            }
            return;
        }
        let sum = sum_of_weights(&mut team, &LogitRow { greatest, ..raw });

        let is_masked = request.mask != NO_MASK;
        let mask = masks.add(if is_masked { request.mask as usize * mask_words(vocab) as usize } else { 0 });
        let top = u32::from(request.top);
        let mut found = top;
        if is_masked && request.masked_top != 0 {
            // Before the sum's barrier, each thread counts only tokens that it has masked itself. After it, all threads
            // see all of them.
            rule_out(mask, logits, vocab);
            found = top.min(count_possible(&mut team, &raw));
        }
        if found > 0 {
            let last = threshold::<false>(&mut team, &raw, greatest, 0, found.into());
            let ranks = collect(&raw, last, u64::MAX, found);
            each(found, |at| {
                let rank = *ranks.add(at);
                let to = request.first_top as usize + at;
                *top_tokens.add(to) = token(rank);
                *top_logprobs.add(to) = logprob(score(rank), greatest, sum);
            });
        }
        each(top - found, |at| *top_tokens.add((request.first_top + found) as usize + at) = NO_TOKEN);

        let own = adjustments.add(request.first_adjustment as usize);
        let mut adjusted = best;
        if is_masked && request.masked_top == 0 {
            rule_out(mask, logits, vocab);
            thread::sync_threads();
        }
        if request.adjustments > 0 {
            each(request.adjustments, |i| {
                let Adjustment { token, count, bias, .. } = *own.add(i);
                let logit = logits.add(token as usize);
                (*own.add(i)).raw = *logit;
                *logit = request.penalties.adjust(*logit, count, bias);
            });
            thread::sync_threads();
        }
        if is_masked || request.adjustments > 0 {
            adjusted = likeliest(&mut team, &raw);
        }
        let mut chosen = token(adjusted);
        // If no token is possible, sampling has no distribution to draw from, and the first token is reported as
        // impossible.
        if request.inverse_temperature != 0.0 && *logits.add(chosen as usize) != f32::NEG_INFINITY {
            chosen = draw(&mut team, &request, logits, vocab, chosen);
        }

        let mut logit = *logits.add(chosen as usize);
        if request.adjustments > 0 {
            // Only the thread that adjusted the chosen token has its raw logit. The bit above the logit distinguishes a
            // logit of 0.0 from no logit.
            let mut found = 0;
            each(request.adjustments, |i| {
                if (*own.add(i)).token == chosen {
                    found = 1 << 32 | u64::from((*own.add(i)).raw.to_bits());
                }
            });
            let found = team.max(found);
            if found != 0 {
                logit = f32::from_bits(found as u32);
            }
        }
        if leads {
            *tokens.add(row) = chosen;
            *logprobs.add(row) = logprob(logit, greatest, sum);
        }
    }
}

/// Sets this thread's logits to negative infinity where the token's bit in `mask` is 0.
///
/// # Safety
/// `logits` has `vocab` elements, `mask` its words, and no other thread reads or writes this thread's logits meanwhile.
#[inline(always)]
unsafe fn rule_out(mask: *const u32, logits: *mut f32, vocab: u32) {
    let mut first = 4 * thread::thread_idx_x();
    while first < vocab {
        // SAFETY: `first` is in the vocabulary. Four tokens from a multiple of 4 on have their bits in one word.
        unsafe {
            let bits = *mask.add(first as usize / 32) >> (first % 32);
            unroll::<4>(|i| {
                if bits >> i & 1 == 0 && first + (i as u32) < vocab {
                    *logits.add(first as usize + i) = f32::NEG_INFINITY;
                }
            });
        }
        first += 4 * THREADS;
    }
}

/// Calls `run` with this thread's share of `0..count`.
#[inline(always)]
fn each(count: u32, mut run: impl FnMut(usize)) {
    let mut at = thread::thread_idx_x();
    while at < count {
        run(at as usize);
        at += THREADS;
    }
}

/// Returns the rank of the greatest score, with the lower token first among equals. If a score is NaN or positive
/// infinity, returns [`u64::MAX`].
///
/// # Safety
/// All threads of the block call this together, and the row is valid.
#[inline(always)]
unsafe fn likeliest(team: &mut Team, scores: &LogitRow) -> u64 {
    let mut best = 0;
    // SAFETY: the row is valid and all threads of the block are here, by this function's contract.
    unsafe {
        scores.each(|token, score| {
            // Adding 0.0 maps both zeros to one, since they are equal here. A NaN is not below infinity.
            let rank = if score < f32::INFINITY { rank(score + 0.0, token) } else { u64::MAX };
            best = best.max(rank);
        });
        team.max(best)
    }
}

/// Returns the sum of the weights of all scores, in every thread.
///
/// # Safety
/// As for [`likeliest`].
#[inline(always)]
unsafe fn sum_of_weights(team: &mut Team, scores: &LogitRow) -> u64 {
    let mut own = 0;
    // SAFETY: the row is valid and all threads of the block are here, by this function's contract.
    unsafe {
        scores.each(|_, score| own += weight(score));
        let [sum] = team.sum([own]);
        sum
    }
}

/// Returns how many tokens are possible, in every thread.
///
/// # Safety
/// As for [`likeliest`], but other threads may still write to the tokens that they visit themselves.
#[inline(always)]
unsafe fn count_possible(team: &mut Team, scores: &LogitRow) -> u32 {
    let mut own = 0;
    // SAFETY: the row is valid and all threads of the block are here, by this function's contract.
    unsafe {
        scores.each(|_, score| own += u64::from(score > f32::NEG_INFINITY));
        let [count] = team.sum([own]);
        count as u32
    }
}

/// Samples from the softmax of the scaled logits, restricted by top-k, then top-p, then min-p. `best` is the token with
/// the greatest logit.
///
/// # Safety
/// As for [`likeliest`].
#[inline(always)]
unsafe fn draw(team: &mut Team, request: &Request, logits: *const f32, vocab: u32, best: u32) -> u32 {
    let noise = Noise::new(request.seed, request.position.into());
    // SAFETY: the row is valid and all threads of the block are here, by this function's contract.
    unsafe {
        let greatest = *logits.add(best as usize);
        let scores = LogitRow { logits, vocab, greatest, inverse_temperature: request.inverse_temperature };
        let mut lowest = 0;
        if request.top_k > 0 && request.top_k < vocab {
            lowest = threshold::<false>(team, &scores, 0.0, lowest, request.top_k.into());
        }
        if request.top_p > 0 {
            lowest = threshold::<true>(team, &scores, 0.0, lowest, request.top_p);
        }
        let mut most = noise.gumbel(best);
        let mut own = rank(most + 0.0, best);
        scores.each_quad(|first, scores, count| {
            // Most tokens could not win even with the greatest noise.
            let mut may_win = [false; 4];
            unroll::<4>(|i| {
                may_win[i] = (i as u32) < count
                    && scores[i] + MAX_GUMBEL > most
                    && scores[i] >= request.floor
                    && rank(scores[i], first + i as u32) >= lowest;
            });
            if may_win != [false; 4] {
                let bits = noise.bits(first / 4);
                unroll::<4>(|i| {
                    if may_win[i] {
                        let value = scores[i] + gumbel(bits[i]);
                        own = own.max(rank(value + 0.0, first + i as u32));
                        most = most.max(value);
                    }
                });
            }
        });
        token(team.max(own))
    }
}
