//! Preserves the exact text of numbers in JSON schemas. `serde_json` rounds numbers that do not fit into 64 bits.

use std::borrow::Cow;

use llguidance::derivre::RegexAst;
use serde::de::IgnoredAny;
use serde_json::{Number, Value};

/// Only key of an object that represents a number with this text. It begins with a NUL character, so no schema contains
/// it by accident.
const KEY: &str = "\u{0}number";
/// Significant decimal digits that a double preserves.
const DOUBLE_DIGITS: usize = 15;
/// Neighbouring doubles below this differ by at most one, so they represent integers exactly. The library compares
/// numbers as doubles.
const MAX_EXACT: i128 = 1 << 53;
/// Maximum digits of a bound.
const MAX_DIGITS: usize = 30;

/// Replaces each number that a [`Value`] would round with an object that holds its text. A schema read from the result
/// keeps its constants as written. Returns text that is not JSON unchanged.
pub fn exact_numbers(json: &str) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let mut exact = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = end_of_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let is_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                let end = at + bytes.iter().skip(at).take_while(|byte| is_number(byte)).count();
                let text = &json[at..end];
                if is_rounded(text) {
                    exact.push_str(&json[copied..at]);
                    exact.push_str(&exact_object(text).to_string());
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    exact.push_str(&json[copied..]);
    Cow::Owned(exact)
}

/// Returns the index after the string that begins at `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Whether parsing this text into a [`Value`] changes the number. False if the text is not a number.
fn is_rounded(text: &str) -> bool {
    if serde_json::from_str::<IgnoredAny>(text).is_err() {
        return false;
    }
    if text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) {
        return text.parse::<i64>().is_err() && text.parse::<u64>().is_err();
    }
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_start_matches('0').len() > DOUBLE_DIGITS || text.parse::<f64>().is_ok_and(f64::is_infinite)
}

fn exact_object(text: &str) -> Value {
    Value::Object([(KEY.to_owned(), Value::from(text))].into_iter().collect())
}

/// Returns a number's text, in full even if a [`Value`] would round it.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string()),
        Value::Object(members) if members.len() == 1 => {
            let text = members.get(KEY)?.as_str()?;
            is_rounded(text).then(|| text.to_owned())
        }
        _ => None,
    }
}

/// Whether the library would write a different number than this one.
pub(super) fn is_inexact(value: &Value) -> bool {
    match value {
        Value::Number(number) => match integer(number) {
            Some(integer) => integer.abs() >= MAX_EXACT,
            None => number.as_f64().is_some_and(|double| double.abs() >= MAX_EXACT as f64),
        },
        _ => text(value).is_some(),
    }
}

/// Whether the library would round a number in this value.
pub(super) fn has_inexact(value: &Value) -> bool {
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            _ if is_inexact(value) => return true,
            Value::Array(items) => rest.extend(items),
            Value::Object(members) => rest.extend(members.values()),
            _ => {}
        }
    }
    false
}

fn integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// Returns the nearest double, or `None` if the value is not a number or is out of a double's range.
pub fn double(value: &Value) -> Option<f64> {
    text(value)?.parse::<f64>().ok().filter(|double| double.is_finite())
}

/// Whether the value is the number that `double` is written as.
pub(super) fn is_same(value: &Value, double: f64) -> bool {
    text(value).is_some_and(|text| normal(&text).is_some_and(|number| Some(number) == normal(&double.to_string())))
}

/// Returns a number's significant digits and the exponent of the last one.
fn normal(text: &str) -> Option<(String, i64)> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, places) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{places}");
    let significant = digits.trim_end_matches('0');
    let exponent = exponent.parse::<i64>().ok()?.checked_sub(places.len() as i64)?;
    let exponent = exponent.checked_add((digits.len() - significant.len()) as i64)?;
    let significant = significant.trim_start_matches('0').to_owned();
    let exponent = if significant.is_empty() { 0 } else { exponent };
    Some((significant, exponent))
}

/// Whether the value is a whole number.
pub(super) fn is_whole(value: &Value) -> bool {
    match text(value) {
        Some(text) if text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) => true,
        _ => double(value).is_some_and(|double| double.fract() == 0.0),
    }
}

/// Returns the value if it is a non-negative whole number.
pub(super) fn count(value: &Value) -> Option<u64> {
    let double = || value.as_f64().filter(|double| double.fract() == 0.0 && (0.0..=MAX_EXACT as f64).contains(double));
    value.as_u64().or_else(|| double().map(|double| double as u64))
}

/// Returns the least integer within a lower bound.
pub(super) fn least(value: &Value, is_exclusive: bool) -> Option<i128> {
    let least = whole(value, f64::ceil)?;
    let excludes = is_exclusive && is_whole(value);
    Some(least + i128::from(excludes))
}

/// Returns the greatest integer within an upper bound.
pub(super) fn greatest(value: &Value, is_exclusive: bool) -> Option<i128> {
    let greatest = whole(value, f64::floor)?;
    let excludes = is_exclusive && is_whole(value);
    Some(greatest - i128::from(excludes))
}

fn whole(value: &Value, round: fn(f64) -> f64) -> Option<i128> {
    let text = text(value)?;
    let is_short = |text: &str| text.trim_start_matches('-').len() <= MAX_DIGITS;
    if let Ok(whole) = text.parse::<i128>() {
        return is_short(&text).then_some(whole);
    }
    let rounded = round(text.parse().ok()?);
    (rounded.abs() < 1e30).then_some(rounded as i128)
}

