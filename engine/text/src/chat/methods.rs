//! Methods of Python's strings, lists and dicts that minijinja lacks or implements differently.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::budget::{self, ITEM, spend};
use super::python::{self, is_space};
use super::tests;

/// Maximum digits of a width or precision in a format.
const MAX_WIDTH_DIGITS: usize = 4;

/// Calls `value.method(args)`.
pub(super) fn call(state: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    budget::spend_on(value)?;
    args.iter().try_for_each(tests::read)?;
    let own = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable => collection_method(value, method, args),
        _ => None,
    };
    let result = own.unwrap_or_else(|| pycompat::unknown_method_callback(state, value, method, args))?;
    match method {
        // These return a value that already exists.
        "get" | "copy" => Ok(result),
        _ => budget::charge(result),
    }
}

fn collection_method(value: &Value, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "copy" => from_args::<()>(args).map(|()| value.clone()),
        "index" => tests::read(value).and_then(|()| index_in(value, args)),
        // minijinja's `count` compares, too, so it must be paid for.
        "count" => match tests::read(value) {
            Ok(()) => return None,
            Err(error) => Err(error),
        },
        _ => return None,
    })
}

fn index_in(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    match list.try_iter()?.position(|item| item == *wanted) {
        Some(index) => Ok(index.into()),
        None => Err(failed(format!("{} is not in list", python::text(wanted)?))),
    }
}

fn string_method(s: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "split" | "rsplit" => split(s, method == "rsplit", args),
        "partition" | "rpartition" => partition(s, method == "rpartition", args),
        "splitlines" => split_lines(s, args),
        "strip" => strip(s, true, true, args),
        "lstrip" => strip(s, true, false, args),
        "rstrip" => strip(s, false, true, args),
        "removeprefix" => with_text(args, |prefix| s.strip_prefix(prefix).unwrap_or(s).into()),
        "removesuffix" => with_text(args, |suffix| s.strip_suffix(suffix).unwrap_or(s).into()),
        "startswith" => begins_or_ends(s, args, |s, affix| s.starts_with(affix)),
        "endswith" => begins_or_ends(s, args, |s, affix| s.ends_with(affix)),
        "find" | "index" => find(s, method == "index", args, |s, part| s.find(part)),
        "rfind" | "rindex" => find(s, method == "rindex", args, |s, part| s.rfind(part)),
        "join" => join(s, args),
        "replace" => replace(s, args),
        "count" => count(s, args),
        "format" => match pay_for_format(s, '{', args) {
            Ok(()) => return None,
            Err(error) => Err(error),
        },
        "swapcase" => no_args(args, || s.chars().map(swap_case).collect::<String>().into()),
        "casefold" => no_args(args, || s.to_lowercase().replace('ß', "ss").into()),
        "center" | "ljust" | "rjust" => justify(s, method, args),
        "zfill" => zero_fill(s, args),
        "isspace" => all(s, args, is_space),
        "isalpha" => all(s, args, char::is_alphabetic),
        "isalnum" => all(s, args, char::is_alphanumeric),
        "isdigit" | "isnumeric" | "isdecimal" => all(s, args, char::is_numeric),
        "isprintable" => no_args(args, || s.chars().all(python::is_printable).into()),
        "islower" => no_args(args, || (s.chars().any(char::is_lowercase) && !s.chars().any(char::is_uppercase)).into()),
        "isupper" => no_args(args, || (s.chars().any(char::is_uppercase) && !s.chars().any(char::is_lowercase)).into()),
        _ => return None,
    })
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// Calls a method that has no arguments.
fn no_args(args: &[Value], method: impl FnOnce() -> Value) -> Result<Value, Error> {
    from_args::<()>(args).map(|()| method())
}

/// Calls a method whose only argument is a text.
fn with_text(args: &[Value], method: impl FnOnce(&str) -> Value) -> Result<Value, Error> {
    from_args(args).map(|(text,)| method(text))
}

