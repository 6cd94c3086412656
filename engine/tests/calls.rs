//! Tool calls as grammars: in every format, generated text is read back as calls with valid arguments.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::sync::Arc;

use engine::ModelFiles;
use engine::tools::answer::{AnswerReader, Part, Tool, ToolFormat, calls, calls_or_document};
use engine::tools::constraint::{Grammar, GrammarCompiler, Reading};
use engine::tools::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Generates texts from random allowed tokens and reads them back as calls.
#[test]
fn generated_calls_are_read_as_calls() {
    let files = ModelFiles::bundled();
    let config = files.config().unwrap();
    let tokenizer = Arc::new(Tokenizer::of_model(&files, &config).unwrap());
    let eos = 2;
    let compiler = GrammarCompiler::new(tokenizer.clone(), config.vocab_size, &[eos]);
    let parameters = json!({"$defs": {"unit": {"enum": ["C", "F"]}}, "type": "object", "additionalProperties": false,
        "properties": {"unit": {"$ref": "#/$defs/unit"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["unit", "days"]});
    for format in ToolFormat::ALL {
        // Names are JSON only in some formats.
        use ToolFormat::{Gemma4, Glm4, Harmony, Lfm2, Olmo3, Qwen3Coder};
        let is_json = ![Glm4, Gemma4, Olmo3, Lfm2, Qwen3Coder, Harmony].contains(&format);
        let other = if is_json { "say \"hi\"" } else { "say-hi" };
        let tools = [
            Tool { name: "get_weather".into(), parameters: Some(parameters.clone()), strict: true },
            Tool { name: other.into(), parameters: None, strict: false },
        ];
        let names: Vec<String> = tools.iter().map(|tool| tool.name.clone()).collect();
        for parallel in [false, true] {
            let constraint = compiler.compile(&calls(format, &tools, parallel, &tokenizer)).unwrap();
            let mut seen = [false; 3];
            for seed in 0..12u64 {
                let mut matcher = constraint.matcher();
                let mut tokens = Vec::new();
                let mut state = seed + 1;
                loop {
                    matcher.compute_mask();
                    let allowed = |t: &u32| matcher.mask()[*t as usize / 32] >> (t % 32) & 1 == 1;
                    let choices: Vec<u32> = (0..config.vocab_size as u32).filter(allowed).collect();
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    // After a while it ends at the first opportunity.
                    let ends = choices.contains(&eos) && tokens.len() > 80;
                    let token = if ends { eos } else { choices[(state >> 33) as usize % choices.len()] };
                    let reading = matcher.read(token);
                    assert_ne!(reading, Reading::Refused);
                    if token != eos {
                        tokens.push(token);
                    }
                    if reading == Reading::Complete {
                        break;
                    }
                }
                let text = tokenizer.decode(&tokens, false).unwrap();
                let mut reader = AnswerReader::new(Some(format), names.clone(), None);
                let parts = [reader.push(&text), reader.finish()].concat();
                let mut count = 0;
                let mut arguments = String::new();
                let mut name = String::new();
                let mut check = |name: &str, arguments: &str| {
                    let value: Value = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{text}: {e}"));
                    if name == "get_weather" {
                        assert!(["C", "F"].contains(&value["unit"].as_str().unwrap()), "{text}");
                        assert!((1..=9).contains(&value["days"].as_i64().unwrap()), "{text}");
                        seen[0] = true;
                    } else {
                        assert_eq!((name, &value), (other, &json!({})), "{text}");
                        seen[1] = true;
                    }
                };
                for part in parts {
                    match part {
                        Part::Call(next) => {
                            if count > 0 {
                                check(&name, &arguments);
                            }
                            (name, arguments) = (next, String::new());
                            count += 1;
                        }
                        Part::Arguments(more) => arguments += &more,
                        other => panic!("{text:?} has {other:?}"),
                    }
                }
                check(&name, &arguments);
                assert!(count == 1 || parallel, "{text}");
                seen[2] |= count > 1;
            }
            let several = parallel && ![ToolFormat::Glm4, ToolFormat::Harmony].contains(&format);
            assert_eq!(seen, [true, true, several], "{format}, parallel {parallel}");
        }
    }
}

/// Whether a grammar allows a text as a whole.
fn allows(compiler: &GrammarCompiler, tokenizer: &Tokenizer, grammar: &Grammar, text: &str) -> bool {
    let mut matcher = compiler.compile(grammar).unwrap().matcher();
    let tokens = tokenizer.encode_plain(text).unwrap();
    tokens.into_iter().all(|token| matcher.read(token) != Reading::Refused) && matcher.may_end()
}

#[test]
fn a_document_replaces_calls() {
    let files = ModelFiles::bundled();
    let config = files.config().unwrap();
    let tokenizer = Arc::new(Tokenizer::of_model(&files, &config).unwrap());
    let compiler = GrammarCompiler::new(tokenizer.clone(), config.vocab_size, &[2]);
    let tools = [Tool { name: "now".into(), parameters: None, strict: false }];
    // The definitions of a schema stay its own.
    let schema = json!({"$defs": {"a": {"enum": [1]}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
        "required": ["a"], "additionalProperties": false});
    let both = |format, document: &Grammar| calls_or_document(format, &tools, false, document, &tokenizer);
    let document = Grammar::JsonSchema(schema);
    let both_hermes = both(ToolFormat::Hermes, &document).unwrap();
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for (text, is_allowed) in
        [(call, true), ("{\"a\":1}", true), ("{\"a\": 1}", true), ("{\"a\":2}", false), ("{}", false)]
    {
        assert_eq!(allows(&compiler, &tokenizer, &both_hermes, text), is_allowed, "{text}");
    }
    let any = both(ToolFormat::Glm4, &Grammar::JsonObject).unwrap();
    for (text, is_allowed) in [("now\n{}", true), ("{\"b\":[{}]}", true), ("[]", false), ("later", false)] {
        assert_eq!(allows(&compiler, &tokenizer, &any, text), is_allowed, "{text}");
    }
    assert_eq!(both(ToolFormat::Llama, &document), None);
    assert_eq!(both(ToolFormat::Hermes, &Grammar::Regex("a".into())), None);
}
