//! Splitting answers into thoughts, text and tool calls, in every format.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::tools::answer::{AnswerReader, Part, ToolFormat};

/// The parts that `reader` returns for a text, with neighbouring parts joined. Checks that they are the same however
/// the text is cut.
fn read(reader: &AnswerReader, text: &str) -> Vec<Part> {
    let joined = |pieces: &[&str]| {
        let mut reader = reader.clone();
        let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
        parts.extend(reader.finish());
        let mut all: Vec<Part> = Vec::new();
        for part in parts {
            match (all.last_mut(), part) {
                (Some(Part::Text(last)), Part::Text(more))
                | (Some(Part::Thought(last)), Part::Thought(more))
                | (Some(Part::Arguments(last)), Part::Arguments(more)) => last.push_str(&more),
                (_, part) => all.push(part),
            }
        }
        all
    };
    let whole = joined(&[text]);
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for &cut in &cuts {
        assert_eq!(joined(&[&text[..cut], &text[cut..]]), whole, "{text:?} cut at {cut}");
    }
    let letters: Vec<&str> = text.split("").collect();
    assert_eq!(joined(&letters), whole, "{text:?} letter by letter");
    whole
}

fn tools(format: ToolFormat) -> AnswerReader {
    AnswerReader::new(Some(format), vec!["get".into(), "set".into()], false)
}

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

fn call(name: &str, arguments: &str) -> [Part; 2] {
    [Part::Call(name.into()), Part::Arguments(arguments.into())]
}

#[test]
fn hermes_calls_follow_a_text() {
    let one =
        "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": \"} </tool_call> \\\" {\", \"b\": [1]}}\n</tool_call>";
    let two = "<tool_call>\n{\"arguments\": {}, \"name\": \"set\"}\n</tool_call>";
    let want =
        [&[text("I look.")][..], &call("get", "{\"a\": \"} </tool_call> \\\" {\", \"b\": [1]}"), &call("set", "{}")];
    let hermes = tools(ToolFormat::Hermes);
    assert_eq!(read(&hermes, &format!("I look.\n\n{one}\n{two}")), want.concat());
    assert_eq!(read(&hermes, &format!("{two}\nSo.")), [&call("set", "{}")[..], &[text("So.")]].concat());
    assert_eq!(read(&hermes, "<tool_call>\n{\"name\": \"get\"}\n</tool_call>"), call("get", "{}"));
    assert_eq!(read(&hermes, "1 < 2 <tool"), [text("1 < 2 <tool")]);
    assert_eq!(read(&hermes, "<tool_call> it"), [text("<tool_call> it")]);
    let cut = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": \"x";
    assert_eq!(read(&hermes, cut), call("get", "{\"a\": \"x"));
}

#[test]
fn llama_calls_replace_the_text() {
    let llama = tools(ToolFormat::Llama);
    let one = "{\"name\": \"get\", \"parameters\": {\"a\": -1.5e3}}";
    for before in ["", " \n", "<|python_tag|>", "<|python_tag|> "] {
        assert_eq!(read(&llama, &format!("{before}{one}")), call("get", "{\"a\": -1.5e3}"));
    }
    let several = format!("{one}; {one}");
    assert_eq!(read(&llama, &several), [call("get", "{\"a\": -1.5e3}"), call("get", "{\"a\": -1.5e3}")].concat());
    for no_call in ["{\"name\": \"other\", \"parameters\": {}}", "{\"a\": 1}", "{ 7", "So {\"name\": \"get\"}", " x"] {
        assert_eq!(read(&llama, no_call), [text(no_call)]);
    }
}

#[test]
fn mistral_calls_are_a_list_or_a_name() {
    let mistral = tools(ToolFormat::Mistral);
    let list =
        "[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"a\": null}}, {\"name\": \"set\", \"arguments\": {}}]";
    let want = [call("get", "{\"a\": null}"), call("set", "{}")].concat();
    assert_eq!(read(&mistral, list), want);
    assert_eq!(read(&mistral, "[TOOL_CALLS]get{\"a\": null}[TOOL_CALLS]set{}"), want);
    assert_eq!(read(&mistral, "[TOOL_CALLS]get[ARGS]{\"a\": null}[TOOL_CALLS]set[ARGS]{}"), want);
    assert_eq!(read(&mistral, "Well. [TOOL_CALLS]get{}"), [&[text("Well.")][..], &call("get", "{}")].concat());
    assert_eq!(read(&mistral, "[TOOL"), [text("[TOOL")]);
}

#[test]
fn thoughts_come_first_without_the_line_breaks_around_them() {
    let plain = AnswerReader::new(None, Vec::new(), true);
    let thought = Part::Thought("a\n< b".into());
    assert_eq!(read(&plain, "<think>\na\n< b\n</think>\n\nYes."), [thought.clone(), text("Yes.")]);
    assert_eq!(read(&plain.clone().thinking(), "a\n< b\n</think>\n\nYes."), [thought.clone(), text("Yes.")]);
    assert_eq!(read(&plain, "<think>\n\n</think>\n\nYes."), [text("Yes.")]);
    assert_eq!(read(&plain, "<think>a\n< b"), std::slice::from_ref(&thought));
    assert_eq!(read(&plain, "No <think>"), [text("No <think>")]);
    assert_eq!(read(&AnswerReader::new(None, Vec::new(), false), "<think>"), [text("<think>")]);
    let hermes = AnswerReader::new(Some(ToolFormat::Hermes), vec!["get".into()], true);
    let answer = "<think>a\n< b</think>\n<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>";
    assert_eq!(read(&hermes, answer), [&[thought][..], &call("get", "{}")].concat());
}
