//! Counts the parts of Lark grammars.

use serde_json::{Deserializer, Value};

use super::tally::Tally;
use super::{regex, schema};

/// Counts the parts of a grammar. Syntax errors end the count early, because the library reports them.
pub(super) fn count(text: &str, tally: &mut Tally) -> Result<(), String> {
    tally.bytes += text.len();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let Some(length) = token(rest, first, tally)? else { return Ok(()) };
        rest = rest.get(length..).unwrap_or("");
    }
    Ok(())
}

/// Returns the length of the token at the start of `rest`, or `None` if the library would stop reading there.
fn token(rest: &str, first: u8, tally: &mut Tally) -> Result<Option<usize>, String> {
    let line = || Some(rest.find('\n').unwrap_or(rest.len()));
    Ok(match first {
        b'#' => line(),
        b'/' if rest.starts_with("//") => line(),
        b'"' => closing(rest, b'"').map(|end| end + 1),
        b'/' => {
            let Some(end) = closing(rest, b'/') else { return Ok(None) };
            regex::count(&rest[1..end], tally)?;
            Some(end + 1)
        }
        b'<' => Some(special(rest)),
        b'%' => return directive(rest, tally),
        _ => {
            punctuation(rest, first, tally);
            Some(rest.chars().next().map_or(1, char::len_utf8))
        }
    })
}

fn punctuation(rest: &str, first: u8, tally: &mut Tally) {
    match first {
        // Parameters of rules.
        b':' if rest.starts_with("::") => tally.is_heavy = true,
        b':' | b'(' | b'[' => tally.rules += 1,
        b'?' | b'*' | b'+' => tally.repeats += 1,
        b'{' => tally.repeats += 1,
        // Intersections and complements. `~` also repeats.
        b'&' | b'~' => tally.is_heavy = true,
        _ => {}
    }
}

/// Returns the length of a directive, and counts the parts of its schema.
fn directive(rest: &str, tally: &mut Tally) -> Result<Option<usize>, String> {
    let word = rest[1..].bytes().take_while(u8::is_ascii_alphabetic).count() + 1;
    let name = &rest[..word];
    if !["%json", "%llguidance", "%regex"].contains(&name) {
        tally.is_heavy |= !["%import", "%ignore"].contains(&name);
        return Ok(Some(word));
    }
    let mut values = Deserializer::from_str(&rest[word..]).into_iter::<Value>();
    let Some(Ok(value)) = values.next() else { return Ok(None) };
    let length = word + values.byte_offset();
    match name {
        "%json" => {
            // The library makes a nested schema a rule, too.
            tally.rules += 1;
            // Its bytes are counted already.
            let bytes = tally.bytes;
            schema::count(&value, tally)?;
            tally.bytes = bytes;
        }
        _ => tally.is_heavy = true,
    }
    Ok(Some(length))
}

/// Returns the index of the next unescaped `delimiter` after the one at the start of `rest`.
fn closing(rest: &str, delimiter: u8) -> Option<usize> {
    let mut is_escaped = false;
    rest.bytes().enumerate().skip(1).find_map(|(at, byte)| {
        let ends = byte == delimiter && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends.then_some(at)
    })
}

/// Returns the length of a special token such as `<|end|>` or `<[128000]>`. Returns 1 if `rest` does not begin with
/// one.
fn special(rest: &str) -> usize {
    let end = rest[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace());
    match end {
        Some(end) if end > 0 && rest[1 + end..].starts_with('>') => end + 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> Tally {
        let mut tally = Tally::default();
        count(text, &mut tally).unwrap();
        tally
    }

    #[test]
    fn strings_and_comments_have_no_parts() {
        let tally = counted("start: \"a:(\\\"?\" /[(:?]\\/x+/ # ((((\n// ::::\nB: <|a\"(|> (\"x\")?\n");
        assert_eq!((tally.rules, tally.repeats, tally.is_heavy), (3, 2, false));
        let tally = counted("start: %json {\"properties\": {\"a:(\": {}, \"b\": true}} x\nx: \"?\" | start x\n");
        assert_eq!((tally.rules, tally.names, tally.repeats), (3, 2, 0));
        assert!(counted("start: A\nA: /a*/ & ~/b/").is_heavy && counted("start: %lark { start: \"a\" }").is_heavy);
    }

    #[test]
    fn invalid_grammars_are_left_to_the_library() {
        for text in ["start: \"a", "start: /a", "start: %json {", "%", "<", "a\u{1f600}:", "\\", "start: /a\\/"] {
            counted(text);
        }
    }
}
