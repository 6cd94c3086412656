//! Counts of a grammar's parts.

use super::Weight;

/// Nested objects and arrays of a schema, with references followed, at most. One takes up to 5 KB of stack.
pub(super) const MAX_LEVELS: usize = 2000;
/// Rules, terminals and groups of a Lark grammar, at most. One takes up to 4 KB of stack.
pub(super) const MAX_RULES: usize = 4000;
/// Names of properties in all schemas of a grammar, at most. The work on an object is quadratic in its properties.
const MAX_NAMES: usize = 5000;
/// Repetitions in all regular expressions and rules, at most. The work on a sequence is quadratic in its optional parts.
const MAX_REPEATS: usize = 2000;
/// Parts of all regular expressions, at most.
const MAX_REGEX_PARTS: usize = 20_000;
/// Unicode classes such as `\p{L}`, at most. Each has some hundred ranges.
const MAX_CLASSES: usize = 200;

/// Bytes of a light grammar, at most.
const LIGHT_BYTES: usize = 16 << 10;
/// Rules of a light grammar, at most.
const LIGHT_RULES: usize = 300;
/// Names of properties in a light grammar, at most.
const LIGHT_NAMES: usize = 300;
/// Parts of regular expressions in a light grammar, at most.
const LIGHT_REGEX_PARTS: usize = 1000;

/// Counts of a grammar's parts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Bytes of text.
    pub bytes: usize,
    /// Rules, terminals and groups.
    pub rules: usize,
    /// Names of properties.
    pub names: usize,
    /// Repetitions.
    pub repeats: usize,
    /// Parts of regular expressions.
    pub regex_parts: usize,
    /// Unicode classes.
    pub classes: usize,
    /// Whether the grammar has a part of unknown weight, such as an intersection.
    pub is_heavy: bool,
}

impl Tally {
    /// Compares the counts with the bounds.
    pub fn weight(&self) -> Result<Weight, String> {
        for (count, most, of) in [
            (self.rules, MAX_RULES, "rules, terminals and groups"),
            (self.names, MAX_NAMES, "names of properties"),
            (self.repeats, MAX_REPEATS, "repetitions"),
            (self.regex_parts, MAX_REGEX_PARTS, "parts of regular expressions"),
            (self.classes, MAX_CLASSES, "Unicode classes"),
        ] {
            if count > most {
                return Err(format!("a grammar may have {most} {of} at most, and this one has {count}"));
            }
        }
        let is_light = !self.is_heavy
            && self.bytes <= LIGHT_BYTES
            && self.rules <= LIGHT_RULES
            && self.names <= LIGHT_NAMES
            && self.regex_parts <= LIGHT_REGEX_PARTS
            && self.classes == 0;
        Ok(if is_light { Weight::Light } else { Weight::Heavy })
    }
}
