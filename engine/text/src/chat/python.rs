//! Prints values in Python's format.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget::{self, ITEM, spend};

/// `str(value)`.
///
/// # Errors
/// If the budget is exceeded.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => {
            spend(text.len())?;
            Ok(text.to_owned())
        }
        None if value.is_undefined() => Ok(String::new()),
        None => {
            // Refuses values that nest too deeply.
            budget::weigh(value)?;
            let mut out = String::new();
            write_repr(value, &mut out)?;
            Ok(out)
        }
    }
}

/// Writes `repr(value)`.
fn write_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            // An escape has up to ten bytes.
            spend(text.len().saturating_mul(10))?;
            write_quoted(text, out);
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                spend(ITEM)?;
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(&item, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, (key, item)) in pairs(value).enumerate() {
                spend(ITEM)?;
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(&key, out)?;
                out.push_str(": ");
                write_repr(&item, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Returns the keys of a map with their values, in order.
pub(super) fn pairs(map: &Value) -> impl Iterator<Item = (Value, Value)> {
    map.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten().collect::<Vec<_>>().into_iter()
}

/// Returns `repr` of a number.
pub(super) fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => self::float(float),
        _ => value.to_string(),
    }
}

/// Returns `repr` of a float: the shortest digits that identify it. Very large and very small numbers have an exponent.
fn float(float: f64) -> String {
    if !float.is_finite() {
        return if float.is_nan() { "nan".into() } else { format!("{float}") };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => format!("{float:?}"),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// Writes `repr` of a string.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            // Writing to a string does not fail.
            c if (c as u32) < 0x100 => _ = write!(out, "\\x{:02x}", c as u32),
            c if (c as u32) < 0x10000 => _ = write!(out, "\\u{:04x}", c as u32),
            c => _ = write!(out, "\\U{:08x}", c as u32),
        }
    }
    out.push(quote);
}

/// `c.isprintable()`. Rust's `escape_debug` uses the same rule, except for quotes and for combining marks at the start
/// of a text.
pub(super) fn is_printable(c: char) -> bool {
    matches!(c, '\'' | '"' | '\\') || [' ', c].iter().collect::<String>().escape_debug().count() == 2
}

/// `c.isspace()`.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Characters that end a line.
const BREAKS: [char; 10] = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];

/// Splits a text into lines as `splitlines` does. Keeps the line breaks.
///
/// # Errors
/// If the budget is exceeded.
pub(super) fn lines(text: &str) -> Result<Vec<&str>, Error> {
    spend(text.len() + text.matches(BREAKS).count().saturating_mul(2 * ITEM))?;
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(BREAKS) {
        let len = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        let (line, after) = rest.split_at(at + len);
        lines.push(line);
        rest = after;
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    Ok(lines)
}

/// Returns a line without its line break.
pub(super) fn without_break(line: &str) -> &str {
    line.strip_suffix("\r\n").or_else(|| line.strip_suffix(BREAKS)).unwrap_or(line)
}
