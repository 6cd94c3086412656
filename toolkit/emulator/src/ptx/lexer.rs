//! Splits text into tokens. Each token has its line, because all later messages name it.

use super::error::ParseError;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An opcode with its modifiers, a directive, a register, a symbol or a label.
    Word,
    /// A number in any of PTX's notations.
    Number,
    /// A quoted text, without its quotes.
    Text,
    /// One punctuation character.
    Mark(u8),
}

/// A token and its line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    pub line: u32,
}

fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn continues_word(byte: u8) -> bool {
    starts_word(byte) || byte.is_ascii_digit()
}

fn end_of_word(bytes: &[u8], mut at: usize) -> usize {
    loop {
        if at < bytes.len() && continues_word(bytes[at]) {
            at += 1;
        } else if bytes[at..].starts_with(b"::") {
            at += 2; // `shared::cta` is one modifier
        } else {
            return at;
        }
    }
}

/// Splits PTX text into tokens. Comments and whitespace are dropped.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(text.len() / 4);
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let (start, first_line) = (at, line);
        let byte = bytes[at];
        let kind = match byte {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            _ if byte.is_ascii_whitespace() || byte == 0 => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text.get(at..).and_then(|rest| rest.find("*/"));
                let end = end.ok_or_else(|| ParseError::new(line, "a comment is not closed"))?;
                line += bytes[at..at + end].iter().filter(|&&b| b == b'\n').count() as u32;
                at += end + 2;
                continue;
            }
            b'"' => {
                let end = bytes[at + 1..].iter().position(|&b| b == b'"');
                let end = end.ok_or_else(|| ParseError::new(line, "a text is not closed"))?;
                line += bytes[at..at + end].iter().filter(|&&b| b == b'\n').count() as u32;
                let text = &text[at + 1..at + 1 + end];
                at += end + 2;
                found.push(Token { kind: Kind::Text, text, line: first_line });
                continue;
            }
            _ if byte.is_ascii_digit() => {
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'.' | b'_')) {
                    at += 1;
                }
                Kind::Number
            }
            _ if starts_word(byte) => {
                at = end_of_word(bytes, at);
                Kind::Word
            }
            _ if byte.is_ascii() => {
                at += 1;
                Kind::Mark(byte)
            }
            _ => return Err(ParseError::new(line, "a character outside ASCII")),
        };
        // `.reg.b32` is two words without a space between them.
        let start = if text[start..at].starts_with(".reg.") {
            found.push(Token { kind, text: &text[start..start + 4], line: first_line });
            start + 4
        } else {
            start
        };
        found.push(Token { kind, text: &text[start..at], line: first_line });
    }
    Ok(found)
}

/// Parses an integer literal: decimal, `0x`, `0b` or octal, with an optional `U`.
pub(crate) fn integer(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['U', 'u']);
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16).ok()
    } else if let Some(binary) = digits.strip_prefix("0b").or_else(|| digits.strip_prefix("0B")) {
        u64::from_str_radix(binary, 2).ok()
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(&digits[1..], 8).ok()
    } else {
        digits.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_modifiers() {
        let found = tokens("a.b::c.d %tid.x; // gone\n$L: /* two\nlines */ 0f3F800000").unwrap();
        let texts: Vec<_> = found.iter().map(|t| (t.text, t.line)).collect();
        assert_eq!(texts, [("a.b::c.d", 1), ("%tid.x", 1), (";", 1), ("$L", 2), (":", 2), ("0f3F800000", 3)]);
    }

    #[test]
    fn integer_literals_are_parsed() {
        assert_eq!(integer("0x1fU"), Some(31));
        assert_eq!(integer("017"), Some(15));
        assert_eq!(integer("0"), Some(0));
        assert_eq!(integer("0b101"), Some(5));
        assert_eq!(integer("12z"), None);
    }

    #[test]
    fn unclosed_comments_and_texts_are_errors() {
        assert!(tokens("/* a").is_err());
        assert!(tokens("\"a").is_err());
    }
}
