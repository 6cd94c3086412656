//! Parts of a JSON schema that `llguidance` cannot express, as regular expressions for their JSON text.
//!
//! In the compiled schema, a unique sentinel string replaces each such part. Each has a reference of its own, so
//! exactly one lexeme matches the sentinel. [`substitute`] then gives that lexeme the regular expression.

use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};
use serde_json::Value;

use super::super::reason::refused;
use checkpoint::error::Result;

/// A part of a schema that only a regular expression can describe.
#[derive(Clone)]
pub struct Leaf {
    /// The string that replaces the part.
    pub sentinel: String,
    /// A regular expression for the part's JSON text.
    pub text: RegexAst,
}

/// A condition on a string's content.
pub(super) struct Condition {
    /// The regular expression to search for, in the library's syntax.
    pub regex: String,
    /// Whether the expression must match. If false, it must not match.
    pub must_match: bool,
}

/// Matches a JSON string that meets all conditions and has `least` to `most` characters.
pub(super) fn string(conditions: &[Condition], least: u64, most: Option<u64>) -> RegexAst {
    let condition = |condition: &Condition| {
        let regex = RegexAst::SearchRegex(condition.regex.clone());
        if condition.must_match { regex } else { RegexAst::Not(Box::new(regex)) }
    };
    let most = most.map(|most| most.to_string()).unwrap_or_default();
    let length = RegexAst::Regex(format!("(?s:.{{{least},{most}}})"));
    let all = std::iter::once(length).chain(conditions.iter().map(condition)).collect();
    RegexAst::JsonQuote(Box::new(RegexAst::And(all)), JsonQuoteOptions::regular())
}

/// Matches an integer between two bounds, optionally a multiple of `multiple`.
pub(super) fn integer(least: Option<i128>, greatest: Option<i128>, multiple: Option<u32>) -> RegexAst {
    let range = super::number::range(least, greatest);
    match multiple {
        None => range,
        Some(multiple) => {
            let sign = RegexAst::Regex("-?".into());
            RegexAst::And(vec![range, RegexAst::Concat(vec![sign, RegexAst::MultipleOf(multiple, 0)])])
        }
    }
}

/// Matches a JSON array of `least` to `most` items from `values`, without duplicates.
pub(super) fn unique_array(values: &[&Value], least: usize, most: usize) -> RegexAst {
    let space = || RegexAst::Regex(" ?".into());
    let literal = |value: &Value| RegexAst::Literal(super::number::text(value).unwrap_or_else(|| value.to_string()));
    let any = || RegexAst::Or(values.iter().copied().map(literal).collect());
    let comma = || RegexAst::Regex(" ?, ?".into());
    let in_array = |items: Vec<RegexAst>| {
        let ends = |bracket: &str| RegexAst::Literal(bracket.into());
        let mut all = vec![ends("["), space()];
        all.extend(items);
        all.extend([space(), ends("]")]);
        RegexAst::Concat(all)
    };
    let repeated = |item: RegexAst, least: usize, most: usize| {
        let times = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        RegexAst::Repeat(Box::new(item), times(least), times(most))
    };
    let more = |least: usize, most: usize| repeated(RegexAst::Concat(vec![comma(), any()]), least, most);
    let before = || repeated(RegexAst::Concat(vec![any(), comma()]), 0, usize::MAX);
    let mut lists = Vec::new();
    if least == 0 {
        lists.push(in_array(Vec::new()));
    }
    if most > 0 {
        lists.push(in_array(vec![any(), more(least.saturating_sub(1), most - 1)]));
    }
    let twice = |value: &Value| {
        let items = vec![before(), literal(value), comma(), before(), literal(value), more(0, usize::MAX)];
        RegexAst::Not(Box::new(in_array(items)))
    };
    let mut all = vec![RegexAst::Or(lists)];
    all.extend(values.iter().copied().map(twice));
    RegexAst::And(all)
}

/// Gives each leaf's lexeme its regular expression. Skips leaves that the compiled grammar does not contain.
///
/// # Errors
/// If the library refuses a regular expression.
pub fn substitute(lexer: &mut LexerSpec, leaves: &[Leaf]) -> Result<()> {
    let current = lexer.current_class;
    let error = |why: &dyn std::fmt::Display| refused(why.to_string());
    for leaf in leaves {
        for class in 0..lexer.skip_by_class.len() {
            lexer.current_class = LexemeClass::new(class);
            replace(lexer, leaf).map_err(|why| error(&why))?;
        }
    }
    lexer.current_class = current;
    Ok(())
}

/// Gives the leaf's lexeme in the current class its regular expression, if the class has this lexeme.
fn replace(lexer: &mut LexerSpec, leaf: &Leaf) -> Result<(), String> {
    let add = |lexer: &mut LexerSpec, text: RegexAst| {
        let added = lexer.add_greedy_lexeme(String::new(), text, false, None, usize::MAX);
        added.map(|index| index.as_usize()).map_err(|why| why.to_string())
    };
    let content = Box::new(RegexAst::Literal(leaf.sentinel.clone()));
    let sentinel = RegexAst::JsonQuote(content, JsonQuoteOptions::regular());
    let count = lexer.lexemes.len();
    // Adding a lexeme that already exists returns the existing one.
    let at = add(lexer, sentinel)?;
    if at == count {
        lexer.lexemes.pop();
        return Ok(());
    }
    // The library gives a new lexeme the index `lexemes.len()`, unless an equal lexeme exists. Placeholders make that
    // index `at`.
    let placeholder = lexer.lexemes[at].clone();
    let mut lexemes = std::mem::replace(&mut lexer.lexemes, vec![placeholder; at]);
    let added = add(lexer, leaf.text.clone());
    if let (Ok(_), Some(new)) = (&added, lexer.lexemes.pop()) {
        lexemes[at] = new;
    }
    lexer.lexemes = lexemes;
    added.map(drop)
}
