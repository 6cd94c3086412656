//! Parses Jinja expressions far enough to find the operands of operators.
//!
//! minijinja's `%` does not format texts, and its `~` prints lists and floats in Rust's format. Both become calls of
//! functions that behave as in Python. For example, `'%s' % x` becomes `python_percent('%s', x)`.

use super::operators::{CONCAT, FORMAT, PERCENT};

/// Maximum nesting of brackets. Tags that nest deeper stay untranslated.
const MAX_DEPTH: usize = 100;

/// A token of an expression.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind,
    pub(super) text: &'a str,
    /// Byte offset in the tag.
    pub(super) start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Name,
    /// A number or a string.
    Literal,
    Open,
    Close,
    Operator,
}

/// Returns the tokens of the tag at the start of `source`, and the position where the tag ends. `close` is its closing
/// delimiter.
pub(super) fn tokens<'a>(source: &'a str, close: &str) -> (Vec<Token<'a>>, usize) {
    let mut tokens: Vec<Token<'a>> = Vec::new();
    let (mut at, mut depth) = (2, 0_usize);
    // Skip the sign that controls the white space before the tag.
    at += usize::from(source[at..].starts_with(['-', '+']));
    loop {
        at = source.len() - source[at..].trim_start().len();
        let rest = &source[at..];
        let Some(first) = rest.chars().next() else { return (tokens, at) };
        let mark = usize::from(rest.starts_with(['-', '+']));
        if depth == 0
            && let Some(mark) = [0, mark].into_iter().find(|&mark| rest[mark..].starts_with(close))
        {
            return (tokens, at + mark + close.len());
        }
        let (kind, len) = match first {
            '\'' | '"' => (TokenKind::Literal, string_len(rest, first)),
            '0'..='9' => (TokenKind::Literal, number_len(rest)),
            c if c.is_alphabetic() || c == '_' => {
                (TokenKind::Name, rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()))
            }
            '(' | '[' | '{' => (TokenKind::Open, 1),
            ')' | ']' | '}' => (TokenKind::Close, 1),
            _ => {
                let two = ["==", "!=", "<=", ">=", "//", "**"].into_iter().any(|operator| rest.starts_with(operator));
                (TokenKind::Operator, if two { 2 } else { first.len_utf8() })
            }
        };
        match kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        tokens.push(Token { kind, text: &rest[..len], start: at });
        at += len;
    }
}

