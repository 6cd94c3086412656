//! Grammars, as users specify them.

use std::time::{Duration, Instant};

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::{ParserFactory, regex_to_lark};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::reason::{refused, sentence};
use super::schema::{self, Rewritten};
use super::stop::Stop;
use checkpoint::error::{Error, Result};

/// Maximum bytes of a grammar's text.
pub const MAX_BYTES: usize = 512 << 10;
/// Maximum texts in a [`Grammar::Choice`].
const MAX_CHOICES: usize = 10_000;
/// White space between two tokens of a JSON document: at most one space. A model that may write more could write white
/// space forever.
const SPACE: &str = r"\x20";
/// Maximum nested objects and arrays in the rewritten schema of a document rule. The library reads these schemas as
/// text, with this limit.
const MAX_DOCUMENT_LEVELS: usize = 127;
/// Maximum subschemas that are compiled to find the refused one. [`MAX_SEARCH`] limits the time.
const MAX_PARTS: usize = 64;
const MAX_SEARCH: Duration = Duration::from_millis(100);
/// First character of strings that replace parts which the library cannot express. It is a private-use character, so
/// schemas hardly contain it.
const MARK: char = '\u{e000}';

/// A grammar that an output must follow.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub enum Grammar {
    /// A JSON object.
    JsonObject,
    /// A JSON document that is valid under this schema. Unsupported conditions are refused. To keep numbers that do not
    /// fit into 64 bits, read the schema with [`exact_numbers`](super::exact_numbers).
    JsonSchema(Value),
    /// Like [`Grammar::JsonSchema`], but a few unsupported conditions are left unchecked: `uniqueItems` for items that
    /// are not limited to a few values, branches of `oneOf` that may overlap, and some conditions on property names.
    LenientJsonSchema(Value),
    /// A text that matches this regular expression as a whole. It has the syntax of Rust's crate `regex`, but `\d` and
    /// `\w` match only ASCII, as in JSON schemas.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A sentence of this Lark grammar, in the dialect of `llguidance`. Its first rule is `start`.
    Lark(String),
    /// A sentence that contains JSON documents.
    Documents(Documents),
}

/// A Lark grammar in which some rules are JSON documents.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Documents {
    /// The grammar, without the document rules. Its first rule is `start`.
    pub lark: String,
    /// The rules that are JSON documents.
    pub rules: Vec<DocumentRule>,
}

/// A grammar rule that matches a JSON document.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct DocumentRule {
    /// The rule's name.
    pub name: String,
    /// Prefix for error messages that says where the schema comes from.
    pub origin: String,
    /// Its schema.
    pub schema: Value,
    /// Whether unsupported conditions of the schema are refused.
    pub strict: bool,
}

/// One of a grammar's schemas.
struct Part<'a> {
    /// Prefix of the position in error messages.
    origin: &'a str,
    schema: &'a Value,
    strict: bool,
}

impl Grammar {
    /// Returns the grammar and its schemas as the user wrote them, each after its origin, to check them before
    /// compilation.
    ///
    /// # Errors
    /// If a text is too large or cannot be a grammar.
    pub(super) fn sources(&self) -> Result<Vec<(&str, TopLevelGrammar)>> {
        let schema = |part: Part<'_>| TopLevelGrammar::from_json_schema(part.schema.clone());
        let mut sources: Vec<_> = self.parts().into_iter().map(|part| (part.origin, schema(part))).collect();
        match self {
            Grammar::Regex(_) | Grammar::Choice(_) | Grammar::Lark(_) => sources.push(("", self.text()?)),
            Grammar::Documents(documents) => sources.push(("", TopLevelGrammar::from_lark(documents.lark.clone()))),
            Grammar::JsonObject | Grammar::JsonSchema(_) | Grammar::LenientJsonSchema(_) => {}
        }
        Ok(sources)
    }

