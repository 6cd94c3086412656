//! Counts of a grammar's parts.

use super::Weight;

/// Maximum nested objects and arrays of a schema, with references followed. Each takes up to 5 KB of stack.
pub(super) const MAX_LEVELS: usize = 2000;
/// Maximum rules, terminals and groups of a Lark grammar. Each takes up to 4 KB of stack.
pub(super) const MAX_RULES: usize = 4000;
/// Maximum property names in all schemas of a grammar. The cost of an object is quadratic in its properties.
const MAX_NAMES: usize = 5000;
/// Maximum repetitions in all regular expressions and rules. The cost of a sequence is quadratic in its optional parts.
const MAX_REPEATS: usize = 2000;
/// Maximum parts of all regular expressions.
const MAX_REGEX_PARTS: usize = 20_000;
/// Maximum Unicode classes such as `\p{L}`. Each has a few hundred ranges.
const MAX_CLASSES: usize = 200;

/// Maximum bytes of a light grammar.
const LIGHT_BYTES: usize = 16 << 10;
/// Maximum rules of a light grammar.
const LIGHT_RULES: usize = 300;
/// Maximum property names in a light grammar.
const LIGHT_NAMES: usize = 300;
/// Maximum parts of regular expressions in a light grammar.
const LIGHT_REGEX_PARTS: usize = 1000;

/// Counts of a grammar's parts, to compare with the limits.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Bytes of text.
    pub bytes: usize,
    /// Rules, terminals and groups.
    pub rules: usize,
    /// Property names.
    pub names: usize,
    /// Repetitions.
    pub repeats: usize,
    /// Parts of regular expressions.
    pub regex_parts: usize,
    /// Unicode classes.
    pub classes: usize,
    /// Whether the grammar has a part of unknown cost, such as an intersection.
    pub is_heavy: bool,
}

impl Tally {
    /// Compares the counts with the limits and returns the grammar's weight.
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
