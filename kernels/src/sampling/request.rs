//! The request for one row of logits, as a record in device memory.

use core::fmt;

use super::select::CANDIDATES;
use crate::arithmetic::{ln, share};

/// Maximum number of tokens in a vocabulary. Sums of their weights then fit in 64 bits.
pub const MAX_VOCAB: u32 = 1 << 19;

/// The mask of a row whose tokens can all be chosen.
pub const NO_MASK: u32 = u32::MAX;

/// Words of a mask, which has a bit for each token. The first token has the lowest bit of the first word. A bit is 1 if
/// the token can be chosen.
pub const fn mask_words(vocab: u32) -> u32 {
    vocab.div_ceil(32)
}

/// How a token is chosen from one row of logits. A block reads the whole request at once, 64 bytes, so requests are
/// records instead of one array for each field.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// The sequence's seed.
    pub seed: u64,
    /// Number of tokens that the sequence has generated.
    pub position: u32,
    /// Index of the mask that says which tokens can be chosen, or [`NO_MASK`].
    pub mask: u32,
    /// Sample among the likeliest tokens that together reach this share, in units of 2^-64. 0 turns this off.
    pub top_p: u64,
    /// The inverse of the temperature, or 0 for greedy.
    pub inverse_temperature: f32,
    /// Sample among the `k` likeliest tokens. 0 means all tokens.
    pub top_k: u32,
    /// Sample among tokens whose scaled logit is at least this, where the greatest is 0. It is the logarithm of min-p.
    pub floor: f32,
    /// The penalties that [`Adjustment`]s apply.
    pub penalties: Penalties,
    /// Index of the row's first adjustment.
    pub first_adjustment: u32,
    /// Number of the row's adjustments.
    pub adjustments: u32,
    /// Index at which the row's likeliest tokens and their logprobs are stored.
    pub first_top: u32,
    /// Number of likeliest tokens to store.
    pub top: u16,
    /// 1 if the likeliest tokens are those that the mask allows, which may be fewer. 0 if all tokens count.
    pub masked_top: u16,
}

/// Penalties of one request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides positive and multiplies negative logits of tokens that were seen. 1 has no effect.
    pub repetition: f32,
    /// Subtracted from the logits of generated tokens.
    pub presence: f32,
    /// Subtracted once for each time that a token was generated.
    pub frequency: f32,
}

/// A token whose logit is changed before the choice.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// The token. No row has two adjustments of the same token.
    pub token: u32,
    /// How often the token was generated. 0 if it is only in the prompt. -1 if it was not seen, and then only the bias
    /// applies.
    pub count: i32,
    /// Added to the logit after the penalties.
    pub bias: f32,
    /// The logit before the adjustment, which the kernel writes.
    pub raw: f32,
}

impl Request {
    /// A greedy request without any other options.
    pub const GREEDY: Request = Request {
        seed: 0,
        position: 0,
        mask: NO_MASK,
        top_p: 0,
        inverse_temperature: 0.0,
        top_k: 0,
        floor: f32::NEG_INFINITY,
        penalties: Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 },
        first_adjustment: 0,
        adjustments: 0,
        first_top: 0,
        top: 0,
        masked_top: 0,
    };

    /// Sets the temperature, 0 for greedy. If the inverse of a temperature would overflow, it becomes the largest
    /// finite number.
    pub fn with_temperature(self, temperature: f32) -> Request {
        let inverse_temperature = if temperature == 0.0 { 0.0 } else { (1.0 / temperature).min(f32::MAX) };
        Request { inverse_temperature, ..self }
    }

    /// Sets top-p. 1 turns it off.
    pub fn with_top_p(self, top_p: f32) -> Request {
        // The smallest share selects only the likeliest token. 0 would turn top-p off.
        Request { top_p: if top_p < 1.0 { share(top_p).max(1) } else { 0 }, ..self }
    }

    /// Sets min-p. 0 turns it off.
    pub fn with_min_p(self, min_p: f32) -> Request {
        Request { floor: if min_p > 0.0 { ln(min_p) } else { f32::NEG_INFINITY }, ..self }
    }

    /// Refuses requests that [`sample`](super::sample()) does not support.
    ///
    /// # Errors
    /// [`Refused`], with the reason.
    pub const fn check(&self, vocab: u32) -> Result<(), Refused> {
        if vocab == 0 || vocab > MAX_VOCAB {
            return Err(Refused::Vocabulary(vocab));
        }
        let wanted = self.top as u32;
        if wanted > vocab || wanted > CANDIDATES {
            let most = if vocab < CANDIDATES { vocab } else { CANDIDATES };
            return Err(Refused::Top { wanted, most });
        }
        Ok(())
    }

    /// Returns the record as the device reads it.
    pub const fn words(&self) -> [u32; 16] {
        let Penalties { repetition, presence, frequency } = self.penalties;
        [
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.position,
            self.mask,
            self.top_p as u32,
            (self.top_p >> 32) as u32,
            self.inverse_temperature.to_bits(),
            self.top_k,
            self.floor.to_bits(),
            repetition.to_bits(),
            presence.to_bits(),
            frequency.to_bits(),
            self.first_adjustment,
            self.adjustments,
            self.first_top,
            self.top as u32 | (self.masked_top as u32) << 16,
        ]
    }
}

