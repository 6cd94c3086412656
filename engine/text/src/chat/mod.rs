//! Conversations to prompts: chat templates in Jinja, as Hugging Face has them.
//!
//! ```text
//!  messages --forms--> values --Jinja--> prompt
//!                                 ^
//!     source --translated, compiled
//! ```
//!
//! What a template is told, and what its language does, are those of `apply_chat_template` in Hugging Face's
//! transformers. The language is minijinja's; `source`, `filters`, `methods` and `operators` add what Python has and
//! minijinja has not. `program`, `hooks` and `budget` bound a template's costs. What is known to differ: tuples and views of dicts print as lists, and `none` can be iterated.

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
