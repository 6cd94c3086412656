//! The tool fields of chats: which tools may be called, and whether a call is required.

use std::collections::BTreeSet;

use engine::Grammar;
use engine::tools::answer::{Tool, ToolFormat, calls, calls_or_document};
use engine::tools::chat;
use serde_json::Value;

use crate::app::App;
use crate::error::{ApiError, check, cut};

/// Maximum tools in a request.
const MAX_TOOLS: usize = 128;
/// Maximum characters of a tool's name.
const MAX_NAME: usize = 128;
/// Types of OpenAI's tools that this server cannot offer to a model. OpenAI runs them, or their calls are not JSON.
const ELSEWHERE: [&str; 13] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "shell",
    "tool_search",
    "web_search",
];
/// Prefix of a tool type that ends in a date or a release stage.
const WEB_SEARCH: &str = "web_search_";

/// The fields as they were sent.
#[derive(Debug, Default)]
pub struct ToolFields {
    /// The tools that may be called.
    pub tools: Option<Vec<Value>>,
    /// Whether a call is required: "none", "auto", "required", or a function.
    pub tool_choice: Option<Value>,
    /// Whether one answer may have several calls.
    pub parallel_tool_calls: Option<bool>,
}

/// The tools that an answer may call.
#[derive(Clone, Debug)]
pub struct Calling {
    /// The format of the model's tool calls.
    pub format: ToolFormat,
    /// The tool schemas for the chat template.
    pub schemas: chat::Value,
    /// Whether the request names the tool that must be called.
    pub is_named: bool,
    /// Whether an answer may have several calls.
    pub is_parallel: bool,
    tools: Vec<Tool>,
    /// The tools of which one must be called. Empty if no call is required.
    required: Vec<Tool>,
}

/// The value of `tool_choice`.
enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

impl ToolFields {
    /// Returns the callable tools, if any.
    ///
    /// # Errors
    /// 400 if a tool does not have OpenAI's form, or the format of the model's tool calls is unknown.
    pub fn calling(self, app: &App) -> Result<Option<Calling>, ApiError> {
        let choice = ToolChoice::of(self.tool_choice.as_ref())?;
        let schemas = self.tools.unwrap_or_default();
        check(schemas.len() <= MAX_TOOLS, "tools", || format!("there may be at most {MAX_TOOLS} tools"))?;
        let (mut offered, mut tools) = (Vec::new(), Vec::new());
        for (at, schema) in schemas.into_iter().enumerate() {
            match left_out(&schema) {
                Some(kind) => tracing::warn!(kind, "a tool is left out because this server does not support its type"),
                None => {
                    tools.push(tool(at, &schema)?);
                    offered.push(schema);
                }
            }
        }
        let names: BTreeSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        check(names.len() == tools.len(), "tools", || "two tools have the same name".into())?;
        let required = match &choice {
            ToolChoice::None => return Ok(None),
            ToolChoice::Auto => Vec::new(),
            ToolChoice::Required => tools.clone(),
            ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name == *name).cloned().collect(),
        };
        let must = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
        check(!must || !required.is_empty(), "tool_choice", || match &choice {
            ToolChoice::Named(name) => {
                format!("tool_choice requires a call of {:?}, but tools has no function with that name", cut(name))
            }
            _ => "tool_choice requires a call, but tools has no function".into(),
        })?;
        if tools.is_empty() {
            return Ok(None);
        }
        let template = app.template.as_ref().filter(|template| template.reads("tools"));
        let template =
            template.ok_or_else(|| ApiError::field("tools", "the model's chat template does not support tools"))?;
        let format = app.tool_format.ok_or_else(|| {
            let why = "tools cannot be used: the format of this model's tool calls is unknown (set the server's --tool-call-parser)";
            ApiError::field("tools", why)
        })?;
        let is_named = matches!(choice, ToolChoice::Named(_));
        // If the template cannot render several calls in one message, the conversation could not continue after such an
        // answer.
        let is_parallel = self.parallel_tool_calls.unwrap_or(true) && !is_named && template.takes_several_calls();
        let schemas = offered.into_iter().map(chat::Value::from_serialize).collect();
        Ok(Some(Calling { format, schemas, is_named, is_parallel, tools, required }))
    }
}

impl Calling {
    /// Returns the names of the tools.
    pub fn names(&self) -> Vec<String> {
        self.tools.iter().map(|tool| tool.name.clone()).collect()
    }

    /// The tools.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Whether answers must be calls.
    pub fn is_forced(&self) -> bool {
        !self.required.is_empty()
    }

    /// Returns the grammar of answers that must be calls.
    pub fn grammar(&self, app: &App) -> Option<(&'static str, Grammar)> {
        self.is_forced().then(|| ("tools", calls(self.format, &self.required, self.is_parallel, &app.tokenizer)))
    }

    /// Returns the grammar of answers that are calls, or else JSON of the grammar `text`. `None` if a call could be such
    /// a text.
    pub fn grammar_or(&self, text: &Grammar, app: &App) -> Option<Grammar> {
        calls_or_document(self.format, &self.tools, self.is_parallel, text, &app.tokenizer)
    }
}

impl ToolChoice {
    fn of(value: Option<&Value>) -> Result<Self, ApiError> {
        let word = value.map_or(Some("auto"), Value::as_str);
        let function = value.and_then(|value| value.get("function").unwrap_or(value).get("name")?.as_str());
        match (word, function) {
            (Some("none"), _) => Ok(ToolChoice::None),
            (Some("auto"), _) => Ok(ToolChoice::Auto),
            (Some("required"), _) => Ok(ToolChoice::Required),
            (None, Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
            (None, None) if value.and_then(left_out).is_some() => {
                let kind = value.and_then(left_out).unwrap_or_default();
                let why = format!("tool_choice forces {kind:?}, which this server does not support");
                Err(ApiError::field("tool_choice", why))
            }
            _ => {
                let why = "tool_choice must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
                Err(ApiError::field("tool_choice", why))
            }
        }
    }
}

/// Returns the type of a tool that the model is not offered.
fn left_out(tool: &Value) -> Option<&str> {
    let kind = tool.get("type")?.as_str()?;
    (ELSEWHERE.contains(&kind) || kind.starts_with(WEB_SEARCH)).then_some(kind)
}

/// Parses one of `tools`, at index `at`.
fn tool(at: usize, schema: &Value) -> Result<Tool, ApiError> {
    let refused = |place: &str, why: &str| {
        let place = format!("tools[{at}]{place}");
        Err(ApiError::field(place.clone(), format!("{place} {why}")))
    };
    if schema["type"] != "function" {
        return refused(".type", "must be \"function\"");
    }
    let function = &schema["function"];
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    match function["name"].as_str() {
        Some(name) if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_name) => {
            let parameters = match &function["parameters"] {
                Value::Null => None,
                Value::Object(members) if members.is_empty() => None,
                schema @ Value::Object(_) => Some(schema.clone()),
                _ => return refused(".function.parameters", "must be a JSON schema"),
            };
            let strict = function["strict"] == true;
            Ok(Tool { name: name.to_owned(), parameters, strict })
        }
        _ => refused(".function.name", &format!("must be up to {MAX_NAME} letters, digits, _, - and .")),
    }
}
