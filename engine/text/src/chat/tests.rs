//! Jinja's tests, such as `is defined`. Each pays for reading its arguments.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, State, Value, tests};

use super::budget;

/// Adds all tests.
pub(super) fn add(environment: &mut Environment<'_>) {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let is_callable = |value: &Value| value.kind() == ValueKind::Plain;
    for (names, test) in [
        (&["undefined"][..], Value::from_function(tests::is_undefined)),
        (&["defined"], Value::from_function(tests::is_defined)),
        (&["none"], Value::from_function(tests::is_none)),
        (&["safe", "escaped"], Value::from_function(tests::is_safe)),
        (&["boolean"], Value::from_function(tests::is_boolean)),
        (&["odd"], Value::from_function(tests::is_odd)),
        (&["even"], Value::from_function(tests::is_even)),
        (&["divisibleby"], Value::from_function(tests::is_divisibleby)),
        (&["number"], Value::from_function(is_number)),
        (&["integer", "int"], Value::from_function(tests::is_integer)),
        (&["float"], Value::from_function(tests::is_float)),
        (&["string"], Value::from_function(tests::is_string)),
        (&["sequence"], Value::from_function(is_sequence)),
        (&["iterable"], Value::from_function(is_iterable)),
        (&["mapping"], Value::from_function(tests::is_mapping)),
        (&["startingwith"], Value::from_function(tests::is_startingwith)),
        (&["endingwith"], Value::from_function(tests::is_endingwith)),
        (&["lower"], Value::from_function(tests::is_lower)),
        (&["upper"], Value::from_function(tests::is_upper)),
        (&["sameas"], Value::from_function(tests::is_sameas)),
        (&["eq", "equalto", "=="], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
        (&["true"], Value::from_function(tests::is_true)),
        (&["false"], Value::from_function(tests::is_false)),
        (&["filter"], Value::from_function(tests::is_filter)),
        (&["test"], Value::from_function(tests::is_test)),
        (&["callable"], Value::from_function(is_callable)),
    ] {
        for name in names {
            let test = test.clone();
            environment.add_test(*name, move |state: &State<'_, '_>, arguments: Rest<Value>| -> Result<bool, Error> {
                // A test without arguments reads only the value, and costs more only for a text.
                match &arguments[..] {
                    [value] => budget::spend(value.as_str().map_or(0, str::len))?,
                    several => several.iter().try_for_each(read)?,
                }
                test.call(state, &arguments).map(|value| value.is_true())
            });
        }
    }
}

/// Pays for reading a value with all its items.
pub(super) fn read(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => budget::spend(text.len()),
        None => budget::spend(budget::weigh(value)?.bytes as usize / 4),
    }
}

fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
}

/// Whether a value has a length and can be indexed by number or key.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}
