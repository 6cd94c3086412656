//! Operators that do in Python what they do not do in minijinja. [`source`](super::source) has them called.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::{filters, python};

/// The function that stands for `left % right`.
pub(super) const PERCENT: &str = "python_percent";
/// The function that stands for `format % (a, b)`, where the right side is written as a tuple.
pub(super) const FORMAT: &str = "python_format";
/// The function that stands for `a ~ b ~ c`.
pub(super) const CONCAT: &str = "python_concat";

/// Adds them.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_function(PERCENT, percent);
    environment.add_function(FORMAT, |format: &Value, arguments: Rest<Value>| match format.as_str() {
        Some(format) => filters::printf(format, &arguments),
        None => Err(Error::new(ErrorKind::InvalidOperation, "only texts are formatted with %")),
    });
    environment.add_function(CONCAT, |parts: Rest<Value>| parts.iter().map(python::text).collect::<String>());
}

/// A remainder, which has the sign of the divisor, or a text with an argument in it.
fn percent(left: &Value, right: &Value) -> Result<Value, Error> {
    let failed = |why: &str| Error::new(ErrorKind::InvalidOperation, why.to_owned());
    if let Some(format) = left.as_str() {
        return filters::printf(format, std::slice::from_ref(right)).map(Value::from);
    }
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(left) || !is_number(right) {
        return Err(failed(&format!("% is not for a {} and a {}", left.kind(), right.kind())));
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