fn string_len(source: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in source.char_indices().skip(1) {
        match c {
            c if c == quote && !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    source.len()
}

fn number_len(source: &str) -> usize {
    let bytes = source.as_bytes();
    let digits = |at: usize| bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    let mut len = digits(0);
    if bytes.get(len) == Some(&b'.') && bytes.get(len + 1).is_some_and(u8::is_ascii_digit) {
        len += 1 + digits(len + 1);
    }
    let is_decimal = !source.starts_with("0x") && !source.starts_with("0X");
    if is_decimal && source[..len].ends_with(['e', 'E']) && matches!(bytes.get(len), Some(b'-' | b'+')) {
        len += 1 + digits(len + 1);
    }
    len
}

/// A part of an expression at the level of operators: an operand, an operator or a separator.
#[derive(Clone, Debug)]
struct Unit<'a> {
    /// The source text, with the white space before it.
    text: String,
    role: Role<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role<'a> {
    /// A name, a literal or a bracketed expression.
    Operand,
    /// A tuple such as `(a, b)`, as opposed to the arguments of a call.
    Tuple,
    /// `.`, `|`, `is` and `is not`. They bind more tightly than any operator.
    Glue,
    /// A unary minus or plus.
    Sign,
    /// `*`, `/`, `//`, `**` and `%`.
    Times(&'a str),
    Concat,
    /// Everything that binds less tightly: other operators, commas, and words such as `if`.
    Boundary,
}

/// Writes the tag in `source` to `out`, with its operators translated.
pub(super) fn translate(source: &str, tokens: &[Token<'_>], is_block: bool, out: &mut String) {
    let has_operators = tokens.iter().any(|token| matches!(token.text, "%" | "~"));
    let (Some(first), Some(last), true) = (tokens.first(), tokens.last(), has_operators) else {
        return out.push_str(source);
    };
    let end = last.start + last.text.len();
    match level(source, tokens, first.start, is_block, 0) {
        Some(units) => {
            out.push_str(&source[..first.start]);
            units.iter().for_each(|unit| out.push_str(&unit.text));
            out.push_str(&source[end..]);
        }
        None => out.push_str(source),
    }
}

/// Returns the units of a tag or of an expression in brackets, with operators translated. The expression starts at
/// `from`. Returns `None` if its brackets do not match or nest too deeply.
fn level<'a>(
    source: &'a str,
    tokens: &[Token<'a>],
    mut from: usize,
    is_block: bool,
    depth: usize,
) -> Option<Vec<Unit<'a>>> {
    if depth > MAX_DEPTH {
        return None;
    }
    let mut units: Vec<Unit<'a>> = Vec::new();
    let mut i = 0;
    while let Some(token) = tokens.get(i) {
        let mut text = source[from..token.start + token.text.len()].to_owned();
        from = token.start + token.text.len();
        let before = units.last().map(|unit| unit.role);
        let follows_operand = matches!(before, Some(Role::Operand | Role::Tuple));
        let glued = before == Some(Role::Glue);
        let role = match (token.kind, token.text) {
            (TokenKind::Open, open) => {
                let close = i + matching(&tokens[i..])?;
                let inside = level(source, &tokens[i + 1..close], from, false, depth + 1)?;
                let is_tuple = open == "(" && !follows_operand && inside.iter().any(|unit| unit.text.trim() == ",");
                inside.iter().for_each(|unit| text.push_str(&unit.text));
                let end = tokens[close].start + 1;
                let last = &tokens[close - 1];
                text.push_str(&source[last.start + last.text.len()..end]);
                (from, i) = (end, close);
                if is_tuple { Role::Tuple } else { Role::Operand }
            }
            (TokenKind::Close, _) => return None,
            (TokenKind::Literal, _) => Role::Operand,
            (TokenKind::Name, "is") => Role::Glue,
            (TokenKind::Name, "not") if glued => Role::Glue,
            (TokenKind::Name, _) if glued => Role::Operand,
            (TokenKind::Name, _) if i == 0 && is_block => Role::Boundary,
            (TokenKind::Name, "and" | "or" | "not" | "in" | "if" | "else" | "recursive") => Role::Boundary,
            (TokenKind::Name, _) => Role::Operand,
            (TokenKind::Operator, "." | "|") => Role::Glue,
            (TokenKind::Operator, "-" | "+") if !follows_operand => Role::Sign,
            (TokenKind::Operator, operator @ ("*" | "/" | "//" | "**" | "%")) => Role::Times(operator),
            (TokenKind::Operator, "~") => Role::Concat,
            (TokenKind::Operator, _) => Role::Boundary,
        };
        units.push(Unit { text, role });
        i += 1;
    }
    while let Some(at) = units.iter().position(|unit| unit.role == Role::Times("%")) {
        percent(&mut units, at);
    }
    while let Some(at) = units.iter().position(|unit| unit.role == Role::Concat) {
        concat(&mut units, at);
    }
    Some(units)
}

/// Returns the index of the token that closes the bracket opened by the first one.
fn matching(tokens: &[Token<'_>]) -> Option<usize> {
    let mut depth = 0_usize;
    tokens.iter().position(|token| {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

/// Replaces the leftmost `%`, at index `at`, and its operands with a function call.
fn percent(units: &mut Vec<Unit<'_>>, at: usize) {
    let start = left_end(units, at, |role| matches!(role, Role::Boundary | Role::Concat));
    let end = right_end(units, at, |role| matches!(role, Role::Boundary | Role::Concat | Role::Times(_)));
    let right = &units[at + 1..end];
    let (function, right) = match right {
        // The tuple's items become the function's remaining arguments.
        [Unit { text, role: Role::Tuple }] => (FORMAT, text.trim().trim_start_matches('(').to_owned()),
        _ => (PERCENT, joined(right) + ")"),
    };
    let left = joined(&units[start..at]);
    replace(units, start, end, format!("{function}({left}, {right}"));
}

/// Replaces the leftmost `~`, at index `at`, and the ones chained to it with one function call.
fn concat(units: &mut Vec<Unit<'_>>, at: usize) {
    let is_end = |role| matches!(role, Role::Boundary | Role::Concat);
    let start = left_end(units, at, is_end);
    let mut parts = vec![joined(&units[start..at])];
    let mut end = at;
    while units.get(end).is_some_and(|unit| unit.role == Role::Concat) {
        let operator = end;
        end = right_end(units, operator, is_end);
        parts.push(joined(&units[operator + 1..end]));
    }
    replace(units, start, end, format!("{CONCAT}({})", parts.join(", ")));
}

/// Returns the index where the left operand of the operator at `at` begins.
fn left_end<'a>(units: &[Unit<'a>], at: usize, is_end: impl Fn(Role<'a>) -> bool) -> usize {
    units[..at].iter().rposition(|unit| is_end(unit.role)).map_or(0, |boundary| boundary + 1)
}

/// Returns the index where the right operand of the operator at `at` ends.
fn right_end<'a>(units: &[Unit<'a>], at: usize, is_end: impl Fn(Role<'a>) -> bool) -> usize {
    let is_end = |unit: &Unit<'a>| is_end(unit.role) && unit.role != Role::Times("**");
    units[at + 1..].iter().position(is_end).map_or(units.len(), |n| at + 1 + n)
}

fn joined(units: &[Unit<'_>]) -> String {
    units.iter().map(|unit| unit.text.as_str()).collect::<String>().trim().to_owned()
}

/// Replaces several units with one operand.
fn replace(units: &mut Vec<Unit<'_>>, start: usize, end: usize, text: String) {
    let before = &units[start].text;
    let space = &before[..before.len() - before.trim_start().len()];
    let unit = Unit { text: format!("{space}{text}"), role: Role::Operand };
    units.splice(start..end, [unit]);
}
