//! What an output may be, as a user says it.

use llguidance::api::TopLevelGrammar;
use llguidance::regex_to_lark;
use serde_json::{Value, json};

use checkpoint::error::{Error, Result};

/// Bytes of a grammar's text, at most.
pub const MAX_BYTES: usize = 512 << 10;
/// Texts to choose from, at most.
const MAX_CHOICES: usize = 10_000;
/// White space between two parts of a JSON document: a space, or a line break and an indentation. Models that may write any
/// white space can go on with it for ever.
const SPACE: &str = r"\x20|\n[\x20\t]{0,20}";

/// What an output may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// A JSON object.
    JsonObject,
    /// A JSON document that is valid under this schema.
    JsonSchema(Value),
    /// A text that as a whole matches this regular expression, in the form of Rust's crate `regex`, but that `\d` and `\w` are
    /// of ASCII, as in JSON schemas.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A sentence of this grammar, in Lark's form as `llguidance` has it. It begins with the rule `start`.
    Lark(String),
}

impl Grammar {
    /// JSON that is valid under a schema, as the right side of a rule of a grammar in Lark's form. References within the schema
    /// are from its root.
    pub(crate) fn json_rule(mut schema: Value) -> String {
        if let Value::Object(members) = &mut schema {
            members.insert("x-guidance".into(), options());
        }
        format!("%json {schema}")
    }

    /// The grammar in the form of `llguidance`.
    pub(super) fn compile(&self) -> Result<TopLevelGrammar> {
        match self {
            Grammar::JsonObject => schema(json!({"type": "object"})),
            Grammar::JsonSchema(Value::Bool(true)) => schema(json!({})),
            Grammar::JsonSchema(value) => schema(value.clone()),
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
        }
    }
}

fn schema(mut schema: Value) -> Result<TopLevelGrammar> {
    let Value::Object(members) = &mut schema else {
        return Err(refused("a JSON schema must be an object".into()));
    };
    // The options of the library are not part of a schema.
    members.insert("x-guidance".into(), options());
    small(schema.to_string().len())?;
    Ok(TopLevelGrammar::from_json_schema(schema))
}

/// The options by which the library reads schemas.
fn options() -> Value {
    json!({"whitespace_pattern": SPACE})
}

fn small(bytes: usize) -> Result<()> {
    if bytes <= MAX_BYTES { Ok(()) } else { Err(refused(format!("a grammar may have {MAX_BYTES} bytes at most"))) }
}

pub(super) fn refused(why: String) -> Error {
    Error::request("constraint", why)
}
