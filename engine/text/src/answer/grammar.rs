//! A grammar of tool calls, for answers that must call a tool.

use serde_json::{Value, json};

use super::ToolFormat;
use super::format::Layout;
use crate::constraint::{DocumentRule, Documents, Grammar};
use crate::tokenizer::Tokenizer;

/// A tool that can be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The tool's name.
    pub name: String,
    /// The JSON schema of the arguments. `None` means no arguments.
    pub parameters: Option<Value>,
    /// Whether everything that the schema says is kept to or refused.
    pub strict: bool,
}

/// The grammar of answers that call one tool of `tools`, or several times if `parallel`. `tokenizer` tells whether the
/// format's marker is a special token.
pub fn calls(format: ToolFormat, tools: &[Tool], parallel: bool, tokenizer: &Tokenizer) -> Grammar {
    Grammar::Documents(documents(format, tools, parallel, tokenizer))
}

/// The grammar of answers that are calls as in [`calls`], or else a JSON document of the grammar `document`. `None` if a
/// call in this format could be such a document, or if `document` is another kind of grammar.
pub fn calls_or_document(
    format: ToolFormat,
    tools: &[Tool],
    parallel: bool,
    document: &Grammar,
    tokenizer: &Tokenizer,
) -> Option<Grammar> {
    let (schema, strict) = match document {
        _ if format.layout() == Layout::Bare => return None,
        Grammar::JsonObject => (json!({"type": "object"}), true),
        Grammar::JsonSchema(schema) => (schema.clone(), true),
        Grammar::LenientJsonSchema(schema) => (schema.clone(), false),
        Grammar::Regex(_) | Grammar::Choice(_) | Grammar::Lark(_) | Grammar::Documents(_) => return None,
    };
    let Documents { lark, mut rules } = documents(format, tools, parallel, tokenizer);
    rules.push(DocumentRule { name: "document".into(), origin: "the format: ".into(), schema, strict });
    let lark = lark.replacen("start: ", "start: document | calls\ncalls: ", 1);
    Some(Grammar::Documents(Documents { lark, rules }))
}

fn documents(format: ToolFormat, tools: &[Tool], parallel: bool, tokenizer: &Tokenizer) -> Documents {
    let marker = marker(format, tokenizer);
    let text = |text: &str| special_or_text(text, tokenizer);
    // What comes before and after a tool's name, after its arguments, and between calls. Harmony's calls also have a head
    // before the arguments.
    let [before, after, end, between] = match format {
        ToolFormat::Hermes => ["{\"name\": ", ", \"arguments\": ", "}", "\n"],
        ToolFormat::Llama => ["{\"name\": ", ", \"parameters\": ", "}", "; "],
        ToolFormat::Mistral | ToolFormat::Granite | ToolFormat::Phi4 => ["{\"name\": ", ", \"arguments\": ", "}", ", "],
        ToolFormat::Cohere => ["{\"tool_call_id\": \"0\", \"tool_name\": ", ", \"parameters\": ", "}", ", "],
        ToolFormat::Glm4 => ["", "\n", "", "\n"],
        // The reader takes JSON for Gemma's notation, too.
        ToolFormat::Gemma4 => ["call:", "", "", "\n"],
        ToolFormat::Olmo3 => ["", "(**", ")", "\n"],
        ToolFormat::Lfm2 => ["", "(**", ")", ", "],
        // The reader takes an object in place of parameters, too.
        ToolFormat::Qwen3Coder => ["<function=", ">\n", "\n</function>", "\n"],
        ToolFormat::Harmony => ["commentary to=functions.", " ", "", ""],
    };
    let one = match format {
        ToolFormat::Hermes | ToolFormat::Qwen3Coder => {
            format!("{marker} \"\\n\" call \"\\n\" {}", text("</tool_call>"))
        }
        ToolFormat::Gemma4 => format!("{marker} call {}", text("<tool_call|>")),
        ToolFormat::Harmony => format!("{} call", text("<|channel|>")),
        _ => "call".into(),
    };
    // GLM-4 and gpt-oss call one tool in an answer.
    let all = match parallel && !matches!(format, ToolFormat::Glm4 | ToolFormat::Harmony) {
        true => format!("one ({} one)*", Value::from(between)),
        false => "one".into(),
    };
    let all = match format {
        ToolFormat::Mistral | ToolFormat::Granite => format!("{marker} \"[\" {all} \"]\""),
        ToolFormat::Cohere => format!("{marker} \"[\" {all} \"]\" {}", text("<|END_ACTION|>")),
        ToolFormat::Lfm2 => format!("{marker} \"[\" {all} \"]\" {}", text("<|tool_call_end|>")),
        ToolFormat::Phi4 => format!("{marker} \"[\" {all} \"]\" {}", text("<|/tool_call|>")),
        ToolFormat::Olmo3 => format!("{marker} \"\\n\" {all} \"\\n\" {}", text("</function_calls>")),
        // As plain text, a thought could contain its own end.
        ToolFormat::Harmony if tokenizer.special_token("<|end|>").is_some() => format!("thought* {all}"),
        _ => all,
    };
    let names: Vec<String> = (0..tools.len()).map(|i| format!("call{i}")).collect();
    let mut lark = vec![format!("start: {all}"), format!("one: {one}"), format!("call: {}", names.join(" | "))];
    let mut head = String::new();
    if format == ToolFormat::Harmony {
        let [channel, message, end, start] = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"].map(text);
        head = format!("{} \"json\" {message}", text("<|constrain|>"));
        if all.starts_with("thought") {
            lark.push(format!("thought: {channel} \"analysis\" {message} TEXT {end} {start} \"assistant\""));
            lark.push("TEXT: /(?s:.+)/".into());
        }
    }
    let mut rules = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let name = match format.layout() {
            Layout::Named | Layout::Block(_) | Layout::Message => tool.name.clone(),
            _ => Value::from(tool.name.as_str()).to_string(),
        };
        let (begin, end) = (Value::from(format!("{before}{name}{after}")), Value::from(end));
        let end = if end == "" { String::new() } else { end.to_string() };
        lark.push(format!("call{i}: {begin} {head} arguments{i} {end}"));
        let none = || json!({"type": "object", "properties": {}, "additionalProperties": false});
        let schema = tool.parameters.clone().unwrap_or_else(none);
        let origin = format!("the parameters of {}: ", tool.name);
        rules.push(DocumentRule { name: format!("arguments{i}"), origin, schema, strict: tool.strict });
    }
    Documents { lark: lark.join("\n"), rules }
}

/// The marker before calls, as a special token or as text. Of several markers it is the one that is a special token, or
/// else the last.
fn marker(format: ToolFormat, tokenizer: &Tokenizer) -> String {
    let markers = format.markers();
    let special = markers.iter().find(|marker| tokenizer.special_token(marker).is_some());
    special.or(markers.last()).map_or_else(String::new, |marker| special_or_text(marker, tokenizer))
}

fn special_or_text(text: &str, tokenizer: &Tokenizer) -> String {
    match tokenizer.special_token(text) {
        Some(id) => format!("<[{id}]>"),
        None => Value::from(text).to_string(),
    }
}
