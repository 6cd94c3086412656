//! Sets up Jinja as `apply_chat_template` does.

use minijinja::value::{Kwargs, Rest, from_args};
use minijinja::{Environment, Error, ErrorKind, Value, functions};

use super::{Time, budget, filters, methods, operators, python, tests};

/// Name of a variable with the value 1.
pub(super) const ONE: &str = "python_one";

/// Creates an environment without templates. It starts empty and only gets the filters, tests and functions added here,
/// because each of them must pay for its work.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_debug(false);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => {
            budget::spend(text.len())?;
            Ok(out.write_str(text)?)
        }
        None => Ok(out.write_str(&python::text(value)?)?),
    });
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, python::text(message)?))
    });
    environment.add_function("range", functions::range);
    environment.add_function("dict", |arguments: Rest<Value>| {
        check_arguments(&arguments)?;
        let (value, update): (Option<Value>, Kwargs) = from_args(&arguments)?;
        budget::charge(functions::dict(value, update)?)
    });
    environment.add_function("namespace", |defaults: Option<Value>| {
        check_arguments(defaults.as_slice())?;
        functions::namespace(defaults)
    });
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("cycler", |arguments: Rest<Value>| {
        check_arguments(&arguments)?;
        minijinja_contrib::globals::cycler(arguments.0)
    });
    environment.add_global(ONE, 1);
    filters::add(&mut environment);
    tests::add(&mut environment);
    operators::add(&mut environment);
    environment
}

/// Refuses arguments that a mapping or a namespace must not contain.
fn check_arguments(arguments: &[Value]) -> Result<(), Error> {
    for argument in arguments {
        match argument.is_kwargs() {
            true => python::pairs(argument).try_for_each(|(_, value)| budget::check_item(&value))?,
            false => budget::check_item(argument)?,
        }
    }
    Ok(())
}

/// Returns the function `strftime_now`, which formats `now`, or the system's time if that is `None`.
pub(super) fn strftime_now(now: Option<Time>) -> Value {
    Value::from_function(move |format: &str| {
        // A directive writes a few dozen characters at most.
        budget::spend(format.len().saturating_mul(64))?;
        let now = now.unwrap_or_else(|| chrono::Local::now().naive_local());
        // Python's time has microseconds and no time zone.
        let format = format.replace("%f", "%6f").replace("%Z", "").replace("%z", "");
        let mut text = String::new();
        match std::fmt::Write::write_fmt(&mut text, format_args!("{}", now.format(&format))) {
            Ok(()) => Ok(text),
            Err(_) => Err(Error::new(ErrorKind::InvalidOperation, format!("{format:?} is not a valid date format"))),
        }
    })
}