/// Whether the text is not empty and `so` is true for all its characters.
fn all(s: &str, args: &[Value], so: impl Fn(char) -> bool) -> Result<Value, Error> {
    no_args(args, || (!s.is_empty() && s.chars().all(so)).into())
}

/// `split(sep=None, maxsplit=-1)`, from the left or from the right.
fn split(s: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = if separator.is_some() { separator } else { named.get("sep")? }.filter(|value| !value.is_none());
    let most = if most.is_some() { most } else { named.get("maxsplit")? };
    named.assert_all_used()?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let separator = separator.map(|separator| python::text(&separator)).transpose()?;
    let mut parts = Vec::new();
    let mut rest = s;
    match &separator {
        Some(separator) if separator.is_empty() => return Err(failed("empty separator")),
        Some(separator) => {
            let cut = |rest| {
                if from_right {
                    str::rsplit_once(rest, separator).map(|(a, b)| (b, a))
                } else {
                    str::split_once(rest, separator)
                }
            };
            while parts.len() < most
                && let Some((part, others)) = cut(rest)
            {
                spend(2 * ITEM)?;
                parts.push(part);
                rest = others;
            }
            parts.push(rest);
        }
        None => {
            let trimmed = |rest: &'_ str| -> usize {
                if from_right { rest.trim_end_matches(is_space).len() } else { rest.trim_start_matches(is_space).len() }
            };
            loop {
                let len = trimmed(rest);
                rest = if from_right { &rest[..len] } else { &rest[rest.len() - len..] };
                if rest.is_empty() {
                    break;
                }
                let end = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
                let (part, others) = match end {
                    Some(_) if parts.len() == most => (rest, ""),
                    Some(at) if from_right => {
                        let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                        (&rest[after..], &rest[..after])
                    }
                    Some(at) => rest.split_at(at),
                    None => (rest, ""),
                };
                spend(2 * ITEM)?;
                parts.push(part);
                rest = others;
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

fn partition(s: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    with_text(args, |separator| {
        let cut = if from_right { s.rsplit_once(separator) } else { s.split_once(separator) };
        let parts = match cut {
            Some((before, after)) => [before, separator, after],
            None if from_right => ["", "", s],
            None => [s, "", ""],
        };
        parts.into_iter().map(Value::from).collect()
    })
}

fn split_lines(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (positional, named): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = if positional.is_some() { positional } else { named.get("keepends")? }.unwrap_or(false);
    named.assert_all_used()?;
    let lines = python::lines(s)?.into_iter();
    Ok(match keep {
        true => lines.map(Value::from).collect(),
        false => lines.map(|line| Value::from(python::without_break(line))).collect(),
    })
}

pub(super) fn strip(s: &str, left: bool, right: bool, args: &[Value]) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    // Each character of the text is compared with all of these.
    spend(s.len().saturating_mul(chars.map_or(1, str::len)))?;
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let s = if left { s.trim_start_matches(strips) } else { s };
    Ok(Value::from(if right { s.trim_end_matches(strips) } else { s }))
}

/// Returns the part of `s` between two positions in characters, and the number of bytes before it.
fn section(s: &str, start: Option<i64>, end: Option<i64>) -> Option<(&str, usize)> {
    if start.is_none() && end.is_none() {
        return Some((s, 0));
    }
    let count = s.chars().count() as i64;
    let position = |at: i64| if at < 0 { (count + at).max(0) } else { at };
    let (start, end) = (position(start.unwrap_or(0)), position(end.unwrap_or(count)).min(count));
    let byte = |at: i64| s.char_indices().nth(at as usize).map_or(s.len(), |(byte, _)| byte);
    (start <= end).then(|| (&s[byte(start)..byte(end)], byte(start)))
}

/// Whether `s` begins or ends with an affix or with any affix of a list.
fn begins_or_ends(s: &str, args: &[Value], has: impl Fn(&str, &str) -> bool) -> Result<Value, Error> {
    let (affix, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((s, _)) = section(s, start, end) else { return Ok(false.into()) };
    let affixes = if affix.as_str().is_some() { vec![affix.clone()] } else { affix.try_iter()?.collect() };
    for affix in affixes {
        let affix =
            affix.as_str().ok_or_else(|| failed("startswith() and endswith() take a text or a tuple of texts"))?;
        if has(s, affix) {
            return Ok(true.into());
        }
    }
    Ok(false.into())
}

/// Returns the position of a part, counted in characters.
fn find(
    s: &str,
    must_be_there: bool,
    args: &[Value],
    find: impl Fn(&str, &str) -> Option<usize>,
) -> Result<Value, Error> {
    let (part, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let found = section(s, start, end).and_then(|(within, before)| Some(before + find(within, part)?));
    match found {
        Some(byte) => Ok(s[..byte].chars().count().into()),
        None if must_be_there => Err(failed("substring not found")),
        None => Ok((-1).into()),
    }
}

fn join(separator: &str, args: &[Value]) -> Result<Value, Error> {
    let (parts,): (&Value,) = from_args(args)?;
    let mut joined = String::new();
    for (i, part) in parts.try_iter()?.enumerate() {
        let part = part.as_str().ok_or_else(|| failed("join() takes only texts"))?;
        spend(separator.len() + part.len())?;
        joined.push_str(if i > 0 { separator } else { "" });
        joined.push_str(part);
    }
    Ok(joined.into())
}

/// Pays for a formatted text before it is built. Assumes that every `mark` in the format inserts all arguments.
///
/// # Errors
/// If the budget is exceeded, or a number in the format has too many digits.
pub(super) fn pay_for_format(format: &str, mark: char, arguments: &[Value]) -> Result<(), Error> {
    if format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > MAX_WIDTH_DIGITS) {
        let why = format!("a number in a format has more than {MAX_WIDTH_DIGITS} digits");
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    let mut longest = 10_usize.pow(MAX_WIDTH_DIGITS as u32);
    if format.split(|c: char| !c.is_ascii_digit()).all(|digits| digits.len() < MAX_WIDTH_DIGITS) {
        longest /= 10;
    }
    for argument in arguments {
        longest = longest.saturating_add(budget::weigh(argument)?.bytes as usize);
    }
    spend(format.len() + format.matches(mark).count().saturating_mul(longest))
}

/// `replace(old, new, count=-1)`.
fn replace(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
    let count = count.and_then(|count| usize::try_from(count).ok());
    replaced(s, old, new, count).map(Value::from)
}

/// Replaces up to `count` occurrences of `old`.
///
/// # Errors
/// If the budget is exceeded.
pub(super) fn replaced(text: &str, old: &str, new: &str, count: Option<usize>) -> Result<String, Error> {
    let occurrences = text.matches(old).count().min(count.unwrap_or(usize::MAX));
    spend(text.len().saturating_add(occurrences.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, occurrences))
}

/// Counts the occurrences of a part. The empty text occurs before and after each character.
fn count(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(args)?;
    Ok(s.matches(part).count().into())
}

fn swap_case(c: char) -> String {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

fn justify(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let missing = width.min(10_000).saturating_sub(s.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // If the padding is odd, Python chooses the side by the width.
        _ => missing / 2 + (missing & width & 1),
    };
    let pad = |n| fill.unwrap_or(' ').to_string().repeat(n);
    Ok(format!("{}{s}{}", pad(left), pad(missing - left)).into())
}

fn zero_fill(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (width,): (usize,) = from_args(args)?;
    let (sign, digits) = if s.starts_with(['+', '-']) { s.split_at(1) } else { ("", s) };
    let zeros = "0".repeat(width.min(10_000).saturating_sub(s.chars().count()));
    Ok(format!("{sign}{zeros}{digits}").into())
}