    fn parts(&self) -> Vec<Part<'_>> {
        match self {
            Grammar::JsonSchema(schema) => vec![Part { origin: "", schema, strict: true }],
            Grammar::LenientJsonSchema(schema) => vec![Part { origin: "", schema, strict: false }],
            Grammar::Documents(documents) => {
                let rules = documents.rules.iter();
                rules.map(|rule| Part { origin: &rule.origin, schema: &rule.schema, strict: rule.strict }).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Converts the grammar to the form of `llguidance`, unless `stop` is set. Also returns the conditions of its schemas
    /// that outputs are not checked for, each after its position.
    ///
    /// # Errors
    /// The problem, after its position if it is in a schema.
    pub(super) fn compile(&self, factory: &ParserFactory, stop: &Stop) -> Result<(GrammarInit, Vec<String>)> {
        let (parts, mut leaves, mut schemas, mut unchecked) = (self.parts(), Vec::new(), Vec::new(), Vec::new());
        let mark = mark(&parts);
        for (at, part) in parts.iter().enumerate() {
            stop.check()?;
            small(part.schema.to_string().len())?;
            let rewritten = part.rewrite(&[], &format!("{mark}{at}."))?;
            let Rewritten { schema, leaves: new, unchecked: places } = rewritten;
            leaves.extend(new);
            unchecked.extend(places.into_iter().map(|place| format!("{}{place}", part.origin)));
            let schema = with_options(schema);
            if matches!(self, Grammar::Documents(_)) && levels(&schema) > MAX_DOCUMENT_LEVELS {
                let why = format!("the schema nests deeper than {MAX_DOCUMENT_LEVELS} objects and arrays");
                return Err(refused(format!("{}{}: {why}", part.origin, schema::place(&[]))));
            }
            schemas.push(schema);
        }
        let grammar = match self {
            Grammar::JsonObject => TopLevelGrammar::from_json_schema(with_options(json!({"type": "object"}))),
            Grammar::JsonSchema(_) | Grammar::LenientJsonSchema(_) => {
                TopLevelGrammar::from_json_schema(schemas.pop().unwrap_or_default())
            }
            Grammar::Documents(Documents { lark, rules }) => {
                let rules = rules.iter().zip(&schemas).map(|(rule, schema)| format!("\n{}: %json {schema}", rule.name));
                TopLevelGrammar::from_lark(format!("{lark}{}", rules.collect::<String>()))
            }
            Grammar::Regex(_) | Grammar::Choice(_) | Grammar::Lark(_) => self.text()?,
        };
        let internal = |grammar: TopLevelGrammar| {
            GrammarInit::Serialized(grammar).to_internal(Some(factory.tok_env().clone()), factory.limits().clone())
        };
        stop.check()?;
        let (grammar, mut lexer) = internal(grammar).map_err(|error| {
            let reason = sentence(&format!("{error:#}"));
            let is_refused = |part: &Part<'_>, path: &[String]| {
                let rewritten = part.rewrite(path, &mark);
                rewritten.is_err()
                    || rewritten
                        .is_ok_and(|r| internal(TopLevelGrammar::from_json_schema(with_options(r.schema))).is_err())
            };
            refused(
                located(&parts, stop, is_refused).map_or_else(|| reason.clone(), |place| format!("{place}: {reason}")),
            )
        })?;
        stop.check()?;
        schema::substitute(&mut lexer, &leaves)?;
        stop.check()?;
        Ok((GrammarInit::Internal(grammar, lexer), unchecked))
    }

    /// Converts a grammar that is not JSON.
    fn text(&self) -> Result<TopLevelGrammar> {
        match self {
            Grammar::Regex(regex) => {
                small(regex.len())?;
                Ok(TopLevelGrammar::from_lark(format!("start: /{}/", regex_to_lark(regex, "dw"))))
            }
            Grammar::Choice(texts) => {
                small(texts.iter().map(String::len).sum())?;
                if texts.is_empty() || texts.len() > MAX_CHOICES || texts.iter().any(String::is_empty) {
                    let why = format!("a choice must be between 1 and {MAX_CHOICES} texts, none of them empty");
                    return Err(refused(why));
                }
                let quoted: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
                Ok(TopLevelGrammar::from_lark(format!("start: {}", quoted.join(" | "))))
            }
            Grammar::Lark(text) => {
                small(text.len())?;
                if text.contains("::=") {
                    return Err(refused("rules are written as in Lark, with one colon after the name".into()));
                }
                Ok(TopLevelGrammar::from_lark(text.clone()))
            }
            _ => Err(refused("this is not a text".into())),
        }
    }
}

impl Part<'_> {
    fn rewrite(&self, path: &[String], mark: &str) -> Result<Rewritten> {
        schema::rewrite(self.schema, path, mark, self.strict).map_err(|error| match error {
            Error::Request(refusal) => refused(format!("{}{}", self.origin, refusal.why)),
            other => other,
        })
    }
}

/// Returns a string that occurs in no schema.
fn mark(parts: &[Part<'_>]) -> String {
    let text: String = parts.iter().map(|part| part.schema.to_string()).collect();
    let longest = text.split(|c| c != MARK).map(|run| run.chars().count()).max().unwrap_or(0);
    std::iter::repeat_n(MARK, longest + 1).collect()
}

/// Returns the innermost position where `is_refused` is true.
fn located(parts: &[Part<'_>], stop: &Stop, is_refused: impl Fn(&Part<'_>, &[String]) -> bool) -> Option<String> {
    let (begun, mut tries) = (Instant::now(), 0);
    let mut is_wrong = |part: &Part<'_>, path: &[String]| {
        tries += 1;
        !stop.is_set() && tries <= MAX_PARTS && begun.elapsed() < MAX_SEARCH && is_refused(part, path)
    };
    let part = match parts {
        [part] => part,
        _ => parts.iter().find(|part| is_wrong(part, &[]))?,
    };
    let mut path = Vec::new();
    loop {
        let schema = schema::find(part.schema, &path)?;
        let inner = schema::children(schema).into_iter().map(|keys| [path.clone(), keys].concat());
        let next = inner.chain(schema::target_of(schema)).find(|path| is_wrong(part, path));
        match next {
            Some(next) => path = next,
            None => return Some(format!("{}{}", part.origin, schema::place(&path))),
        }
    }
}

/// Returns the number of nested objects and arrays.
fn levels(value: &Value) -> usize {
    let (mut deepest, mut rest) = (0, vec![(value, 1)]);
    while let Some((value, level)) = rest.pop() {
        match value {
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(members) => rest.extend(members.values().map(|member| (member, level + 1))),
            _ => continue,
        }
        deepest = deepest.max(level);
    }
    deepest
}

/// Adds the options that tell the library how to read the schema. They are not part of the user's schema.
fn with_options(mut schema: Value) -> Value {
    if let Value::Object(members) = &mut schema {
        members.insert("x-guidance".into(), json!({"whitespace_pattern": SPACE}));
    }
    schema
}

fn small(bytes: usize) -> Result<()> {
    if bytes <= MAX_BYTES { Ok(()) } else { Err(refused(format!("a grammar may have {MAX_BYTES} bytes at most"))) }
}
