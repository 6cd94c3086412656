//! Fields that say what an output must be: OpenAI's `response_format`, vLLM's `structured_outputs`, and its older `guided_`
//! fields.

use engine::constraint::Grammar;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ApiError, check};

/// OpenAI's way to ask for JSON.
#[derive(Debug, Deserialize)]
pub struct ResponseFormat {
    r#type: FormatType,
    json_schema: Option<NamedSchema>,
}

/// The forms that OpenAI's ways know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FormatType {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// What a schema describes.
    JsonSchema,
}

/// A schema with what is only said about it: it is always kept to, `strict` or not.
#[derive(Debug, Deserialize)]
struct NamedSchema {
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    #[serde(rename = "strict")]
    _strict: Option<bool>,
    schema: Option<Value>,
}

/// vLLM's way to ask for texts of any form: one of these.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StructuredOutputs {
    json: Option<Value>,
    json_object: Option<bool>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
}

/// The fields that say what an output must be, of which a request has one at most.
#[derive(Debug)]
pub struct FormFields {
    /// OpenAI's.
    pub response_format: Option<ResponseFormat>,
    /// vLLM's.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Its older ones.
    pub guided_json: Option<Value>,
    /// A regular expression.
    pub guided_regex: Option<String>,
    /// Texts to choose from.
    pub guided_choice: Option<Vec<String>>,
    /// A grammar in Lark's form.
    pub guided_grammar: Option<String>,
}

impl FormFields {
    /// The grammar of outputs, with the field that it is from.
    ///
    /// # Errors
    /// 400 if fields ask for several grammars, or one of them is no grammar.
    pub fn grammar(self) -> Result<Option<(&'static str, Grammar)>, ApiError> {
        let outputs = self.structured_outputs.unwrap_or_default();
        let object = outputs.json_object.unwrap_or(false).then_some(Grammar::JsonObject);
        let asked = [
            self.response_format.map_or(Ok(None), ResponseFormat::grammar)?,
            schema("structured_outputs.json", outputs.json)?,
            object.map(|grammar| ("structured_outputs.json_object", grammar)),
            outputs.regex.map(|regex| ("structured_outputs.regex", Grammar::Regex(regex))),
            outputs.choice.map(|texts| ("structured_outputs.choice", Grammar::Choice(texts))),
            outputs.grammar.map(|text| ("structured_outputs.grammar", Grammar::Lark(text))),
            schema("guided_json", self.guided_json)?,
            self.guided_regex.map(|regex| ("guided_regex", Grammar::Regex(regex))),
            self.guided_choice.map(|texts| ("guided_choice", Grammar::Choice(texts))),
            self.guided_grammar.map(|text| ("guided_grammar", Grammar::Lark(text))),
        ];
        let mut asked = asked.into_iter().flatten();
        let first = asked.next();
        if let (Some((first, _)), Some((second, _))) = (&first, asked.next()) {
            return Err(ApiError::field(second, format!("{first} and {second} exclude each other")));
        }
        Ok(first)
    }
}

impl ResponseFormat {
    fn grammar(self) -> Result<Option<(&'static str, Grammar)>, ApiError> {
        let field = "response_format.json_schema";
        check(self.json_schema.is_none() || self.r#type == FormatType::JsonSchema, "response_format", || {
            format!("{field} can only be used with the type \"json_schema\"")
        })?;
        match self.r#type {
            FormatType::Text => Ok(None),
            FormatType::JsonObject => Ok(Some(("response_format", Grammar::JsonObject))),
            FormatType::JsonSchema => {
                let place = "response_format.json_schema.schema";
                let value = self.json_schema.and_then(|named| named.schema);
                let value = value.ok_or_else(|| ApiError::field(place, format!("{place} is missing")))?;
                Ok(Some((place, Grammar::JsonSchema(value))))
            }
        }
    }
}

/// A schema, which may be written as a text.
fn schema(field: &'static str, value: Option<Value>) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let value = match value {
        Some(Value::String(text)) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| ApiError::field(field, format!("{field} is not JSON: {error}")))?,
        other => other,
    };
    Ok(value.map(|value| (field, Grammar::JsonSchema(value))))
}
