//! A lower bound on a text's number of tokens, from its length alone.

use serde_json::Value;

use super::anatomy::{Anatomy, kind};

/// The most bytes of text that one token can stand for. `None` if there is no known limit.
///
/// A limit is known if every normalizer and pre-tokenizer keeps all of the text or makes it longer, and if every token
/// is at least as long as the text that it stands for. There is no limit in these cases:
/// - normalizers that shorten text (NFC combines a letter and its accent) or remove parts of it
/// - pre-tokenizers that remove the separators they split at
/// - models that replace any number of unknown characters by one token
/// - added tokens that absorb the spaces around them
pub(super) fn longest_token(parts: &Anatomy<'_>) -> Option<usize> {
    let keeps = parts.normalizers.iter().all(never_shortens)
        && parts.pre_tokenizers.iter().all(leaves_nothing_out)
        && parts.added.iter().all(|token| !token.lstrip && !token.rstrip);
    if !keeps || !parts.encodes_every_character() {
        return None;
    }
    // In the byte-level alphabet each character is a byte.
    let byte_level = parts.is_byte_level();
    let length = |token: &String| if byte_level { token.chars().count() } else { token.len() };
    let added = parts.added.iter().map(|token| token.content.len());
    parts.vocabulary.iter().map(length).chain(added).max().filter(|&longest| longest > 0)
}

fn never_shortens(step: &Value) -> bool {
    match kind(step) {
        "ByteLevel" | "Prepend" => true,
        "Replace" => {
            let pattern = step.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Value::as_str);
            let content = step.get("content").and_then(Value::as_str);
            pattern.zip(content).is_some_and(|(pattern, content)| content.len() >= pattern.len())
        }
        _ => false,
    }
}

fn leaves_nothing_out(step: &Value) -> bool {
    match kind(step) {
        "ByteLevel" | "Metaspace" | "Digits" => true,
        "Split" | "Punctuation" => step.get("behavior").is_some_and(|behavior| behavior != "Removed"),
        _ => false,
    }
}
