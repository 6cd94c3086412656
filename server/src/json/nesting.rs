//! Refuses bodies that are not UTF-8 or nest too deeply before a parser reads them, because parsers recurse.

use super::BodyError;

/// Maximum levels of arrays and objects in a body.
const MAX_NESTING: usize = 256;

/// Refuses a body that is not UTF-8 or nests too deeply.
///
/// # Errors
/// The first such position.
pub fn check(bytes: &[u8]) -> Result<(), BodyError> {
    if let Err(error) = std::str::from_utf8(bytes) {
        let (line, column) = position(bytes, error.valid_up_to());
        let what = format!(" is not UTF-8: line {line}, column {column} has an invalid byte");
        return Err(BodyError::of_body(what));
    }
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            let (line, column) = position(bytes, at);
            let what = format!(" is nested more than {MAX_NESTING} levels deep, from line {line}, column {column} on");
            return Err(BodyError::of_body(what));
        }
    }
    Ok(())
}

/// Returns the line and the column of a byte, both counted from 1 and in bytes.
fn position(bytes: &[u8], at: usize) -> (usize, usize) {
    let before = bytes.get(..at).unwrap_or_default();
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    let column = 1 + before.iter().rev().take_while(|&&byte| byte != b'\n').count();
    (line, column)
}
