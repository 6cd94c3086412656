//! The fields of a request for a response.

use engine::Grammar;
use engine::tools::chat::Arguments;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::decoding::Decoding;
use crate::api::structured::{Asked, FormatType, Schema};
use crate::api::tools::{Calling, ToolFields};
use crate::app::App;
use crate::error::{ApiError, check, only};

/// Accepted values of `include`. They have no effect: the server has no such data, and reasoning is always in plain
/// text.
const INCLUDED: [&str; 6] = [
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "message.input_image.image_url",
];

/// The fields that only responses have.
#[derive(Debug, Deserialize)]
pub struct ResponseFields {
    /// A text, or a list of items.
    pub input: Value,
    /// Instructions for the model, which come first.
    pub instructions: Option<String>,
    /// Maximum tokens of the answer, including reasoning.
    pub max_output_tokens: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextField>,
    /// Reasoning settings, for templates that use them.
    pub reasoning: Option<Reasoning>,
    /// Additional variables for the chat template.
    pub chat_template_kwargs: Option<Arguments>,
    /// Whether the model's reasoning is part of the answer.
    pub include_reasoning: Option<bool>,
    metadata: Option<Value>,
    include: Option<Vec<String>>,
    truncation: Option<String>,
    background: Option<bool>,
    previous_response_id: Option<Value>,
    conversation: Option<Value>,
    prompt: Option<Value>,
    top_logprobs: Option<usize>,
    /// Limits calls of built-in tools. It has no effect, since this server has no such tools.
    #[serde(rename = "max_tool_calls")]
    _max_tool_calls: Option<usize>,
}

/// The form of the answer's text.
#[derive(Debug, Deserialize, Serialize)]
pub struct TextField {
    format: Option<TextFormat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verbosity: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct TextFormat {
    r#type: FormatType,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Whether conditions of the schema that cannot be enforced are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Schema>,
}

/// Reasoning settings. The server does not summarise reasoning but returns it unchanged.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Reasoning {
    /// A variable for templates that use it.
    pub effort: Option<String>,
    summary: Option<String>,
    #[serde(skip_serializing)]
    #[serde(rename = "generate_summary")]
    _generate_summary: Option<String>,
}

impl ResponseFields {
    /// Refuses unsupported values that would change the answer, in these fields and in the shared decoding fields.
    pub fn check(&self, decoding: &Decoding) -> Result<(), ApiError> {
        let stored = "is not supported: responses are not stored; send the items of earlier ones as input";
        for (field, value) in
            [("previous_response_id", &self.previous_response_id), ("conversation", &self.conversation)]
        {
            check(value.is_none(), field, || format!("{field} {stored}"))?;
        }
        only(self.prompt.is_none(), "prompt", "left out")?;
        only(self.background != Some(true), "background", "false")?;
        only(self.truncation.as_deref().is_none_or(|how| how == "disabled"), "truncation", "\"disabled\"")?;
        only(self.top_logprobs.is_none_or(|k| k == 0), "top_logprobs", "0")?;
        decoding.check_single()?;
        only(decoding.response_format.is_none(), "response_format", "left out, since text.format says it,")?;
        let other = self.include.iter().flatten().find(|name| !INCLUDED.contains(&name.as_str()));
        check(other.is_none(), "include", || "include has an unsupported value".into())
    }

    /// Returns the callable tools, if any.
    ///
    /// # Errors
    /// See [`ToolFields::calling`].
    pub fn calling(&self, app: &App) -> Result<Option<Calling>, ApiError> {
        // Tools of chats are nested one level deeper.
        let tool = |tool: &Value| {
            let mut function = tool.clone();
            let kind = function.as_object_mut().and_then(|fields| fields.remove("type"));
            json!({"type": kind, "function": function})
        };
        let fields = ToolFields {
            tools: self.tools.as_ref().map(|tools| tools.iter().map(tool).collect()),
            tool_choice: self.tool_choice.clone(),
            parallel_tool_calls: self.parallel_tool_calls,
        };
        fields.calling(app).map_err(|error| ApiError {
            param: error.param.map(|param| param.replace(".function", "")),
            message: error.message.replace("].function", "]"),
            ..error
        })
    }

    /// Returns the grammar of the text with the field that requires it.
    ///
    /// # Errors
    /// 400 if a schema is missing, or the format does not use the given schema.
    pub fn format(&self) -> Result<Asked, ApiError> {
        let field = "text.format.schema";
        let Some(format) = self.text.as_ref().and_then(|text| text.format.as_ref()) else { return Ok(None) };
        match (format.r#type, &format.schema) {
            (FormatType::JsonSchema, Some(schema)) => {
                Ok(Some((field, schema.clone().grammar(field, format.strict.unwrap_or(false))?)))
            }
            (FormatType::JsonSchema, None) => Err(ApiError::field(field, format!("{field} is missing"))),
            (_, Some(_)) => {
                let why = format!("{field} can only be used with the type \"json_schema\"");
                Err(ApiError::field(field, why))
            }
            (FormatType::JsonObject, None) => Ok(Some(("text.format", Grammar::JsonObject))),
            (FormatType::Text, None) => Ok(None),
        }
    }

    /// Returns the verbosity of answers, for templates that use it.
    pub fn verbosity(&self) -> Option<String> {
        self.text.as_ref()?.verbosity.clone()
    }

    /// Returns the request fields that a response repeats.
    pub fn repeated(&self) -> Value {
        let text = json!({"format": {"type": "text"}});
        let with_format = self.text.as_ref().filter(|text| text.format.is_some());
        json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata.clone().unwrap_or_else(|| json!({})),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": self.reasoning,
            "store": false,
            // A schema that a `Value` cannot represent (large numbers, deep nesting) is not repeated.
            "text": with_format.and_then(|text| serde_json::to_value(text).ok()).unwrap_or(text),
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            "tools": self.tools.clone().unwrap_or_default(),
            "truncation": "disabled",
        })
    }
}
