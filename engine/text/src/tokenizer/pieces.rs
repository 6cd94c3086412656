//! Encodes long texts in pieces. A text is cut only where the tokens of the pieces are the tokens of the whole.
//!
//! The `tokenizers` crate needs over a hundred times a text's size in memory until the whole text is done. With pieces
//! it needs a hundred times a piece's size, and the work can stop once there are more tokens than a prompt may have.
//!
//! A text may be cut before a space if no rule of the tokenizer looks across the cut:
//!
//! * The byte-level tokenizers of GPT-2, LLaMA 3 and Qwen split a text by regular expressions. In these, a space occurs
//!   only at the beginning of a match or in a match that begins with white space. So after any other character a match
//!   ends before the space. The expressions never look back.
//! * Tokenizers like sentencepiece's write a space as `▁`, and put one more in front of the text. If no token has a `▁`
//!   after another character, no token crosses the cut. The second piece is cut without its space, because it gets a
//!   `▁` in front.
//!
//! Added tokens are matched first. None may contain a space or absorb the spaces around it. A tokenizer that puts a `▁`
//! in front of the text may do so after an added token too, but not before one. So a text is not cut next to a
//! character that could belong to an added token.

use serde_json::{Value, json};
use tokenizers::AddedToken;

use super::anatomy::{Anatomy, SPACE};
use checkpoint::error::Result;

/// Bytes per piece.
const PIECE: usize = 32 << 10;

/// The regular expressions that LLaMA 3's and Qwen's tokenizers split by.
const SUPPORTED_SPLITS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Encodes texts in pieces.
#[derive(Clone)]
pub(super) struct Pieces {
    cuts: Cuts,
    /// The special tokens before and after a text.
    around: (Vec<u32>, Vec<u32>),
    /// Minimum size of a piece in bytes. Texts of at most this size are encoded whole.
    size: usize,
}

/// The rules for where a tokenizer's texts may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Whether the space at a cut is dropped.
    drops_space: bool,
    /// The last characters of added tokens, if cuts after these are not allowed.
    not_after: Vec<char>,
    /// The first characters of added tokens, if cuts before these are not allowed.
    not_before: Vec<char>,
}

impl Pieces {
    /// Pieces cut by the rules `cuts`, with these special tokens before and after a text.
    pub fn new(cuts: Cuts, around: (Vec<u32>, Vec<u32>)) -> Self {
        Pieces { cuts, around, size: PIECE }
    }

    /// Sets the minimum size of a piece in bytes.
    #[cfg(test)]
    pub fn set_size(&mut self, size: usize) {
        self.size = size;
    }

    /// Whether `text` has more than one piece.
    pub fn has_several(&self, text: &str) -> bool {
        text.len() > self.size && self.cuts.first(text, self.size).1.is_some()
    }

    /// Encodes `text` piece by piece with `encode`, which adds no special tokens. Stops early once there are more than
    /// `most` ids.
    pub fn encode(
        &self,
        text: &str,
        special: bool,
        most: usize,
        encode: impl Fn(&str) -> Result<Vec<u32>>,
    ) -> Result<Vec<u32>> {
        let (before, after) = &self.around;
        let mut ids = if special { before.clone() } else { Vec::new() };
        let mut rest = Some(text);
        while let Some(text) = rest {
            if ids.len() > most {
                return Ok(ids);
            }
            let (piece, next) = self.cuts.first(text, self.size);
            ids.extend(encode(piece)?);
            rest = next;
        }
        if special {
            ids.extend(after);
        }
        Ok(ids)
    }
}

impl Cuts {
    /// The rules for a tokenizer with these components. `None` if the tokenizer is not of a supported kind.
    pub fn of(parts: &Anatomy<'_>) -> Option<Self> {
        let is_independent = |token: &&AddedToken| {
            !token.lstrip && !token.rstrip && !token.content.contains(' ') && !token.content.contains(SPACE)
        };
        if parts.bpe.dropout.is_some() || !parts.added.iter().all(is_independent) {
            return None;
        }
        if is_byte_level(parts) {
            return Some(Cuts { drops_space: false, not_after: Vec::new(), not_before: Vec::new() });
        }
        if is_sentencepiece(parts) && parts.encodes_every_character() && parts.vocabulary.iter().all(|t| !crosses(t)) {
            let contents = || parts.added.iter().map(|token| token.content.as_str());
            return Some(Cuts {
                drops_space: true,
                not_after: contents().filter_map(|content| content.chars().next_back()).collect(),
                not_before: contents().filter_map(|content| content.chars().next()).collect(),
            });
        }
        None
    }

    /// Splits off the first piece of `text`, of at least `size` bytes, and returns it with the rest.
    fn first<'a>(&self, text: &'a str, size: usize) -> (&'a str, Option<&'a str>) {
        let spaces = text.bytes().enumerate().skip(size).filter(|(_, byte)| *byte == b' ');
        let cut = spaces.map(|(at, _)| at).find(|&at| self.allows(&text[..at], &text[at + 1..]));
        match cut {
            None => (text, None),
            Some(at) if self.drops_space => (&text[..at], Some(&text[at + 1..])),
            Some(at) => (&text[..at], Some(&text[at..])),
        }
    }

    /// Whether a text may be cut at the space between `before` and `after`.
    fn allows(&self, before: &str, after: &str) -> bool {
        let Some(last) = before.chars().next_back().filter(|last| !last.is_whitespace()) else { return false };
        if !self.drops_space {
            return true;
        }
        let Some(next) = after.chars().next().filter(|next| !next.is_whitespace()) else { return false };
        !SPACE.contains([last, next]) && !self.not_after.contains(&last) && !self.not_before.contains(&next)
    }
}

/// Whether a token has a `▁` after another character.
fn crosses(token: &str) -> bool {
    token.trim_start_matches(SPACE).contains(SPACE)
}

fn is_byte_level(parts: &Anatomy<'_>) -> bool {
    let has = |step: &Value, field: &str, value: Value| step.get(field) == Some(&value);
    let bytes = |step: &Value, splits: bool| {
        has(step, "type", json!("ByteLevel"))
            && has(step, "add_prefix_space", json!(false))
            && has(step, "use_regex", json!(splits))
    };
    let is_supported_split = |step: &Value| {
        SUPPORTED_SPLITS.iter().any(|regex| has(step, "pattern", json!({"Regex": regex})))
            && has(step, "type", json!("Split"))
            && has(step, "behavior", json!("Isolated"))
            && has(step, "invert", json!(false))
    };
    let composed = parts.normalizers.iter().all(|step| has(step, "type", json!("NFC")));
    composed
        && match &parts.pre_tokenizers[..] {
            [one] => bytes(one, true),
            [split, two] => is_supported_split(split) && bytes(two, false),
            _ => false,
        }
}

fn is_sentencepiece(parts: &Anatomy<'_>) -> bool {
    match (&parts.normalizers[..], &parts.pre_tokenizers[..]) {
        ([prepend, replace], []) => {
            *prepend == json!({"type": "Prepend", "prepend": SPACE})
                && *replace == json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
        }
        ([], [metaspace]) => {
            metaspace["type"] == "Metaspace"
                && metaspace["replacement"] == SPACE
                && (metaspace["prepend_scheme"] == "first" || metaspace["prepend_scheme"] == "always")
        }
        _ => false,
    }
}
