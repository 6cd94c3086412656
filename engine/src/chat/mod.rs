//! Conversations to prompts: chat templates in Jinja, as Hugging Face has them.

mod message;
mod options;
mod template;

pub use message::Message;
pub use minijinja::Value;
pub use options::{Arguments, RenderOptions, Time};
pub use template::{ChatTemplate, RenderError};
