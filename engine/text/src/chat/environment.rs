//! Jinja as `apply_chat_template` sets it up.

use minijinja::value::{Kwargs, Rest, from_args};
use minijinja::{Environment, Error, ErrorKind, Value, functions};

use super::{Time, budget, filters, methods, operators, python, tests};

/// A variable that is one.
pub(super) const ONE: &str = "python_one";

/// An environment without templates. It has no filter, test or function but those added here, since each must pay for its
/// work.
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
        budget::kept(functions::dict(value, update)?)
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

/// Refuses arguments that may not be kept in a mapping or a namespace.
fn check_arguments(arguments: &[Value]) -> Result<(), Error> {
    for argument in arguments {
        match argument.is_kwargs() {
            true => python::pairs(argument).try_for_each(|(_, value)| budget::check_item(&value))?,
            false => budget::check_item(argument)?,
        }
    }
    Ok(())
}

/// `strftime_now` at the time `now`, or at that of the system.
pub(super) fn strftime_now(now: Option<Time>) -> Value {
    Value::from_function(move |format: &str| {
        // Each directive writes a few dozen characters.
        budget::spend(format.len().saturating_mul(64))?;
        let now = now.unwrap_or_else(|| chrono::Local::now().naive_local());
        // Python's time has microseconds, and no zone.
        let format = format.replace("%f", "%6f").replace("%Z", "").replace("%z", "");
        let mut text = String::new();
        match std::fmt::Write::write_fmt(&mut text, format_args!("{}", now.format(&format))) {
            Ok(()) => Ok(text),
            Err(_) => Err(Error::new(ErrorKind::InvalidOperation, format!("{format:?} is not the form of a date"))),
        }
    })
}
