//! The `tojson` filter: Python's `json.dumps`, as `apply_chat_template` calls it.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::budget::{self, ITEM, spend};
use super::python;

/// Formatting options.
struct Style {
    ensure_ascii: bool,
    /// Indentation per level. Everything is on one line if `None`.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn to_json(value: &Value, arguments: Rest<Value>) -> Result<String, Error> {
    type Positional = Option<Value>;
    let (ensure_ascii, indent, separators, sort_keys, named): (Positional, Positional, Positional, Positional, Kwargs) =
        from_args(&arguments)?;
    let argument = |positional: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
        let value = if positional.is_some() { positional } else { named.get(name)? };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let indent = argument(indent, "indent")?.map(|indent| match indent.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => i64::try_from(indent).map(|spaces| " ".repeat(spaces.clamp(0, 100) as usize)),
    });
    let indent = indent.transpose()?;
    let (item_separator, key_separator) = match argument(separators, "separators")? {
        Some(two) => (python::text(&two.get_item_by_index(0)?)?, python::text(&two.get_item_by_index(1)?)?),
        None => ((if indent.is_some() { "," } else { ", " }).into(), ": ".into()),
    };
    let style = Style {
        ensure_ascii: argument(ensure_ascii, "ensure_ascii")?.is_some_and(|value| value.is_true()),
        indent,
        item_separator,
        key_separator,
        sort_keys: argument(sort_keys, "sort_keys")?.is_some_and(|value| value.is_true()),
    };
    named.assert_all_used()?;
    // Refuses values that nest too deeply.
    budget::weigh(value)?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

/// Formats a value that was parsed from JSON on one line.
pub(super) fn compact(value: &Value) -> String {
    let style = Style {
        ensure_ascii: false,
        indent: None,
        item_separator: ", ".into(),
        key_separator: ": ".into(),
        sort_keys: false,
    };
    let mut out = String::new();
    // A value that was parsed from JSON can always be written as JSON.
    _ = style.write(value, 0, &mut out);
    out
}

impl Style {
    fn write(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out)?,
            ValueKind::Seq | ValueKind::Iterable => {
                spend(value.len().unwrap_or(0).saturating_mul(ITEM))?;
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all('[', ']', &items, level, out, |item, out| self.write(item, level + 1, out))?;
            }
            ValueKind::Map => {
                let mut pairs: Vec<(String, Value)> = python::pairs(value)
                    .map(|(key, item)| {
                        spend(2 * ITEM + key.as_str().map_or(0, str::len))?;
                        Ok((key_text(&key)?, item))
                    })
                    .collect::<Result<_, Error>>()?;
                if self.sort_keys {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.write_all('{', '}', &pairs, level, out, |(key, item), out| {
                    self.write_text(key, out)?;
                    spend(self.key_separator.len())?;
                    out.push_str(&self.key_separator);
                    self.write(item, level + 1, out)
                })?;
            }
            kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn write_all<T>(
        &self,
        open: char,
        close: char,
        items: &[T],
        level: usize,
        out: &mut String,
        write: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            spend(self.item_separator.len() + 1)?;
            out.push_str(if i > 0 { &self.item_separator } else { "" });
            self.begin_line(level + 1, out)?;
            write(item, out)?;
        }
        if !items.is_empty() {
            self.begin_line(level, out)?;
        }
        out.push(close);
        Ok(())
    }

    fn begin_line(&self, level: usize, out: &mut String) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            spend(1 + level.saturating_mul(indent.len()))?;
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
        Ok(())
    }

    fn write_text(&self, text: &str, out: &mut String) -> Result<(), Error> {
        // Each UTF-16 unit's escape has six bytes, so 12 bytes per character suffice.
        let escaped = text.chars().filter(|c| matches!(c, '"' | '\\') || *c < ' ' || !c.is_ascii()).count();
        spend(text.len() + escaped.saturating_mul(12))?;
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

fn number(value: &Value) -> String {
    match python::number(value).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        number => number.to_owned(),
    }
}

/// Returns the text of a key, which may be any scalar.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => (if key.is_true() { "true" } else { "false" }).into(),
        ValueKind::Number => number(key),
        kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} cannot be a key in JSON"))),
    })
}
