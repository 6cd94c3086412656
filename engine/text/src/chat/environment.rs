//! Jinja as `apply_chat_template` sets it up.

use minijinja::{Environment, Error, ErrorKind, Value};

use super::{Time, filters, methods, operators, python, source};

/// Instructions that a template may execute. Templates come with models, and must not hang the server.
pub(super) const FUEL: u64 = 10_000_000;

/// An environment with the one template `name`.
///
/// # Errors
/// If it is not valid Jinja.
pub(super) fn with_template(name: &'static str, template: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&python::text(value))?));
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, python::text(message)))
    });
    minijinja_contrib::add_to_environment(&mut environment);
    filters::add(&mut environment);
    operators::add(&mut environment);
    environment.add_template_owned(name, source::translate(template))?;
    Ok(environment)
}

/// `strftime_now` at the time `now`, or at that of the system.
pub(super) fn strftime_now(now: Option<Time>) -> Value {
    Value::from_function(move |format: &str| {
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
