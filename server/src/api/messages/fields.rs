//! The fields of a request for a message.

use engine::tools::chat::{Arguments, ChatTemplate};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::input::{Turn, dialogue};
use crate::api::answer_grammar::exclusive;
use crate::api::conversation::Conversation;
use crate::api::decoding::Decoding;
use crate::api::stop::Stop;
use crate::api::structured::{Asked, Schema};
use crate::api::tools::{Calling, ToolFields};
use crate::app::App;
use crate::error::{ApiError, check, cut, only, refused};

/// The template variables that turn thinking on or off. A template reads at most one of them.
const THINKING: [&str; 2] = ["enable_thinking", "thinking"];
/// Prefix of the only context edit that may be requested. Templates leave out earlier thinking anyway.
const CLEAR_THINKING: &str = "clear_thinking_";

/// The fields that only messages have.
#[derive(Debug, Deserialize)]
pub struct MessageFields {
    messages: Vec<Turn>,
    /// Instructions: a text, or text blocks.
    system: Option<Box<RawValue>>,
    max_tokens: Option<usize>,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<ToolChoice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// The older place of `output_config.format`.
    output_format: Option<OutputFormat>,
    /// Chats' names of fields that messages have elsewhere.
    include_reasoning: Option<bool>,
    parallel_tool_calls: Option<bool>,
    reasoning_effort: Option<String>,
    /// A variable for templates that use it.
    verbosity: Option<String>,
    /// Additional variables for the chat template.
    chat_template_kwargs: Option<Arguments>,
    container: Option<Value>,
    mcp_servers: Option<Vec<IgnoredAny>>,
    context_management: Option<Value>,
    /// Every full block is cached, whatever a request marks.
    #[serde(rename = "cache_control")]
    _cache_control: Option<IgnoredAny>,
    #[serde(rename = "diagnostics")]
    _diagnostics: Option<IgnoredAny>,
    #[serde(rename = "inference_geo")]
    _inference_geo: Option<String>,
    #[serde(rename = "speed")]
    _speed: Option<String>,
}

/// Which tools must be called.
#[derive(Debug, Deserialize)]
struct ToolChoice {
    r#type: ChoiceType,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChoiceType {
    Auto,
    Any,
    Tool,
    None,
}

