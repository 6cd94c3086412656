//! Patterns of JSON schemas with lookaheads, which the library's regular expressions do not support.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

use super::leaf::Condition;

/// Zod's pattern for durations, which looks ahead in its middle. Everything that the format `duration` allows matches
/// it.
const ZOD_DURATION: &str =
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$";
/// The openings of lookaround groups.
const LOOKS: [&str; 4] = ["(?=", "(?!", "(?<=", "(?<!"];

/// Whether the format `duration` implies this pattern.
pub(super) fn is_duration(pattern: &str) -> bool {
    pattern == ZOD_DURATION
}

/// Whether any group of the pattern looks around.
pub(super) fn looks_around(pattern: &str) -> bool {
    groups(pattern).any(|at| LOOKS.iter().any(|look| pattern[at..].starts_with(look)))
}

/// Splits a pattern into conditions that must all hold. Each lookahead at its beginning becomes a condition of its own.
///
/// # Errors
/// The reason, if the pattern is not supported.
pub(super) fn conditions(pattern: &str) -> Result<Vec<Condition>, String> {
    let condition = |(regex, must_match): (String, bool)| Condition { regex: regex_to_lark(&regex, "dw"), must_match };
    checked(split(pattern)?.into_iter().map(condition).collect())
}

/// Splits a pattern into regular expressions, each with whether a text must match it. Does not check their syntax.
///
/// # Errors
/// As for [`conditions`].
pub(super) fn split(pattern: &str) -> Result<Vec<(String, bool)>, String> {
    if !looks_around(pattern) {
        return Ok(vec![(pattern.to_owned(), true)]);
    }
    let only = "can look ahead only at its beginning, right after ^";
    let mut rest = pattern.strip_prefix('^').ok_or(only)?;
    let mut all = Vec::new();
    while let Some(must_match) = ahead(rest) {
        let end = groups_end(rest).ok_or("has a group that does not end")?;
        let body = &rest[3..end];
        if looks_around(body) {
            return Err(only.into());
        }
        // A lookahead's body starts at the same position as the pattern, so its own `^` is redundant.
        let body = body.strip_prefix('^').unwrap_or(body);
        all.push((format!("^(?:{body})"), must_match));
        rest = &rest[end + 1..];
    }
    if looks_around(rest) || rest.starts_with(['*', '+', '?', '{']) || has_alternatives(rest) {
        return Err(only.into());
    }
    all.push((format!("^{rest}"), true));
    Ok(all)
}

/// Returns the conditions if the library can parse all of them.
fn checked(conditions: Vec<Condition>) -> Result<Vec<Condition>, String> {
    for condition in &conditions {
        let ast = RegexAst::SearchRegex(condition.regex.clone());
        RegexBuilder::new().mk(&ast).map_err(|error| {
            let reason = error.to_string();
            // The last line of a parser's message contains the reason.
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            if reason.contains("lookarounds") { "has an anchor that is not at an end".to_owned() } else { reason }
        })?;
    }
    Ok(conditions)
}

/// Whether the text begins with a lookahead. `Some(true)` if the lookahead must match, and `Some(false)` if it must
/// not.
fn ahead(text: &str) -> Option<bool> {
    match text.get(..3)? {
        "(?=" => Some(true),
        "(?!" => Some(false),
        _ => None,
    }
}

/// Returns the characters of a pattern that are neither escaped nor in a class, with their positions.
fn syntax(pattern: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut is_escaped, mut class) = (false, None);
    pattern.char_indices().filter(move |&(at, c)| {
        if is_escaped {
            is_escaped = false;
            return false;
        }
        match (c, class) {
            ('\\', _) => is_escaped = true,
            ('[', None) => class = Some(at),
            // A `]` that comes first in a class does not end it.
            (']', Some(begin)) if at > begin + 1 && !pattern[begin + 1..at].eq("^") => class = None,
            (_, None) => return true,
            _ => {}
        }
        false
    })
}

/// Returns the positions where groups begin.
fn groups(pattern: &str) -> impl Iterator<Item = usize> {
    syntax(pattern).filter(|&(_, c)| c == '(').map(|(at, _)| at)
}

/// Returns the position of the parenthesis that ends the group at the start of `text`.
fn groups_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    syntax(text).find_map(|(at, c)| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// Whether the pattern has alternatives outside all groups.
fn has_alternatives(pattern: &str) -> bool {
    let mut depth = 0_i32;
    syntax(pattern).any(|(_, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == '|' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::super::leaf;
    use super::*;

    /// Whether the conditions of a pattern allow a string.
    fn is_match(pattern: &str, text: &str) -> bool {
        let mut builder = RegexBuilder::new();
        let expr = builder.mk(&leaf::string(&conditions(pattern).unwrap(), 0, None)).unwrap();
        builder.to_regex(expr).is_match(&serde_json::Value::from(text).to_string())
    }

    #[test]
    fn lookaheads_at_the_beginning_are_enforced() {
        let decimal = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$";
        let email = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
        let password = r#"^(?=.*\d)(?=.*["\n\]]|a$).{2,}"#;
        for (pattern, accepted, refused) in [
            (decimal, &["0", "-1.5", "+.5", "007.", "1"][..], &["", "-", "+.", "1.2.3", "a", "1 "][..]),
            (email, &["a@b.cd", "a.b+c@d-e.fg.hi"][..], &[".a@b.cd", "a..b@c.de", "a.@b.cd", "a@b", "a@b..cd"][..]),
            (password, &["1\"", "x]1"][..], &["1", "\"\"", "1b", "1a"][..]),
            (r"^(?!\(|[)\]])\(?x", &["x", "xy"][..], &["(x", "yx"][..]),
            (r"a|b$", &["xa", "axx", "xb"][..], &["bx"][..]),
        ] {
            assert!(accepted.iter().all(|text| is_match(pattern, text)), "{pattern}");
            assert!(refused.iter().all(|text| !is_match(pattern, text)), "{pattern}");
        }
    }

    #[test]
    fn lookarounds_elsewhere_are_refused() {
        for pattern in [r"a(?=b)", r"(?!a)b", r"^(?!a)b|c", r"^(?!a(?=b))c", r"^x(?<=x)y", r"^(?!a)*b", r"^(?!a"] {
            assert!(looks_around(pattern) && conditions(pattern).is_err(), "{pattern}");
        }
        for pattern in [r"\(?=b", r"[(?=]b", r"[](?!]", r"(?:a)(?i:b)"] {
            assert!(!looks_around(pattern), "{pattern}");
        }
        assert!(conditions("(").is_err() && conditions(r"\bword").is_err());
        assert!(is_duration(ZOD_DURATION));
    }
}
