//! Jinja filters that minijinja lacks or implements differently from Python.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, FormatStyle, State, Value, filters, format_filter};

use super::budget::{self, ITEM, spend};
use super::{json, methods, python};

/// The work that a filter pays for from the budget.
#[derive(Clone, Copy)]
enum Cost {
    /// Reading its arguments without their items. The result is small or one of the arguments.
    Read,
    /// Reading its arguments without their items, and the result.
    Make,
    /// Reading its arguments with all their items, and the result.
    Compare,
}

/// Adds all filters, each with its cost.
pub(super) fn add(environment: &mut Environment<'_>) {
    for (names, cost, filter) in own_filters().into_iter().chain(minijinja_filters()) {
        for name in names {
            let filter = filter.clone();
            environment.add_filter(*name, move |state: &State<'_, '_>, arguments: Rest<Value>| {
                pay(cost, &arguments)?;
                let result = filter.call(state, &arguments)?;
                if let Cost::Read = cost { Ok(result) } else { budget::charge(result) }
            });
        }
    }
}

fn pay(cost: Cost, arguments: &[Value]) -> Result<(), Error> {
    let Some((value, others)) = arguments.split_first() else { return Ok(()) };
    match cost {
        Cost::Compare => spend(budget::weigh(value)?.bytes as usize)?,
        Cost::Read | Cost::Make => budget::spend_on(value)?,
    }
    // The filter reads its other arguments for each item. An attribute's name is one.
    let items = if value.as_str().is_some() { 1 } else { value.len().unwrap_or(0).max(1) };
    let read = |argument: &Value| spend(argument.as_str().map_or(1, str::len).saturating_mul(items));
    others.iter().try_for_each(|argument| match argument.is_kwargs() {
        true => python::pairs(argument).try_for_each(|(_, value)| read(&value)),
        false => read(argument),
    })
}

type Filters = Vec<(&'static [&'static str], Cost, Value)>;

/// Filters that minijinja lacks or implements differently.
fn own_filters() -> Filters {
    let string = Value::from_function(|value: &Value| python::text(value));
    let trim = |value: &Value, chars: Rest<Value>| methods::strip(&python::text(value)?, true, true, &chars);
    let format = Value::from_function(|format: &str, arguments: Rest<Value>| printf(format, &arguments));
    vec![
        (&["tojson"], Cost::Make, Value::from_function(json::to_json)),
        (&["string"], Cost::Make, string.clone()),
        (&["trim"], Cost::Make, Value::from_function(trim)),
        (&["pprint"], Cost::Make, string),
        (&["join"], Cost::Make, Value::from_function(join)),
        (&["length", "count"], Cost::Read, Value::from_function(length)),
        (&["int"], Cost::Read, Value::from_function(int)),
        (&["float"], Cost::Read, Value::from_function(float)),
        (&["round"], Cost::Read, Value::from_function(round)),
        (&["replace"], Cost::Make, Value::from_function(replace)),
        (&["escape", "e", "forceescape"], Cost::Make, Value::from_function(escape)),
        (&["wordcount"], Cost::Read, Value::from_function(word_count)),
        (&["center"], Cost::Make, Value::from_function(center)),
        (&["indent"], Cost::Make, Value::from_function(indent)),
        (&["format"], Cost::Make, format),
        (&["batch"], Cost::Make, Value::from_function(batch)),
        (&["slice"], Cost::Make, Value::from_function(slices)),
    ]
}