impl Penalties {
    /// Returns the logit of a token after its adjustment. A finite logit stays finite.
    #[inline(always)]
    pub fn adjust(&self, logit: f32, count: i32, bias: f32) -> f32 {
        if logit == f32::NEG_INFINITY {
            return logit;
        }
        let mut x = logit;
        if count >= 0 {
            x = if x > 0.0 { x / self.repetition } else { x * self.repetition };
        }
        if count > 0 {
            x -= self.presence + self.frequency * count as f32;
        }
        (x + bias).clamp(f32::MIN, f32::MAX)
    }
}

impl Adjustment {
    /// Returns the record as the device reads it.
    pub const fn words(&self) -> [u32; 4] {
        [self.token, self.count as u32, self.bias.to_bits(), self.raw.to_bits()]
    }
}

/// The reason why the kernel does not support a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The vocabulary is empty or has more than [`MAX_VOCAB`] tokens. Has its size.
    Vocabulary(u32),
    /// The request asks for more of the likeliest tokens than the kernel can sort or the vocabulary has.
    Top {
        /// Number of tokens that the request asks for.
        wanted: u32,
        /// Largest supported number.
        most: u32,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Vocabulary(vocab) => {
                write!(f, "the GPU samples from vocabularies of 1 to {MAX_VOCAB} tokens, not of {vocab}")
            }
            Refused::Top { wanted, most } => {
                write!(
                    f,
                    "the request needs the {wanted} likeliest tokens (logprobs or beams), but the GPU finds at most {most}"
                )
            }
        }
    }
}

impl core::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_match_their_words() {
        let request = Request {
            seed: 0x1_0000_0002,
            position: 3,
            mask: 4,
            top_p: 0x5_0000_0006,
            inverse_temperature: 7.0,
            top_k: 8,
            floor: 9.0,
            penalties: Penalties { repetition: 10.0, presence: 11.0, frequency: 12.0 },
            first_adjustment: 13,
            adjustments: 14,
            first_top: 15,
            top: 16,
            masked_top: 1,
        };
        // SAFETY: the record has no padding, since its fields have as many bytes as its words.
        assert_eq!(unsafe { core::mem::transmute::<Request, [u32; 16]>(request) }, request.words());
        let adjustment = Adjustment { token: 1, count: -2, bias: 3.0, raw: 4.0 };
        // SAFETY: as above.
        assert_eq!(unsafe { core::mem::transmute::<Adjustment, [u32; 4]>(adjustment) }, adjustment.words());
    }

    #[test]
    fn requests_beyond_the_limits_are_refused() {
        assert_eq!(Request::GREEDY.check(32_000), Ok(()));
        assert_eq!(Request::GREEDY.check(MAX_VOCAB + 1), Err(Refused::Vocabulary(MAX_VOCAB + 1)));
        let beams = Request { top: 5000, ..Request::GREEDY };
        assert_eq!(beams.check(32_000), Err(Refused::Top { wanted: 5000, most: CANDIDATES }));
        assert_eq!(Request { top: 9, ..Request::GREEDY }.check(8), Err(Refused::Top { wanted: 9, most: 8 }));
    }

    #[test]
    fn adjusted_logits_stay_numbers() {
        let hard = Penalties { repetition: 1e-38, presence: 2.0, frequency: 2.0 };
        assert_eq!(hard.adjust(1e30, 1, 0.0), f32::MAX);
        assert_eq!(hard.adjust(f32::NEG_INFINITY, 1, 0.0), f32::NEG_INFINITY);
        let soft = Penalties { repetition: 2.0, presence: 0.5, frequency: 0.25 };
        assert_eq!([soft.adjust(3.0, 0, 0.0), soft.adjust(-3.0, 0, 0.0), soft.adjust(3.0, -1, 1.0)], [1.5, -6.0, 4.0]);
        assert_eq!(soft.adjust(3.0, 2, 0.0), 0.5);
    }

    #[test]
    fn extreme_temperatures_and_shares() {
        assert_eq!(Request::GREEDY.with_temperature(1e-40).inverse_temperature, f32::MAX);
        assert_eq!(Request::GREEDY.with_temperature(0.0).inverse_temperature, 0.0);
        assert!(Request::GREEDY.with_temperature(f32::MAX).inverse_temperature > 0.0);
        assert_eq!(Request::GREEDY.with_top_p(1.0).top_p, 0);
        assert_eq!(Request::GREEDY.with_top_p(1e-30).top_p, 1);
        assert_eq!(Request::GREEDY.with_min_p(0.0).floor, f32::NEG_INFINITY);
        assert_eq!(Request::GREEDY.with_min_p(1.0).floor, 0.0);
        assert!(Request::GREEDY.with_min_p(1e-40).floor < -87.0);
    }
}
