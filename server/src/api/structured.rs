//! Fields that constrain the form of outputs: OpenAI's `response_format`, vLLM's `structured_outputs`, and its older
//! `guided_` fields.

use engine::tools::constraint::{Grammar, exact_numbers};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{ApiError, check};
use crate::json;

/// A JSON schema as it was sent. Its numbers keep all their digits.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Schema(Box<RawValue>);

impl Schema {
    /// Returns the grammar for the schema. If `strict`, conditions that cannot be enforced are refused.
    ///
    /// # Errors
    /// 400 about `field` if the schema is not JSON.
    pub fn grammar(self, field: &'static str, strict: bool) -> Result<Grammar, ApiError> {
        let (schema, _) = json::parse(exact_numbers(self.0.get()).as_bytes())
            .map_err(|problem| ApiError::field(field, format!("{field}: {problem}")))?;
        Ok(if strict { Grammar::JsonSchema(schema) } else { Grammar::LenientJsonSchema(schema) })
    }

    /// Returns the schema itself, unquoted if it was sent as a JSON string.
    fn unquoted(self, field: &'static str) -> Result<Self, ApiError> {
        if !self.0.get().starts_with('"') {
            return Ok(self);
        }
        let not_json = |error: serde_json::Error| ApiError::field(field, format!("{field} is not JSON: {error}"));
        let text: String = serde_json::from_str(self.0.get()).map_err(not_json)?;
        RawValue::from_string(text).map(Schema).map_err(not_json)
    }
}

/// OpenAI's field for JSON outputs.
#[derive(Debug, Deserialize)]
pub struct ResponseFormat {
    r#type: FormatType,
    json_schema: Option<NamedSchema>,
}

/// The forms of OpenAI's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FormatType {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that is valid under a schema.
    JsonSchema,
}

/// A schema with its name. If it is not strict, a few conditions that cannot be enforced are left unchecked.
#[derive(Debug, Deserialize)]
struct NamedSchema {
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    strict: Option<bool>,
    schema: Option<Schema>,
}

/// vLLM's field for constrained outputs. Exactly one member may be set.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StructuredOutputs {
    json: Option<Schema>,
    json_object: Option<bool>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
}

/// A grammar with the field that requires it, if one does.
pub type Asked = Option<(&'static str, Grammar)>;

impl StructuredOutputs {
    /// Returns the grammar of each member.
    ///
    /// # Errors
    /// 400 if a schema is malformed.
    pub fn grammars(self) -> Result<[Asked; 5], ApiError> {
        let object = self.json_object.unwrap_or(false).then_some(Grammar::JsonObject);
        Ok([
            schema("structured_outputs.json", self.json)?,
            object.map(|grammar| ("structured_outputs.json_object", grammar)),
            self.regex.map(|regex| ("structured_outputs.regex", Grammar::Regex(regex))),
            self.choice.map(|texts| ("structured_outputs.choice", Grammar::Choice(texts))),
            self.grammar.map(|text| ("structured_outputs.grammar", Grammar::Lark(text))),
        ])
    }
}

impl ResponseFormat {
    /// Returns the grammar of the format.
    ///
    /// # Errors
    /// 400 if the format has no schema or a malformed one.
    pub fn grammar(self) -> Result<Asked, ApiError> {
        let field = "response_format.json_schema";
        check(self.json_schema.is_none() || self.r#type == FormatType::JsonSchema, "response_format", || {
            format!("{field} can only be used with the type \"json_schema\"")
        })?;
        match self.r#type {
            FormatType::Text => Ok(None),
            FormatType::JsonObject => Ok(Some(("response_format", Grammar::JsonObject))),
            FormatType::JsonSchema => {
                let place = "response_format.json_schema.schema";
                let named = self.json_schema.map(|named| (named.strict.unwrap_or(false), named.schema));
                let Some((strict, Some(schema))) = named else {
                    return Err(ApiError::field(place, format!("{place} is missing")));
                };
                Ok(Some((place, schema.grammar(place, strict)?)))
            }
        }
    }
}

/// Returns the grammar for a schema from a vLLM field, which is always strict. The schema may be a JSON string.
///
/// # Errors
/// 400 if the schema is malformed.
pub fn schema(field: &'static str, schema: Option<Schema>) -> Result<Asked, ApiError> {
    let grammar = schema.map(|schema| schema.unquoted(field)?.grammar(field, true)).transpose()?;
    Ok(grammar.map(|grammar| (field, grammar)))
}
