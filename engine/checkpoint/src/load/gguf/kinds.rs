//! The kinds of tokens, numbered as in GGUF files.

pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
/// Pads the vocabulary to the rows of the embedding.
pub(super) const UNUSED: i32 = 5;
/// Encodes a byte of a character that has no token.
pub(super) const BYTE: i32 = 6;
