//! Turns conversations into prompts with Hugging Face's chat templates, which are written in Jinja.
//!
//! ```text
//!  messages --forms--> values --Jinja--> prompt
//!                                 ^
//!     source --translated, compiled
//! ```
//!
//! Templates get the same variables and the same language as in `apply_chat_template` of Hugging Face's transformers.
//! The crate minijinja implements the language. `source`, `filters`, `methods` and `operators` add Python features that
//! it lacks. `program`, `hooks` and `budget` limit a template's cost. There are two known differences: tuples and dict
//! views print as lists, and `none` can be iterated.

mod budget;
mod environment;
mod expression;
mod filters;
mod forms;
mod hooks;
mod json;
mod message;
mod methods;
mod operators;
mod options;
mod probe;
mod program;
mod python;
mod reading;
mod source;
mod template;
mod tests;

pub use message::{Message, MessageProblem};
pub use minijinja::Value;
pub use options::{Arguments, RenderOptions, Time};
pub use template::{ChatTemplate, RenderError};
