//! Splitting answers into thoughts, text and tool calls, in every format.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::tools::answer::{AnswerReader, Part, ThoughtFormat, Tool, ToolFormat};
use engine::tools::constraint::Thoughts;

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
    AnswerReader::new(Some(format), vec!["get".into(), "set".into()], None)
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
fn endless_white_space_is_not_held_back() {
    let mut reader = tools(ToolFormat::Hermes);
    reader.push("I look.");
    let returned: usize =
        (0..1000).flat_map(|_| reader.push("\n")).map(|part| matches!(part, Part::Text(_)) as usize).sum();
    assert!(returned > 900, "{returned}");
    let long = format!("I look.{}<tool_call>{{\"name\": \"get\"}}</tool_call>", " ".repeat(100));
    let want = [&[text(&format!("I look.{}", " ".repeat(36)))][..], &call("get", "{}")].concat();
    assert_eq!(read(&tools(ToolFormat::Hermes), &long), want);
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
    let between = [&call("get", "{}")[..], &[text("so")], &call("set", "{}")].concat();
    assert_eq!(read(&mistral, "[TOOL_CALLS]get{} so [TOOL_CALLS]set{}"), between);
}

#[test]
fn thoughts_come_first_without_the_line_breaks_around_them() {
    let plain = AnswerReader::new(None, Vec::new(), Some(ThoughtFormat::Think));
    let thought = Part::Thought("a\n< b".into());
    assert_eq!(read(&plain, "<think>\na\n< b\n</think>\n\nYes."), [thought.clone(), text("Yes.")]);
    assert_eq!(read(&plain.clone().after("Q <think>\n"), "a\n< b\n</think>\n\nYes."), [thought.clone(), text("Yes.")]);
    assert_eq!(read(&plain, "<think>\n\n</think>\n\nYes."), [text("Yes.")]);
    assert_eq!(read(&plain, "<think>a\n< b"), std::slice::from_ref(&thought));
    assert_eq!(read(&plain, "No <think>"), [text("No <think>")]);
    assert_eq!(read(&AnswerReader::new(None, Vec::new(), None), "<think>"), [text("<think>")]);
    let hermes = AnswerReader::new(Some(ToolFormat::Hermes), vec!["get".into()], Some(ThoughtFormat::Think));
    let answer = "<think>a\n< b</think>\n<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>";
    assert_eq!(read(&hermes, answer), [&[thought][..], &call("get", "{}")].concat());
}

#[test]
fn granite_phi_and_command_write_lists() {
    let want = [call("get", "{\"a\": [1, {}]}"), call("set", "{}")].concat();
    let list = "[{\"name\": \"get\", \"arguments\": {\"a\": [1, {}]}}, {\"name\": \"set\", \"arguments\": {}}]";
    let cohere = list.replace("\"name\"", "\"tool_call_id\": \"0\", \"tool_name\"").replace("arguments", "parameters");
    for (format, marker, list, end) in [
        (ToolFormat::Granite, "<|tool_call|>", list, ""),
        (ToolFormat::Granite, "<tool_call>", list, ""),
        (ToolFormat::Phi4, "<|tool_call|>", list, "<|/tool_call|>"),
        (ToolFormat::Phi4, "functools", list, ""),
        (ToolFormat::Cohere, "<|START_ACTION|>\n", &cohere, "\n<|END_ACTION|>"),
    ] {
        let reader = tools(format);
        assert_eq!(read(&reader, &format!("{marker}{list}{end}")), want, "{format}");
        assert_eq!(read(&reader, &format!("Well. {marker}{list}{end}")), [&[text("Well.")][..], &want].concat());
        assert_eq!(read(&reader, &format!("{marker} it")), [text(&format!("{marker} it"))], "{format}");
    }
    assert_eq!(read(&tools(ToolFormat::Phi4), "import functools\n"), [text("import functools\n")]);
    assert_eq!(read(&tools(ToolFormat::Granite), "<|tool_call|>[]"), []);
    assert_eq!(read(&tools(ToolFormat::Cohere), "<|START_ACTION|>[ ]<|END_ACTION|>So."), [text("So.")]);
}

#[test]
fn glm_writes_a_name_and_an_object_in_place_of_text() {
    let glm = tools(ToolFormat::Glm4);
    assert_eq!(read(&glm, "get\n{\"a\": \"}\"}"), call("get", "{\"a\": \"}\"}"));
    assert_eq!(read(&glm, "\nset \n {}"), call("set", "{}"));
    for no_call in ["get", "get it", "get\nit", "other\n{}", "getter\n{}", "So\nget\n{}"] {
        assert_eq!(read(&glm, no_call), [text(no_call)]);
    }
}

