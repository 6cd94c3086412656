//! A grammar of tool calls, for answers that must call a tool.

use serde_json::{Value, json};

use super::ToolFormat;
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
    let marker = marker(format, tokenizer);
    let (start, key, between) = match format {
        ToolFormat::Hermes => (format!("{marker} \"\\n\" call \"\\n</tool_call>\""), "arguments", "\"\\n\""),
        ToolFormat::Llama => ("call".into(), "parameters", "\"; \""),
        ToolFormat::Mistral => ("call".into(), "arguments", "\", \""),
    };
    let all = if parallel { format!("one ({between} one)*") } else { "one".into() };
    let all = match format {
        ToolFormat::Mistral => format!("{marker} \"[\" {all} \"]\""),
        _ => all,
    };
    let names: Vec<String> = (0..tools.len()).map(|i| format!("call{i}")).collect();
    let mut lark = vec![format!("start: {all}"), format!("one: {start}"), format!("call: {}", names.join(" | "))];
    let mut rules = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let begin = Value::from(format!("{{\"name\": {}, \"{key}\": ", Value::from(tool.name.as_str())));
        lark.push(format!("call{i}: {begin} arguments{i} \"}}\""));
        let none = || json!({"type": "object", "properties": {}, "additionalProperties": false});
        let schema = tool.parameters.clone().unwrap_or_else(none);
        let origin = format!("the parameters of {}: ", tool.name);
        rules.push(DocumentRule { name: format!("arguments{i}"), origin, schema, strict: tool.strict });
    }
    Grammar::Documents(Documents { lark: lark.join("\n"), rules })
}

/// The marker before calls, as a special token or as text.
fn marker(format: ToolFormat, tokenizer: &Tokenizer) -> String {
    match tokenizer.special_token(format.marker()) {
        Some(id) => format!("<[{id}]>"),
        None => Value::from(format.marker()).to_string(),
    }
}
