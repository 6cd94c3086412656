//! Filters and tests of Jinja's that minijinja lacks, or that do not do there what they do in Python.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, FormatStyle, Value, format_filter};

use super::{json, python};

/// Adds them.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_filter("join", join);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("round", round);
    environment.add_filter("replace", replace);
    environment.add_filter("escape", |value: &Value| escape(value));
    environment.add_filter("e", |value: &Value| escape(value));
    environment.add_filter("forceescape", |value: &Value| escape(value));
    environment.add_filter("wordcount", word_count);
    environment.add_filter("center", center);
    environment.add_filter("indent", indent);
    environment.add_filter("format", |format: &str, arguments: Rest<Value>| printf(format, &arguments));
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

/// `format % arguments`, each argument a value of its own.
pub(super) fn printf(format: &str, arguments: &[Value]) -> Result<String, Error> {
    // The library would print lists and dicts in Rust's form. A dict may also hold arguments by their names.
    let named = format.contains("%(");
    let is_compound = |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) || (value.kind() == ValueKind::Map && !named)
    };
    let as_text = |value: &Value| if is_compound(value) { python::text(value).into() } else { value.clone() };
    let arguments: Vec<Value> = arguments.iter().map(as_text).collect();
    format_filter(FormatStyle::Printf, format, &arguments)
}

fn join(list: &Value, separator: Option<Value>, attribute: Option<String>, named: Kwargs) -> Result<String, Error> {
    let separator = if separator.is_some() { separator } else { named.get("d")? };
    let attribute = if attribute.is_some() { attribute } else { named.get("attribute")? };
    named.assert_all_used()?;
    let separator = separator.map_or_else(String::new, |separator| python::text(&separator));
    let item = |item: Value| match &attribute {
        Some(name) => item.get_attr(name).map(|value| python::text(&value)),
        None => Ok(python::text(&item)),
    };
    Ok(list.try_iter()?.map(item).collect::<Result<Vec<_>, _>>()?.join(&separator))
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let error =
        || Error::new(ErrorKind::InvalidOperation, format!("a value of the kind {} has no length", value.kind()));
    value.len().ok_or_else(error)
}

fn int(value: &Value, default: Option<Value>, base: Option<u32>, named: Kwargs) -> Result<Value, Error> {
    let default = if default.is_some() { default } else { named.get("default")? };
    let base = if base.is_some() { base } else { named.get("base")? }.unwrap_or(10);
    named.assert_all_used()?;
    let read = |text: &str| {
        let digits = match base {
            16 => text.trim_start_matches("0x"),
            8 => text.trim_start_matches("0o"),
            2 => text.trim_start_matches("0b"),
            _ => text,
        };
        let whole = (2..=36).contains(&base).then(|| i64::from_str_radix(digits, base).ok()).flatten();
        whole.or_else(|| text.parse::<f64>().ok().map(|float| float as i64))
    };
    let number = match value.as_str() {
        Some(text) => read(&text.trim().replace('_', "")).map(Value::from),
        None if value.kind() == ValueKind::Bool => Some(i64::from(value.is_true()).into()),
        None if value.is_integer() => Some(value.clone()),
        None => f64::try_from(value.clone()).ok().map(|float| (float as i64).into()),
    };
    Ok(number.or(default).unwrap_or_else(|| 0.into()))
}

fn float(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    number.map(Value::from).or(default).unwrap_or_else(|| 0.0.into())
}

fn round(value: Value, precision: Option<i32>, method: Option<String>, named: Kwargs) -> Result<Value, Error> {
    let precision = if precision.is_some() { precision } else { named.get("precision")? }.unwrap_or(0);
    let method = if method.is_some() { method } else { named.get("method")? };
    named.assert_all_used()?;
    let is_common = method.as_deref().is_none_or(|method| method == "common");
    if is_common && value.is_integer() {
        return Ok(value);
    }
    let number = f64::try_from(value)?;
    let scale = 10f64.powi(precision);
    Ok(Value::from(match method.as_deref() {
        Some("ceil") => (number * scale).ceil() / scale,
        Some("floor") => (number * scale).floor() / scale,
        // The nearest decimal number, not that of a product which is rounded itself.
        _ if (1..=20).contains(&precision) => format!("{number:.*}", precision as usize).parse().unwrap_or(number),
        _ => (number * scale).round_ties_even() / scale,
    }))
}

fn replace(value: &Value, old: &Value, new: &Value, count: Option<usize>) -> String {
    let (text, old, new) = (python::text(value), python::text(old), python::text(new));
    match count {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    }
}

fn escape(value: &Value) -> Value {
    let mut escaped = String::new();
    for c in python::text(value).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            c => escaped.push(c),
        }
    }
    escaped.into()
}

fn word_count(value: &Value) -> usize {
    let text = python::text(value);
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

fn center(value: &Value, width: Option<usize>) -> String {
    let (text, width) = (python::text(value), width.unwrap_or(80).min(10_000));
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left))
}

fn indent(text: &str, arguments: Rest<Value>) -> Result<String, Error> {
    let (width, first, blank, named): (Option<Value>, Option<bool>, Option<bool>, Kwargs) = from_args(&arguments)?;
    let width = if width.is_some() { width } else { named.get("width")? }.unwrap_or_else(|| 4.into());
    let first = if first.is_some() { first } else { named.get("first")? }.unwrap_or(false);
    let blank = if blank.is_some() { blank } else { named.get("blank")? }.unwrap_or(false);
    named.assert_all_used()?;
    let indentation = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(i64::try_from(width)?.clamp(0, 1000) as usize),
    };
    let mut out = String::new();
    // A break at the end is the beginning of a line.
    for (i, line) in python::lines(&format!("{text}\n")).into_iter().enumerate() {
        out.push_str(if i > 0 { "\n" } else { "" });
        let line = python::without_break(line);
        let is_indented = if i > 0 { blank || !line.is_empty() } else { first };
        out.push_str(if is_indented { &indentation } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
}

/// What has a length and items by number or key.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}