fn minijinja_filters() -> Filters {
    use minijinja_contrib::filters as contrib;
    vec![
        (&["default", "d"], Cost::Read, Value::from_function(filters::default)),
        (&["attr"], Cost::Read, Value::from_function(filters::attr)),
        (&["first"], Cost::Read, Value::from_function(filters::first)),
        (&["last"], Cost::Read, Value::from_function(filters::last)),
        (&["abs"], Cost::Read, Value::from_function(filters::abs)),
        (&["sum"], Cost::Read, Value::from_function(filters::sum)),
        (&["safe"], Cost::Make, Value::from_function(filters::safe)),
        (&["lower"], Cost::Make, Value::from_function(filters::lower)),
        (&["upper"], Cost::Make, Value::from_function(filters::upper)),
        (&["title"], Cost::Make, Value::from_function(filters::title)),
        (&["capitalize"], Cost::Make, Value::from_function(filters::capitalize)),
        (&["items"], Cost::Make, Value::from_function(filters::items)),
        (&["reverse"], Cost::Make, Value::from_function(filters::reverse)),
        (&["list"], Cost::Make, Value::from_function(filters::list)),
        (&["select"], Cost::Make, Value::from_function(filters::select)),
        (&["reject"], Cost::Make, Value::from_function(filters::reject)),
        (&["selectattr"], Cost::Make, Value::from_function(filters::selectattr)),
        (&["rejectattr"], Cost::Make, Value::from_function(filters::rejectattr)),
        (&["map"], Cost::Make, Value::from_function(filters::map)),
        (&["dictsort"], Cost::Compare, Value::from_function(filters::dictsort)),
        (&["sort"], Cost::Compare, Value::from_function(filters::sort)),
        (&["min"], Cost::Compare, Value::from_function(filters::min)),
        (&["max"], Cost::Compare, Value::from_function(filters::max)),
        (&["groupby"], Cost::Compare, Value::from_function(filters::groupby)),
        (&["unique"], Cost::Compare, Value::from_function(filters::unique)),
        (&["filesizeformat"], Cost::Make, Value::from_function(contrib::filesizeformat)),
        (&["truncate"], Cost::Make, Value::from_function(contrib::truncate)),
        (&["striptags"], Cost::Make, Value::from_function(contrib::striptags)),
    ]
}

/// Formats `format % arguments`, where each argument is a separate value.
pub(super) fn printf(format: &str, arguments: &[Value]) -> Result<String, Error> {
    methods::pay_for_format(format, '%', arguments)?;
    // The library would print lists and dicts in Rust's format. With `%(name)`, a dict instead supplies named
    // arguments.
    let named = format.contains("%(");
    let is_compound = |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) || (value.kind() == ValueKind::Map && !named)
    };
    let as_text = |value: &Value| match is_compound(value) {
        true => python::text(value).map(Value::from),
        false => Ok(value.clone()),
    };
    let arguments = arguments.iter().map(as_text).collect::<Result<Vec<Value>, Error>>()?;
    format_filter(FormatStyle::Printf, format, &arguments)
}

fn join(list: &Value, separator: Option<Value>, attribute: Option<String>, named: Kwargs) -> Result<String, Error> {
    let separator = if separator.is_some() { separator } else { named.get("d")? };
    let attribute = if attribute.is_some() { attribute } else { named.get("attribute")? };
    named.assert_all_used()?;
    let separator = separator.map_or_else(|| Ok(String::new()), |separator| python::text(&separator))?;
    let item = |item: Value| {
        spend(ITEM + separator.len())?;
        match &attribute {
            Some(name) => python::text(&item.get_attr(name)?),
            None => python::text(&item),
        }
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
        // Formatting rounds the number itself. Scaling first would round the product.
        _ if (1..=20).contains(&precision) => format!("{number:.*}", precision as usize).parse().unwrap_or(number),
        _ => (number * scale).round_ties_even() / scale,
    }))
}

fn replace(value: &Value, old: &Value, new: &Value, count: Option<usize>) -> Result<String, Error> {
    methods::replaced(&python::text(value)?, &python::text(old)?, &python::text(new)?, count)
}

fn escape(value: &Value) -> Result<Value, Error> {
    let mut escaped = String::new();
    for c in python::text(value)?.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            c => escaped.push(c),
        }
    }
    Ok(escaped.into())
}

fn word_count(value: &Value) -> Result<usize, Error> {
    let text = python::text(value)?;
    Ok(text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count())
}

fn center(value: &Value, width: Option<usize>) -> Result<String, Error> {
    let (text, width) = (python::text(value)?, width.unwrap_or(80).min(10_000));
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    Ok(format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left)))
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
    // A line break at the end starts another line.
    for (i, line) in python::lines(&format!("{text}\n"))?.into_iter().enumerate() {
        spend(indentation.len())?;
        out.push_str(if i > 0 { "\n" } else { "" });
        let line = python::without_break(line);
        let is_indented = if i > 0 { blank || !line.is_empty() } else { first };
        out.push_str(if is_indented { &indentation } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

/// `batch(count, fill_with=None)`: splits a list into lists of `count` items.
fn batch(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    spend(count.saturating_mul(ITEM))?;
    filters::batch(state, value, count, fill)
}

/// `slice(count, fill_with=None)`: splits a list into `count` lists.
fn slices(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    spend(count.saturating_mul(2 * ITEM).saturating_add(value.len().unwrap_or(0).saturating_mul(ITEM)))?;
    filters::slice(state, value, count, fill)
}
