//! Python's operators, each with its cost.
//!
//! [`source`](super::source) rewrites formatting operators as function calls. [`hooks`](super::hooks) replaces the
//! others with filters.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::hooks::names;
use super::{budget, filters, python, tests};

/// Function that replaces `left % right`.
pub(super) const PERCENT: &str = "python_percent";
/// Function that replaces `format % (a, b)`, if the right side is written as a tuple.
pub(super) const FORMAT: &str = "python_format";
/// Function that replaces `a ~ b ~ c`.
pub(super) const CONCAT: &str = "python_concat";

/// Cost of a macro in bytes. When a macro defines others, minijinja copies its list of macros, at eight bytes or more
/// each.
const MACRO: usize = 16 << 10;

/// Adds the functions and filters for operators.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_function(PERCENT, percent);
    environment.add_function(FORMAT, |format: &Value, arguments: Rest<Value>| match format.as_str() {
        Some(format) => filters::printf(format, &arguments),
        None => Err(failed("only texts are formatted with %")),
    });
    environment.add_function(CONCAT, |parts: Rest<Value>| concat(&parts));
    environment.add_filter(names::CONCAT, |left: Value, right: Value| concat(&[left, right]));
    environment.add_filter(names::REMAINDER, percent);
    environment.add_filter(names::ADD, add_values);
    environment.add_filter(names::MULTIPLY, multiply);
    environment.add_filter(names::SLICE, slice);
    environment.add_filter(names::ITEM, |value: &Value, key: &Value| {
        budget::spend(value.as_str().map_or(0, str::len))?;
        tests::read(key)?;
        value.get_item(key)
    });
    environment.add_filter(names::BUILT, budget::charge);
    environment.add_filter(names::READ, |value: &Value| tests::read(value));
    environment.add_filter(names::ITERATED, |value: Value| -> Result<Value, Error> {
        budget::spend(value.as_str().map_or(0, str::len))?;
        Ok(value)
    });
    environment.add_filter(names::ATTRIBUTE, |value: Value| -> Result<Value, Error> {
        budget::check_item(&value)?;
        Ok(value)
    });
    environment.add_filter(names::MACRO, |value: Value| -> Result<Value, Error> {
        budget::spend(MACRO)?;
        Ok(value)
    });
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// Returns the value of an integer or a Boolean.
fn integer(value: &Value) -> Option<i128> {
    (value.is_integer() || value.kind() == ValueKind::Bool).then(|| i128::try_from(value.clone()).ok()).flatten()
}

fn from_integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| number.into(), Value::from)
}

/// Applies an arithmetic operation to two numbers.
fn arithmetic(
    left: &Value,
    right: &Value,
    operator: &str,
    on_integers: fn(i128, i128) -> Option<i128>,
    on_floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    if !is_number(left) || !is_number(right) {
        return Err(failed(format!("{operator} does not support a {} and a {}", left.kind(), right.kind())));
    }
    match (integer(left), integer(right)) {
        (Some(a), Some(b)) => on_integers(a, b).map(from_integer).ok_or_else(|| failed("a number is too large")),
        _ => Ok(on_floats(f64::try_from(left.clone())?, f64::try_from(right.clone())?).into()),
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn concat(parts: &[Value]) -> Result<String, Error> {
    parts.iter().map(python::text).collect()
}

/// `left + right`.
fn add_values(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        budget::spend(a.len() + b.len())?;
        return Ok([a, b].concat().into());
    }
    if is_list(left) && is_list(right) {
        return budget::joined(left, right);
    }
    arithmetic(left, right, "+", i128::checked_add, |a, b| a + b)
}

/// `left * right`.
fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    let (repeated, times) = if left.as_str().is_some() || is_list(left) { (left, right) } else { (right, left) };
    let times = || {
        let times = integer(times).ok_or_else(|| failed("a text or a list can only be multiplied by an integer"))?;
        Ok::<usize, Error>(usize::try_from(times.max(0)).unwrap_or(usize::MAX))
    };
    if let Some(text) = repeated.as_str() {
        let times = times()?;
        budget::spend(text.len().saturating_mul(times))?;
        return Ok(text.repeat(if text.is_empty() { 0 } else { times }).into());
    }
    if is_list(repeated) {
        let items: Vec<Value> = repeated.try_iter()?.collect();
        let times = if items.is_empty() { 0 } else { times()? };
        return budget::list((0..times).flat_map(|_| items.iter().cloned()));
    }
    arithmetic(left, right, "*", i128::checked_mul, |a, b| a * b)
}