/// Whether the model thinks before it answers.
#[derive(Debug, Deserialize)]
struct Thinking {
    r#type: ThinkingType,
    /// Accepted but not enforced: `max_tokens` limits thinking and text together.
    #[serde(rename = "budget_tokens")]
    _budget_tokens: Option<usize>,
    display: Option<ThinkingDisplay>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ThinkingType {
    Enabled,
    Adaptive,
    Disabled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ThinkingDisplay {
    /// The server does not summarise thinking but returns it unchanged.
    Summarized,
    Omitted,
}

#[derive(Debug, Deserialize)]
struct OutputConfig {
    /// A variable for templates that use it.
    effort: Option<String>,
    format: Option<OutputFormat>,
}

#[derive(Debug, Deserialize)]
struct OutputFormat {
    #[serde(rename = "type")]
    _type: OutputType,
    schema: Option<Schema>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutputType {
    JsonSchema,
}

impl MessageFields {
    /// Refuses unsupported values that would change the answer, in these fields and in the shared decoding fields.
    pub fn check(&self, decoding: &Decoding) -> Result<(), ApiError> {
        only(self.container.is_none(), "container", "left out")?;
        only(self.mcp_servers.as_ref().is_none_or(Vec::is_empty), "mcp_servers", "an empty array")?;
        self.check_other_names(decoding)?;
        let edits = self.context_management.as_ref().and_then(|management| management["edits"].as_array());
        for (at, edit) in edits.into_iter().flatten().enumerate() {
            let kind = edit["type"].as_str().unwrap_or_default();
            let field = format!("context_management.edits[{at}]");
            check(kind.starts_with(CLEAR_THINKING), &field, || format!("{field}: {:?} is not supported", cut(kind)))?;
        }
        decoding.check_single()
    }

    /// Refuses fields of other APIs if messages have their own names for them, and two names for one value.
    fn check_other_names(&self, decoding: &Decoding) -> Result<(), ApiError> {
        let left_out = |own: &str| format!("left out, since {own} says it,");
        only(decoding.response_format.is_none(), "response_format", &left_out("output_config.format"))?;
        only(self.include_reasoning != Some(false), "include_reasoning", &left_out("thinking"))?;
        let has_tools = self.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let is_parallel = !has_tools || self.parallel_tool_calls != Some(false);
        only(is_parallel, "parallel_tool_calls", &left_out("tool_choice.disable_parallel_tool_use"))?;
        let config = self.output_config.as_ref();
        if self.reasoning_effort.is_some() && config.is_some_and(|config| config.effort.is_some()) {
            return Err(exclusive("output_config.effort", "reasoning_effort"));
        }
        if self.output_format.is_some() && config.is_some_and(|config| config.format.is_some()) {
            return Err(exclusive("output_config.format", "output_format"));
        }
        let has_stops = self.stop_sequences.as_ref().is_some_and(|strings| !strings.is_empty());
        if has_stops && decoding.stop.as_ref().is_some_and(|stop| !stop.is_empty()) {
            return Err(exclusive("stop_sequences", "stop"));
        }
        Ok(())
    }

    /// Returns the most tokens that the answer may have.
    ///
    /// # Errors
    /// 400 if the field is missing or 0.
    pub fn max_tokens(&self) -> Result<usize, ApiError> {
        let most = self.max_tokens.ok_or_else(|| ApiError::field("max_tokens", "max_tokens is missing"))?;
        check(most > 0, "max_tokens", || "max_tokens must be at least 1".into())?;
        Ok(most)
    }

    /// Takes the stop sequences. `None` if the list is empty.
    ///
    /// # Errors
    /// See [`Stop::of`].
    pub fn take_stop(&mut self) -> Result<Option<Stop>, ApiError> {
        let strings = self.stop_sequences.take().filter(|strings| !strings.is_empty());
        strings.map(|strings| Stop::of("stop_sequences", strings)).transpose()
    }

    /// Whether the answer shows the model's thinking.
    pub fn shows_thoughts(&self) -> bool {
        self.thinking.as_ref().is_none_or(|thinking| thinking.r#type != ThinkingType::Disabled)
    }

    /// Whether thinking blocks are empty.
    pub fn omits_thoughts(&self) -> bool {
        self.thinking.as_ref().is_some_and(|thinking| thinking.display == Some(ThinkingDisplay::Omitted))
    }

    /// Returns the callable tools, if any.
    ///
    /// # Errors
    /// 400 if a tool has no schema, or see [`ToolFields::calling`].
    pub fn calling(&self, app: &App) -> Result<Option<Calling>, ApiError> {
        let tools = self.tools.as_ref().map(|tools| tools.iter().enumerate().map(function).collect()).transpose()?;
        let choice = self.tool_choice.as_ref();
        let fields = ToolFields {
            tools,
            tool_choice: choice.map(ToolChoice::of_chats).transpose()?,
            parallel_tool_calls: choice.and_then(|choice| choice.disable_parallel_tool_use).map(|one| !one),
        };
        let own = |text: &str| text.replace(".function.parameters", ".input_schema").replace(".function", "");
        fields.calling(app).map_err(|error| ApiError {
            param: error.param.as_deref().map(own),
            message: own(&error.message),
            ..error
        })
    }

    /// Returns the conversation and how to render it. `calling` are its tools.
    ///
    /// # Errors
    /// 400 that names the place, if the conversation has something other than text.
    pub fn conversation(&mut self, app: &App, calling: Option<&Calling>) -> Result<Conversation, ApiError> {
        let (messages, continues) = dialogue(self.system.as_deref(), &self.messages)?;
        let effort = self.reasoning_effort.take();
        Ok(Conversation {
            messages,
            tools: calling.map(|calling| calling.schemas.clone()),
            chat_template_kwargs: Some(self.variables(app.template.as_deref())),
            continue_final_message: Some(continues),
            reasoning_effort: self.output_config.as_mut().and_then(|config| config.effort.take()).or(effort),
            verbosity: self.verbosity.take(),
            ..Conversation::default()
        })
    }

    /// Takes the form of the text, with the field that requires it.
    ///
    /// # Errors
    /// 400 if the schema is missing or malformed.
    pub fn take_format(&mut self) -> Result<Asked, ApiError> {
        let in_config = self.output_config.as_mut().and_then(|config| config.format.take());
        let (field, format) = match (in_config, self.output_format.take()) {
            (Some(format), _) => ("output_config.format.schema", format),
            (None, Some(format)) => ("output_format.schema", format),
            (None, None) => return Ok(None),
        };
        let schema = format.schema.ok_or_else(|| ApiError::field(field, format!("{field} is missing")))?;
        Ok(Some((field, schema.grammar(field, true)?)))
    }

    /// Returns the template's variables. If the request says whether the model thinks, a variable tells the template,
    /// unless the request sets that variable itself.
    fn variables(&mut self, template: Option<&ChatTemplate>) -> Arguments {
        let mut variables = self.chat_template_kwargs.take().unwrap_or_default();
        let thinks = self.thinking.as_ref().map(|thinking| thinking.r#type != ThinkingType::Disabled);
        for (name, thinks) in THINKING.into_iter().filter_map(|name| Some((name, thinks?))) {
            if template.is_some_and(|template| template.reads(name)) && variables.names().all(|other| other != name) {
                variables.push(name, thinks);
            }
        }
        variables
    }
}

impl ToolChoice {
    /// Returns the value of a chat's `tool_choice`.
    fn of_chats(&self) -> Result<Value, ApiError> {
        Ok(match (self.r#type, &self.name) {
            (ChoiceType::Auto, _) => json!("auto"),
            (ChoiceType::Any, _) => json!("required"),
            (ChoiceType::None, _) => json!("none"),
            (ChoiceType::Tool, Some(name)) => json!({"type": "function", "function": {"name": name}}),
            (ChoiceType::Tool, None) => {
                return Err(ApiError::field("tool_choice.name", "tool_choice.name is missing"));
            }
        })
    }
}

/// Returns a tool in the form of chats.
///
/// # Errors
/// 400 if the tool has no schema. Anthropic's own tools have none, since its models know them.
fn function((at, tool): (usize, &Value)) -> Result<Value, ApiError> {
    let refused = |place: &str, why: &str| refused(&format!("tools[{at}]{place}"), why);
    match &tool["type"] {
        Value::Null => {}
        Value::String(kind) if kind == "custom" => {}
        Value::String(kind) => {
            return refused(".type", &format!("{:?} is not supported, only tools with an input_schema", cut(kind)));
        }
        _ => return refused(".type", "must be a string"),
    }
    if !tool["input_schema"].is_object() {
        return refused(".input_schema", "must be a JSON schema");
    }
    let mut function = json!({"name": tool["name"], "parameters": tool["input_schema"]});
    for field in ["description", "strict"] {
        if !tool[field].is_null() {
            function[field] = tool[field].clone();
        }
    }
    Ok(json!({"type": "function", "function": function}))
}