/// Matches the JSON text of integers between two inclusive bounds.
pub(super) fn range(least: Option<i128>, greatest: Option<i128>) -> RegexAst {
    let not_negative = between(least.unwrap_or(0).max(0), greatest);
    let below = greatest.map_or(1, |greatest| (-greatest).max(1));
    let negative = between(below, least.map(|least| -least));
    let mut all = Vec::new();
    if greatest.is_none_or(|greatest| greatest >= 0) {
        all.push(not_negative);
    }
    if least.is_none_or(|least| least < 0) {
        all.push(RegexAst::Concat(vec![RegexAst::Literal("-".into()), negative]));
    }
    RegexAst::Or(all)
}

/// Matches integers between two bounds without leading zeros. The lower bound must not be negative.
fn between(least: i128, greatest: Option<i128>) -> RegexAst {
    let mut all = vec![RegexAst::Regex("0|[1-9][0-9]*".into()), RegexAst::Regex(bound(least, false))];
    if let Some(greatest) = greatest {
        all.push(if greatest < 0 { RegexAst::NoMatch } else { RegexAst::Regex(bound(greatest, true)) });
    }
    RegexAst::And(all)
}

/// Returns a regular expression for integers up to `bound`, or from `bound` up if it is a lower bound. It is only
/// correct for numbers without leading zeros, so the caller must exclude the others.
fn bound(bound: i128, is_upper: bool) -> String {
    let digits = bound.to_string();
    let mut all = vec![digits.clone()];
    for (at, digit) in digits.bytes().enumerate() {
        let (prefix, rest) = (&digits[..at], digits.len() - at - 1);
        let others = match digit {
            b'0' if is_upper => continue,
            b'9' if !is_upper => continue,
            _ if is_upper => format!("[0-{}]", char::from(digit - 1)),
            _ => format!("[{}-9]", char::from(digit + 1)),
        };
        all.push(format!("{prefix}{others}[0-9]{{{rest}}}"));
    }
    match (is_upper, digits.len()) {
        (true, 1) => {}
        (true, length) => all.push(format!("[0-9]{{1,{}}}", length - 1)),
        (false, length) => all.push(format!("[0-9]{{{},}}", length + 1)),
    }
    all.join("|")
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_rounded_numbers_are_replaced() {
        let kept = r#"{"a\"1e400": [1, -0, 9223372036854775807, -9223372036854775808, 18446744073709551615, 0.1, 1e22], "b": "1e400"}"#;
        assert_eq!(exact_numbers(kept), kept);
        for broken in ["-", "1.2.3.4", "01e400", "[\"1e400", "\"\\"] {
            assert_eq!(exact_numbers(broken), broken);
        }
        for number in ["12345678901234567890123", "-9223372036854775809", "1e400", "0.1234567890123456789"] {
            let json = format!("[1, {number}]");
            let value: Value = serde_json::from_str(&exact_numbers(&json)).unwrap();
            assert_eq!((value[0].clone(), text(&value[1]).as_deref()), (json!(1), Some(number)));
        }
    }

    #[test]
    fn numbers_are_compared_as_written() {
        for (number, is_exact) in [
            ("0.1", true),
            ("100", true),
            ("1e-3", true),
            ("1.00000000000000000000", true),
            ("25.0000000000000000000e-2", true),
            ("0.1234567890123456789", false),
            ("1.00000000000000000001", false),
            ("12345678901234567890123", false),
        ] {
            let value: Value = serde_json::from_str(&exact_numbers(number)).unwrap();
            assert_eq!(is_same(&value, double(&value).unwrap()), is_exact, "{number}");
        }
    }

    #[test]
    fn ranges_have_their_bounds_and_no_more() {
        let bounds = [-130, -129, -100, -99, -10, -9, -1, 0, 1, 9, 10, 19, 99, 100, 130];
        for least in bounds.iter().copied().map(Some).chain([None]) {
            for greatest in bounds.iter().copied().map(Some).chain([None]) {
                let mut builder = RegexBuilder::new();
                let expr = builder.mk(&range(least, greatest)).unwrap();
                let mut regex = builder.to_regex(expr);
                for n in -1200_i128..1200 {
                    let is_inside = least.is_none_or(|least| n >= least) && greatest.is_none_or(|most| n <= most);
                    assert_eq!(regex.is_match(&n.to_string()), is_inside, "{least:?} <= {n} <= {greatest:?}");
                }
                assert!(!regex.is_match("-0") && !regex.is_match("00") && !regex.is_match("007"));
            }
        }
    }

    #[test]
    fn bounds_of_64_bits_are_exact() {
        let (least, greatest) = (i128::from(i64::MIN), i128::from(i64::MAX));
        let mut builder = RegexBuilder::new();
        let expr = builder.mk(&range(Some(least), Some(greatest))).unwrap();
        let mut regex = builder.to_regex(expr);
        for (n, is_inside) in [(least, true), (least - 1, false), (greatest, true), (greatest + 1, false), (0, true)] {
            assert_eq!(regex.is_match(&n.to_string()), is_inside, "{n}");
        }
    }
}
