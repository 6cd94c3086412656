//! Long texts in pieces: where a text may be cut so that the tokens of the parts are those of the whole.
//!
//! The `tokenizers` crate takes a hundred times a text's size in memory and more, all of it until the text is done. In
//! pieces it is a hundred times a piece's, and the work can stop once there are more tokens than a prompt may have.
//!
//! A text may be cut before a space, but only where nothing looks across:
//!
//! * The byte-level tokenizers of GPT-2, LLaMA 3 and Qwen split a text by regular expressions in which a space is nothing
//!   but the beginning of a match, or a part of one that begins with white space. So after anything else a match ends
//!   before the space, and nothing in the expressions looks back.
//! * Tokenizers like sentencepiece's write a space as `▁`, and one more in front of the text. Where no token has a `▁`
//!   after another character, none lies across such a place. The part behind is cut without its space, since it gets
//!   the `▁` that is put in front.
//!
//! Added tokens are found first. None may have a space in it, or take those around it; and where a `▁` is put in front of
//! a text, that is done after an added token too, and not before one.

use serde_json::{Value, json};
use tokenizers::AddedToken;

use super::anatomy::{Anatomy, SPACE};
use checkpoint::error::Result;

/// Bytes of a piece.
const PIECE: usize = 32 << 10;

/// The regular expressions by which LLaMA 3's and Qwen's tokenizers split.
const KNOWN_SPLITS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// What it takes to encode a text in pieces.
#[derive(Clone)]
pub(super) struct Pieces {
    cuts: Cuts,
    /// The special tokens before and after a text that gets them.
    around: (Vec<u32>, Vec<u32>),
    /// Texts up to this many bytes are encoded whole, and pieces have as many or a few more.
    size: usize,
}

/// Where a tokenizer's texts may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Whether the space at which a text is cut is left out.
    drops_space: bool,
    /// Characters that an added token ends with, where it matters.
    not_after: Vec<char>,
    /// Characters that an added token begins with, where it matters.
    not_before: Vec<char>,
}

impl Pieces {
    /// For texts that may be cut at `cuts`, with these special tokens before and after.
    pub fn new(cuts: Cuts, around: (Vec<u32>, Vec<u32>)) -> Self {
        Pieces { cuts, around, size: PIECE }
    }

    /// Makes pieces of this many bytes or a few more.
    #[cfg(test)]
    pub fn set_size(&mut self, size: usize) {
        self.size = size;
    }

    /// Whether `text` has more than one piece.
    pub fn parts(&self, text: &str) -> bool {
        text.len() > self.size && self.cuts.first(text, self.size).1.is_some()
    }

    /// The ids of `text`, by way of `encode` for pieces of it, which adds no special tokens. Ends early once there are more
    /// than `most`.
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
    /// Of the tokenizer with these parts; nothing if it is of no kind that is known well enough.
    pub fn of(parts: &Anatomy<'_>) -> Option<Self> {
        let stands_alone = |token: &&AddedToken| {
            !token.lstrip && !token.rstrip && !token.content.contains(' ') && !token.content.contains(SPACE)
        };
        if parts.bpe.dropout.is_some() || !parts.added.iter().all(stands_alone) {
            return None;
        }
        if is_byte_level(parts) {
            return Some(Cuts { drops_space: false, not_after: Vec::new(), not_before: Vec::new() });
        }
        if is_sentencepiece(parts) && parts.knows_every_character() && parts.vocabulary.iter().all(|t| !crosses(t)) {
            let contents = || parts.added.iter().map(|token| token.content.as_str());
            return Some(Cuts {
                drops_space: true,
                not_after: contents().filter_map(|content| content.chars().next_back()).collect(),
                not_before: contents().filter_map(|content| content.chars().next()).collect(),
            });
        }
        None
    }

    /// The first piece of `text`, of `size` bytes or a few more, and what is left after it.
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
    let known_split = |step: &Value| {
        KNOWN_SPLITS.iter().any(|regex| has(step, "pattern", json!({"Regex": regex})))
            && has(step, "type", json!("Split"))
            && has(step, "behavior", json!("Isolated"))
            && has(step, "invert", json!(false))
    };
    let composed = parts.normalizers.iter().all(|step| has(step, "type", json!("NFC")));
    composed
        && match &parts.pre_tokenizers[..] {
            [one] => bytes(one, true),
            [split, two] => known_split(split) && bytes(two, false),
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
