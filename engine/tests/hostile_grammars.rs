//! Grammars that nest deeply or are large are refused, or they compile and run on small stacks. A stack overflow aborts
//! the test process.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod language;

use std::fmt::Write;

use engine::Error;
use engine::tools::answer::{Tool, ToolFormat, calls};
use engine::tools::constraint::{Constraint, Grammar, Reading};
use language::Language;
use serde_json::{Map, Value, json};

/// Returns a Lark grammar with a chain of `count` rules. `link` gives the body of a rule from the next rule's number.
fn rules(count: usize, link: impl Fn(usize) -> String) -> Grammar {
    let mut text = "start: r0\n".to_owned();
    (0..count).for_each(|at| writeln!(text, "r{at}: {}", link(at + 1)).unwrap());
    Grammar::Lark(format!("{text}r{count}: \"a\"\n"))
}

/// Returns a chain of definitions. Each wraps a reference to the previous one with `link`.
fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
    let definition = |at: usize| match at {
        0 => json!({"type": "integer"}),
        _ => link(json!({"$ref": format!("#/$defs/d{}", at - 1)})),
    };
    let definitions: Map<_, _> = (0..length).map(|at| (format!("d{at}"), definition(at))).collect();
    json!({"$defs": definitions, "$ref": format!("#/$defs/d{}", length - 1)})
}

fn object(count: usize, is_required: bool) -> Value {
    let names: Vec<String> = (0..count).map(|at| format!("k{at}")).collect();
    let properties: Map<_, _> = names.iter().map(|name| (name.clone(), json!({"type": "boolean"}))).collect();
    json!({"type": "object", "properties": properties, "required": if is_required { names } else { Vec::new() }})
}

fn items(inner: Value) -> Value {
    json!({"type": "array", "items": inner})
}

fn why(language: &Language, grammar: &Grammar) -> Option<String> {
    match language.compiler.compile(grammar) {
        Ok(_) => None,
        Err(Error::Request(refusal)) => Some(refusal.why),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn grammars_beyond_the_limits_are_refused() {
    let language = Language::new();
    let schema = |schema| Grammar::JsonSchema(schema);
    let patterns: Vec<Value> =
        (0..20).map(|at| json!({"type": "string", "pattern": format!(".*a.{{{at}}}b.*")})).collect();
    for (grammar, expected) in [
        (rules(10_000, |next| format!("r{next}")), "rules"),
        (Grammar::Lark(format!("start: {}", "(\"a\" | \"b\")? ".repeat(20_000))), "groups"),
        (Grammar::Lark(format!("start: A\nA: {}", "\"a\"? ".repeat(20_000))), "repetitions"),
        (Grammar::Regex("(a|b)?".repeat(20_000)), "bytes at most"),
        (Grammar::Regex("(a|b)?".repeat(5000)), "repetitions"),
        (Grammar::Regex(format!("{}a{}", "(".repeat(5000), ")".repeat(5000))), "nest"),
        (Grammar::Regex("((a{1000}){1000}){1000}".into()), "times"),
        (schema(chain(3000, items)), "levels"),
        (schema(chain(3000, |inner| json!({"allOf": [inner]}))), "levels"),
        (schema(chain(3000, |inner| json!({"anyOf": [inner, {"type": "null"}]}))), "levels"),
        (schema(object(15_000, true)), "names"),
        (schema(object(15_000, false)), "names"),
        (schema(json!({"type": "integer", "multipleOf": 1_000_003})), "multipleOf"),
        (schema(json!({"allOf": patterns})), "patterns"),
        (calls(ToolFormat::Hermes, &tools(object(15_000, true)), false, &language.tokenizer), "names"),
        (calls(ToolFormat::Hermes, &tools(chain(3000, items)), false, &language.tokenizer), "levels"),
    ] {
        let found = why(&language, &grammar);
        assert!(found.as_ref().is_some_and(|why| why.contains(expected)), "{expected}: {found:?}");
    }
}

fn tools(parameters: Value) -> Vec<Tool> {
    vec![Tool { name: "f".into(), parameters: Some(parameters), strict: true }]
}

/// Reads up to `tokens` random tokens that the constraint allows.
fn walk(constraint: &Constraint, tokens: usize) {
    let mut matcher = constraint.matcher();
    let mut choice = 12_345usize;
    for _ in 0..tokens {
        matcher.compute_mask();
        let allowed: Vec<u32> = (0..constraint.vocab_size() as u32)
            .filter(|token| matcher.mask()[*token as usize / 32] >> (token % 32) & 1 == 1)
            .collect();
        if allowed.is_empty() {
            return;
        }
        choice = choice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match matcher.read(allowed[(choice >> 33) % allowed.len()]) {
            Reading::Open => {}
            // A lexer that runs out of fuel refuses tokens.
            Reading::Complete | Reading::Refused => return,
        }
    }
}

#[test]
fn grammars_within_the_limits_overflow_no_stack() {
    let language = Language::new();
    let grammars = [
        rules(1000, |next| format!("r{next}")),
        rules(1000, |next| format!("\"a\" r{next} \"b\"")),
        // A longer one takes about as long as a mask may.
        rules(300, |next| format!("(\"a\" | \"b\" r{next})? r{next}?")),
        Grammar::Lark(
            (0..1000).map(|at| format!("T{at}: \"b\" T{}\n", at + 1)).collect::<String>() + "T1000: \"c\"\nstart: T0",
        ),
        Grammar::Lark("start: start start | \"a\"".into()),
        Grammar::JsonSchema(chain(1000, |inner| inner)),
        Grammar::JsonSchema(chain(600, items)),
        Grammar::JsonSchema(chain(
            400,
            |inner| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]}),
        )),
        Grammar::JsonSchema(chain(600, |inner| json!({"allOf": [inner]}))),
        Grammar::JsonSchema(chain(400, |inner| json!({"type": "array", "allOf": [{"items": inner}]}))),
        Grammar::JsonSchema(chain(600, |inner| json!({"anyOf": [inner, {"type": "null"}]}))),
        Grammar::JsonSchema(object(1000, true)),
        Grammar::JsonSchema(object(500, false)),
        Grammar::JsonSchema(json!({"type": "integer", "multipleOf": 10_007})),
        Grammar::Regex("(a|b)?".repeat(300)),
        Grammar::Regex(format!("{}a{}", "(".repeat(45), ")*".repeat(45))),
        calls(ToolFormat::Hermes, &tools(chain(300, items)), true, &language.tokenizer),
    ];
    for grammar in grammars {
        let shown = format!("{grammar:?}").chars().take(100).collect::<String>();
        let constraint = language.compiler.compile(&grammar).unwrap_or_else(|error| panic!("{shown}: {error}"));
        // Threads that compute masks have several times this stack.
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        let walked = thread.spawn(move || walk(&constraint, 100)).unwrap().join();
        assert!(walked.is_ok(), "{shown}");
    }
}