#[test]
fn gemma_and_olmo_write_calls_that_are_not_json() {
    let gemma = tools(ToolFormat::Gemma4);
    let one = "<|tool_call>call:get{a:<|\"|>x<tool_call|>y<|\"|>,n:[1,true]}<tool_call|>";
    let want = call("get", "{\"a\":\"x<tool_call|>y\",\"n\":[1,true]}");
    assert_eq!(read(&gemma, one), want);
    let two = format!("I look.\n{one}<|tool_call>call:set{{}}<tool_call|>\nSo.");
    assert_eq!(read(&gemma, &two), [&[text("I look.")][..], &want, &call("set", "{}"), &[text("So.")]].concat());
    for no_call in ["<|tool_call>call:get{a:", "<|tool_call>get it<tool_call|> x", "1 <|tool"] {
        assert_eq!(read(&gemma, no_call), [text(no_call)]);
    }
    let olmo = tools(ToolFormat::Olmo3);
    let two = "<function_calls>\nget(a='x', n=None)\nset()\n</function_calls>";
    assert_eq!(read(&olmo, two), [call("get", "{\"a\":\"x\",\"n\":null}"), call("set", "{}")].concat());
    let cut = "<function_calls>\nget(a='x')\nset(";
    assert_eq!(read(&olmo, cut), [&call("get", "{\"a\":\"x\"}")[..], &[text("set(")]].concat());
    let many = "<function_calls>x</function_calls>".repeat(40);
    assert_eq!(read(&olmo, &many), [text(&many)]);
    let lfm2 = "So.<|tool_call_start|>[get(a='<|tool_call_end|>'), set()]<|tool_call_end|>Done.";
    let want =
        [&[text("So.")][..], &call("get", "{\"a\":\"<|tool_call_end|>\"}"), &call("set", "{}"), &[text("Done.")]];
    assert_eq!(read(&tools(ToolFormat::Lfm2), lfm2), want.concat());
    let parameters = Some(serde_json::json!({"properties": {"a": {"type": "string"}}}));
    let tool = Tool { name: "get".into(), parameters, strict: false };
    let coder = tools(ToolFormat::Qwen3Coder).with_tools(&[tool]);
    let one = "<tool_call>\n<function=get>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>";
    let want = call("get", "{\"a\":\"1\",\"b\":2}");
    assert_eq!(read(&coder, &format!("{one}\n{one}")), [want.clone(), want].concat());
    assert_eq!(read(&olmo, "<function_calls>no</function_calls>"), [text("<function_calls>no</function_calls>")]);
}

#[test]
fn thoughts_of_other_models_have_other_markers() {
    let thought = Part::Thought("a < b".into());
    let of = |format| AnswerReader::new(None, Vec::new(), Some(format));
    let cohere = "<|START_THINKING|>a < b<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>";
    assert_eq!(read(&of(ThoughtFormat::Cohere), cohere), [thought.clone(), text("Yes.")]);
    assert_eq!(read(&of(ThoughtFormat::Cohere), "<|START_RESPONSE|>Yes."), [text("Yes.")]);
    let granite = "Here is my thought process: a < b\n\nHere is my response:\nYes.";
    assert_eq!(read(&of(ThoughtFormat::Granite32), granite), [thought.clone(), text("Yes.")]);
    let granite = "<think>a < b</think><response>Yes.\n</response>";
    assert_eq!(read(&of(ThoughtFormat::Granite), granite), [thought.clone(), text("Yes.")]);
    assert_eq!(
        read(&of(ThoughtFormat::Gemma4), "<|channel>thought\na < b\n<channel|>Yes."),
        [thought.clone(), text("Yes.")]
    );
    assert_eq!(read(&of(ThoughtFormat::Gemma4), "<|channel>thought\n<channel|>Yes."), [text("Yes.")]);
    let open = of(ThoughtFormat::Cohere).after("Q<|START_THINKING|>");
    assert_eq!(read(&open, "a < b<|END_THINKING|>Yes."), [thought, text("Yes.")]);
}

#[test]
fn the_template_of_gpt_oss_shows_messages() {
    let template = include_str!("../../tests/fixtures/chat/templates/harmony.jinja");
    let mentions = |text: &str| template.contains(text);
    assert_eq!(ToolFormat::of_template(mentions), Some(ToolFormat::Harmony));
    assert_eq!(ThoughtFormat::of_template(mentions), Some(ThoughtFormat::Harmony));
}

/// The marks have the ids 1, 2 and 3, and the end of a call has 4.
#[test]
fn a_grammar_begins_in_the_message_that_the_prompt_has_begun() {
    let id = |text: &str| {
        let at = ["<|channel|>", "final", "<|message|>", "<|call|>"].iter().position(|mark| *mark == text);
        at.map(|at| at as u32 + 1)
    };
    let beginning = |prompt: &str| ThoughtFormat::Harmony.beginning(prompt, id, true);
    let read = |read| Thoughts::Message { marks: [1, 2, 3], read, call: Some(4) };
    for (begun, want) in [
        ("", read(0)),
        ("<|channel|>", read(1)),
        ("<|channel|>final", read(2)),
        ("<|channel|>analysis<|message|>So", read(0)),
        ("<|channel|>final<|message|>", Thoughts::Over),
        ("<|channel|>final<|message|>So far", Thoughts::Over),
        ("<|channel|>final<|message|>So.<|end|>", read(0)),
    ] {
        assert_eq!(beginning(&format!("<|start|>user<|message|>Q<|end|><|start|>assistant{begun}")), want, "{begun}");
    }
}

