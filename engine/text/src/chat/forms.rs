//! The forms that a template expects its input to have.
//!
//! Clients send a content as a text or as parts, and the arguments of a function call as JSON in a string. Each
//! template expects only some of these forms. [`probe`](super::probe) finds out which ones.

/// The forms that a template expects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forms {
    /// Roles whose contents are passed as lists of parts. For other roles, the parts are joined into one text.
    pub(super) roles_in_parts: Vec<String>,
    /// Roles whose contents the template reads only as lists of parts.
    pub(super) roles_only_in_parts: Vec<String>,
    /// The content of a message that calls functions and has no text.
    pub(super) empty_content: EmptyContent,
    /// How the arguments of function calls are passed.
    pub(super) arguments: ArgumentsForm,
    /// Whether the template shows a message with one call, but drops calls of a message with two or refuses it.
    pub(super) one_call_only: bool,
}

/// How a missing content is passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EmptyContent {
    /// Without the field. `apply_chat_template` drops fields that are null.
    #[default]
    Absent,
    /// As a null field. Before version 5, transformers did not drop null fields.
    Null,
    /// As an empty text.
    Empty,
}

/// How the arguments of function calls are passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ArgumentsForm {
    /// As an object.
    #[default]
    Object,
    /// As JSON in a string, as in OpenAI's API.
    Text,
}
