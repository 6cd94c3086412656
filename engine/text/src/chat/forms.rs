//! Forms in which a template takes what can be said in several ways.
//!
//! Clients send texts whole or in parts, and the arguments of a function as JSON in a string; templates read what their
//! authors had in mind. `probe` finds out which form a template reads.

/// The forms that a template takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forms {
    /// Roles whose contents are read as lists of parts. For others, parts are joined to one text.
    pub(super) roles_in_parts: Vec<String>,
    /// Roles whose contents are read as lists of parts alone.
    pub(super) roles_only_in_parts: Vec<String>,
    /// What stands for the content of a message that calls functions and says nothing.
    pub(super) silence: Silence,
    /// How arguments of functions are given.
    pub(super) arguments: ArgumentsForm,
    /// Whether a message that calls one function is shown, and one that calls two is not, or is refused.
    pub(super) one_call_only: bool,
}

/// What stands for no content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Silence {
    /// No such field: `apply_chat_template` drops fields that are null.
    #[default]
    Absent,
    /// A field that is null, as it was dropped only since transformers 5.
    Null,
    /// An empty text.
    Empty,
}

/// How arguments of functions are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ArgumentsForm {
    /// As an object.
    #[default]
    Object,
    /// As JSON in a string, as OpenAI has them.
    Text,
}
