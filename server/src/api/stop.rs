//! Fields that determine when an output or a beam search stops.

use std::fmt;

use engine::EarlyStopping;
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};

use crate::error::{ApiError, check};

/// Maximum stop strings in a request.
const MAX_STOPS: usize = 16;
/// Maximum stop tokens in a request.
const MAX_STOP_TOKENS: usize = 1024;
/// Maximum bytes of a stop string.
const MAX_STOP_BYTES: usize = 1024;

/// One stop string, or several.
#[derive(Debug)]
pub struct Stop(Vec<String>);

/// `early_stopping`: true, false or "never".
#[derive(Debug)]
pub struct StopBeams(pub EarlyStopping);

impl Stop {
    /// Returns the stop strings.
    ///
    /// # Errors
    /// See [`Stop::of`].
    pub fn strings(self) -> Result<Vec<String>, ApiError> {
        Self::of("stop", self.0).map(|Stop(strings)| strings)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks the stop strings of `field`.
    ///
    /// # Errors
    /// 400 if there are too many, or one is empty or too long.
    pub fn of(field: &str, strings: Vec<String>) -> Result<Self, ApiError> {
        check(strings.len() <= MAX_STOPS, field, || format!("{field} may have at most {MAX_STOPS} stop strings"))?;
        check(strings.iter().all(|s| (1..=MAX_STOP_BYTES).contains(&s.len())), field, || {
            format!("{field}: a stop string must have between 1 and {MAX_STOP_BYTES} bytes")
        })?;
        Ok(Stop(strings))
    }
}

/// Checks the stop tokens.
///
/// # Errors
/// 400 if there are too many.
pub fn stop_tokens(ids: Vec<u32>) -> Result<Vec<u32>, ApiError> {
    check(ids.len() <= MAX_STOP_TOKENS, "stop_token_ids", || {
        format!("stop_token_ids may have at most {MAX_STOP_TOKENS} tokens")
    })?;
    Ok(ids)
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Stop;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of strings")
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Stop, E> {
                Ok(Stop(vec![value.into()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Stop, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(items)).map(Stop)
            }
        }

        deserializer.deserialize_any(OneOrMore)
    }
}

impl<'de> Deserialize<'de> for StopBeams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoolOrNever;

        impl Visitor<'_> for BoolOrNever {
            type Value = StopBeams;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"never\"")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<StopBeams, E> {
                Ok(StopBeams(if value { EarlyStopping::Yes } else { EarlyStopping::No }))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<StopBeams, E> {
                match value {
                    "never" => Ok(StopBeams(EarlyStopping::Never)),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
        }

        deserializer.deserialize_any(BoolOrNever)
    }
}