/// `value[start:stop:step]`.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let number = |value: &Value| match value.is_none() || value.is_undefined() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let (start, stop, step) = (number(start)?, number(stop)?, number(step)?.unwrap_or(1));
    if step == 0 {
        return Err(failed("a slice cannot have a step of 0"));
    }
    if let Some(text) = value.as_str() {
        budget::spend(text.len().saturating_mul(size_of::<char>()))?;
        if (start, stop, step) == (None, None, 1) {
            return Ok(value.clone());
        }
        let chars: Vec<char> = text.chars().collect();
        return Ok(positions(chars.len(), start, stop, step).map(|at| chars[at]).collect::<String>().into());
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => Ok(Value::from_object(Vec::<Value>::new())),
        ValueKind::Seq | ValueKind::Iterable => {
            budget::spend_on(value)?;
            let items: Vec<Value> = value.try_iter()?.collect();
            budget::list(positions(items.len(), start, stop, step).map(|at| items[at].clone()))
        }
        kind => Err(failed(format!("a value of the kind {kind} cannot be sliced"))),
    }
}

/// Returns the indices of a slice of a list with `len` items, by Python's rules.
fn positions(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let len = len as i64;
    // For a negative step, the end is before the first item.
    let (first, last) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |at: i64| if at < 0 { at.saturating_add(len).max(first) } else { at.min(last) };
    let start = start.map_or(if step > 0 { first } else { last }, place);
    let stop = stop.map_or(if step > 0 { last } else { first }, place);
    let is_within = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), move |at| at.checked_add(step)).take_while(is_within).map(|at| at as usize)
}

/// Returns `left % right`. For numbers it is the remainder with the divisor's sign, and for a text it formats an
/// argument.
fn percent(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(format) = left.as_str() {
        return filters::printf(format, std::slice::from_ref(right)).map(Value::from);
    }
    if !is_number(left) || !is_number(right) {
        return Err(failed(format!("% does not support a {} and a {}", left.kind(), right.kind())));
    }
    if let (Ok(a), Ok(b)) = (i64::try_from(left.clone()), i64::try_from(right.clone()))
        && (left.is_integer() || left.kind() == ValueKind::Bool)
        && (right.is_integer() || right.kind() == ValueKind::Bool)
    {
        let remainder = a.checked_rem(b).ok_or_else(|| failed("division by zero"))?;
        return Ok(Value::from(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder }));
    }
    let (a, b) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
    if b == 0.0 {
        return Err(failed("division by zero"));
    }
    let remainder = a % b;
    Ok(Value::from(if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { remainder + b } else { remainder }))
}

#[cfg(test)]
mod unit_tests {
    use super::positions;

    #[test]
    fn slices_match_python() {
        let of = |start, stop, step| positions(5, start, stop, step).collect::<Vec<_>>();
        assert_eq!(of(None, None, 1), [0, 1, 2, 3, 4]);
        assert_eq!(of(Some(-2), None, 1), [3, 4]);
        assert_eq!(of(Some(-9), Some(-4), 1), [0]);
        assert_eq!(of(Some(1), Some(99), 2), [1, 3]);
        assert!(of(Some(9), None, 1).is_empty());
        assert_eq!(of(None, None, -1), [4, 3, 2, 1, 0]);
        assert_eq!(of(Some(9), Some(1), -2), [4, 2]);
        assert!(of(Some(-9), None, -1).is_empty());
        assert_eq!(of(None, Some(-9), -1), [4, 3, 2, 1, 0]);
        assert_eq!(of(None, None, i64::MIN), [4]);
    }
}
