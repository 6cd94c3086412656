//! The bytes of each token, for decoders that decode each token on its own.

use std::collections::BTreeMap;

use super::{Tokenizer, is_byte};

/// The bytes of one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenBytes {
    /// Part of a text.
    Text(Vec<u8>),
    /// A special token, by its name.
    Special(String),
    /// No bytes: there is no such token.
    Nothing,
}

/// How a decoder turns a token's name into bytes.
enum Alphabet {
    /// A character for each byte.
    ByteLevel(BTreeMap<char, u8>),
    /// The name is the text, with a mark for each space. Bytes have names such as `<0x0A>`.
    Marked,
}

/// The character that sentencepiece vocabularies use for a space.
const SPACE: char = '\u{2581}';

impl Tokenizer {
    /// The bytes of the tokens `0..size`. `None` if the decoder's kind is not supported.
    pub(crate) fn token_bytes(&self, size: usize) -> Option<Vec<TokenBytes>> {
        let alphabet = self.alphabet()?;
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let bytes = |id: u32| match (added.get(&id), self.inner.id_to_token(id)) {
            (Some(token), _) if token.special => TokenBytes::Special(token.content.clone()),
            (Some(token), _) => TokenBytes::Text(token.content.clone().into_bytes()),
            (None, Some(name)) => TokenBytes::Text(alphabet.bytes(&name)),
            (None, None) => TokenBytes::Nothing,
        };
        Some((0..u32::try_from(size).ok()?).map(bytes).collect())
    }

    fn alphabet(&self) -> Option<Alphabet> {
        let decoder = serde_json::to_value(self.inner.get_decoder()?).ok()?;
        let steps = super::anatomy::steps(decoder, "decoders");
        let kinds: Vec<&str> = steps.iter().map(super::anatomy::kind).collect();
        let is_mark =
            |step: &serde_json::Value| step["pattern"]["String"] == SPACE.to_string() && step["content"] == " ";
        match kinds.as_slice() {
            ["ByteLevel"] => Some(Alphabet::ByteLevel(byte_characters())),
            _ if kinds.iter().any(|kind| ["WordPiece", "BPEDecoder", "CTC", "ByteLevel"].contains(kind)) => None,
            _ if kinds.contains(&"Metaspace") || steps.iter().any(is_mark) => Some(Alphabet::Marked),
            _ => None,
        }
    }
}

impl Alphabet {
    fn bytes(&self, name: &str) -> Vec<u8> {
        match self {
            // Like the decoder: a name with a character outside the alphabet stands for itself.
            Alphabet::ByteLevel(bytes) => {
                let all: Option<Vec<u8>> = name.chars().map(|c| bytes.get(&c).copied()).collect();
                all.unwrap_or_else(|| name.as_bytes().to_vec())
            }
            Alphabet::Marked if is_byte(name) => vec![u8::from_str_radix(&name[3..5], 16).unwrap_or_default()],
            Alphabet::Marked => name.replace(SPACE, " ").into_bytes(),
        }
    }
}

/// The alphabet of byte-level vocabularies. Visible bytes stand for themselves. The others map to the characters from
/// 256 on, in order.
fn byte_characters() -> BTreeMap<char, u8> {
    let visible = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let hidden = (0..=u8::MAX).filter(|byte| !visible(byte));
    let moved = (256..).filter_map(char::from_u32).zip(hidden);
    (0..=u8::MAX).filter(visible).map(|byte| (char::from(byte), byte)).chain(moved).collect()
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn every_byte_has_its_character() {
        let characters = byte_characters();
        assert_eq!(characters.len(), 256);
        assert!(ByteLevel::alphabet().iter().all(|c| characters.contains_key(c)));
        assert_eq!((characters[&'\u{120}'], characters[&'\u{10A}'], characters[&'A']), (b' ', b'\n', b'A'));
    }

    #[test]
    fn marked_names_have_spaces_and_bytes() {
        let bytes = |name| Alphabet::Marked.bytes(name);
        assert_eq!(bytes("\u{2581}a\u{2581}"), b" a ");
        assert_eq!(bytes("<0x0A>"), b"\n");
        assert_eq!(bytes("<0x0A"), b"<0x0A");
    }
}