#[test]
fn messages_have_channels_and_recipients() {
    let thought = |text: &str| Part::Thought(text.into());
    let gpt_oss = AnswerReader::new(Some(ToolFormat::Harmony), vec!["get".into()], Some(ThoughtFormat::Harmony));
    let analysis = "<|channel|>analysis<|message|>a < b<|end|>";
    let answer = format!("{analysis}<|start|>assistant<|channel|>final<|message|>Yes.\n");
    assert_eq!(read(&gpt_oss, &answer), [thought("a < b"), text("Yes.\n")]);
    assert_eq!(read(&gpt_oss, &format!("{answer}<|return|>")), [thought("a < b"), text("Yes.\n")]);
    let json = "<|channel|>final <|constrain|>json<|message|>{}<|return|>";
    assert_eq!(read(&gpt_oss, json), [text("{}")]);
    let header = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>";
    let other = " to=functions.get<|channel|>commentary json<|message|>";
    for header in [header, other] {
        let calls = format!("{analysis}<|start|>assistant{header}{{\"a\": 1}}<|call|>");
        assert_eq!(read(&gpt_oss, &calls), [&[thought("a < b")][..], &call("get", "{\"a\": 1}")].concat());
    }
    assert_eq!(read(&gpt_oss, &format!("{header}<|call|>")), call("get", "{}"));
    let remark = format!("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{header}{{}}");
    assert_eq!(read(&gpt_oss, &remark), [&[text("I look.")][..], &call("get", "{}")].concat());
    let twice = format!("{analysis}<|start|>assistant{analysis}");
    assert_eq!(read(&gpt_oss, &twice), [thought("a < b\na < b")]);
    let no_tools = AnswerReader::new(None, Vec::new(), Some(ThoughtFormat::Harmony));
    assert_eq!(read(&no_tools, &format!("{header}{{}}")), [text("{}")]);
    assert_eq!(read(&gpt_oss, "Yes <|"), [text("Yes <|")]);
    let told = format!("{header}{{}}<|call|><|start|>functions.get to=assistant<|channel|>commentary<|message|>4");
    assert_eq!(read(&gpt_oss, &told), [&call("get", "{}")[..], &[text("4")]].concat());
    assert_eq!(read(&gpt_oss, "<|channel|>final<|message|>Yes.<|end|> So."), [text("Yes. So.")]);
    assert_eq!(read(&gpt_oss, "<|channel|>ana"), []);
    let begun =
        gpt_oss.clone().after("<|start|>user<|message|>Q<|end|><|start|>assistant<|channel|>analysis<|message|>So");
    assert_eq!(read(&begun, " it is.<|end|>"), [thought(" it is.")]);
    let long = format!("<|channel|>{}", "x".repeat(2000));
    assert_eq!(read(&gpt_oss, &long).len(), 1, "a header without an end is text");
}

#[test]
fn a_template_shows_its_format() {
    for (template, format, thoughts) in [
        ("<tool_call>\n{\"name\": ... </tool_call> </think>", Some(ToolFormat::Hermes), Some(ThoughtFormat::Think)),
        (
            "<|start_of_role|>... <|tool_call|> </think> <response>",
            Some(ToolFormat::Granite),
            Some(ThoughtFormat::Granite),
        ),
        ("<|start_of_role|>... <tool_call> </tool_call>", Some(ToolFormat::Hermes), None),
        ("<|START_ACTION|> <|END_THINKING|>", Some(ToolFormat::Cohere), Some(ThoughtFormat::Cohere)),
        ("<|tool|> <|/tool|>", Some(ToolFormat::Phi4), None),
        ("functools[...] \"parameters\": dictionary", Some(ToolFormat::Phi4), None),
        ("Here is my thought process:", None, Some(ThoughtFormat::Granite32)),
        ("<|observation|>", Some(ToolFormat::Glm4), None),
        ("<|observation|> <arg_key>", None, None),
        ("<|tool_call>call: <channel|>", Some(ToolFormat::Gemma4), Some(ThoughtFormat::Gemma4)),
        ("<function_calls> </think>", Some(ToolFormat::Olmo3), Some(ThoughtFormat::Think)),
        ("<tool_call>\n<function=f>\n<parameter=p> </think>", Some(ToolFormat::Qwen3Coder), Some(ThoughtFormat::Think)),
        ("<function=f>{}</function>", None, None),
        ("<|tool_list_start|>[", Some(ToolFormat::Lfm2), None),
        (
            "<|channel|>analysis<|message|> <|channel|>commentary <|call|>",
            Some(ToolFormat::Harmony),
            Some(ThoughtFormat::Harmony),
        ),
        ("<start_of_turn>", None, None),
    ] {
        let mentions = |text: &str| template.contains(text);
        assert_eq!(
            (ToolFormat::of_template(mentions), ThoughtFormat::of_template(mentions)),
            (format, thoughts),
            "{template}"
        );
    }
}
