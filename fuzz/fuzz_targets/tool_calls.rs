//! Fuzzes the readers of answers. The first byte chooses the formats of calls and thoughts, the second the size of pieces.

#![no_main]

use engine::tools::answer::{AnswerReader, Part, ThoughtFormat, Tool, ToolFormat};
use libfuzzer_sys::fuzz_target;

const THOUGHTS: [ThoughtFormat; 6] = [
    ThoughtFormat::Think,
    ThoughtFormat::Granite,
    ThoughtFormat::Granite32,
    ThoughtFormat::Cohere,
    ThoughtFormat::Gemma4,
    ThoughtFormat::Harmony,
];
/// Most characters of white space in a row. Of longer runs a reader may hold back a different part in smaller pieces.
const MAX_SPACE: usize = 32;

fuzz_target!(|data: &[u8]| {
    let [form, step, text @ ..] = data else { return };
    let Ok(text) = str::from_utf8(text) else { return };
    let (form, step) = (usize::from(*form), usize::from(*step) % 16 + 1);
    let (format, thoughts) = (ToolFormat::ALL.get(form % 13).copied(), THOUGHTS.get(form / 13 % 7).copied());
    let parameters = serde_json::json!({"properties": {"a": {"type": "string"}}});
    let tool = |name: &str| Tool { name: name.into(), parameters: Some(parameters.clone()), strict: false };
    let names = vec!["get".to_owned(), "set".to_owned()];
    let tools: Vec<Tool> = names.iter().map(|name| tool(name)).collect();
    let reader = AnswerReader::new(format, names, thoughts).with_tools(&tools);
    let characters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = characters.chunks(step).map(|piece| piece.iter().collect()).collect();
    let (whole, cut) = (read(reader.clone(), &[text]), read(reader, &pieces));
    let is_spaced = characters.windows(MAX_SPACE).any(|run| run.iter().all(|c| c.is_whitespace()));
    assert!(is_spaced || whole == cut, "whole {whole:?}, in pieces of {step} {cut:?}");
});

/// Reads an answer in pieces, and joins the parts that continue each other.
fn read(mut reader: AnswerReader, pieces: &[impl AsRef<str>]) -> Vec<Part> {
    let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| reader.push(piece.as_ref())).collect();
    parts.extend(reader.finish());
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Part::Thought(text)), Part::Thought(more))
            | (Some(Part::Text(text)), Part::Text(more))
            | (Some(Part::Arguments(text)), Part::Arguments(more)) => text.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    joined
}
