//! Reasons for refusing a grammar. Rewords the reasons of `llguidance`, so that a user can act on them.

use checkpoint::error::Error;

/// Maximum characters of a library reason in an error message.
const MAX_REASON: usize = 600;
/// Substrings of reasons that name library settings, each with a replacement. Users cannot change these settings.
const SETTINGS: [(&str, &str); 6] = [
    ("lexer precomputation failed", "the grammar's strings and numbers take too much work"),
    ("initial lexer configuration", "the grammar's strings and numbers are too large"),
    ("grammar size", "the grammar is too large"),
    ("Too many items", "the grammar has too many ways to read a text"),
    ("fuel exhausted", "the grammar's strings and numbers take too much work"),
    ("maximum relevance check", "the grammar's strings and numbers take too much work"),
];

/// Returns the library's reason as one sentence. Joins its lines and shortens the result to [`MAX_REASON`] characters.
pub(super) fn sentence(reason: &str) -> String {
    if let Some(panic) = reason.strip_prefix("panic: ") {
        let why = panic.lines().next().unwrap_or_default();
        return format!("the grammar is too large, or has a part that is not supported ({why})");
    }
    if let Some((_, why)) = SETTINGS.iter().find(|(setting, _)| reason.contains(setting)) {
        return (*why).to_owned();
    }
    let lines: Vec<&str> =
        reason.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "<non-verbose/>").collect();
    let joined = lines.join("; ");
    match joined.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}...", &joined[..end]),
        None => joined,
    }
}

/// Refuses a request because of its grammar.
pub(super) fn refused(why: String) -> Error {
    Error::request("constraint", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_not_suggested() {
        let reason = "lexer precomputation failed; either increase limits.initial_lexer_fuel or disable limits.precompute_large_lexemes";
        assert!(!sentence(reason).contains("limits"));
        assert_eq!(sentence("one\n\n  two\n<non-verbose/>"), "one; two");
        assert!(sentence(&"\u{e9}".repeat(1000)).len() < 1300);
    }
}
