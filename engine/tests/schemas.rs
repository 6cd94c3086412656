//! JSON schemas as pydantic, Zod and others write them. Checks which documents they allow, and which position a refusal
//! names.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod language;

use engine::tools::answer::{Tool, ToolFormat, calls};
use engine::tools::constraint::{Constraint, Grammar, Reading, exact_numbers};
use language::Language;
use serde_json::{Value, json};

/// Whether the constraint allows an output with exactly this text.
fn accepts(language: &Language, constraint: &Constraint, text: &str) -> bool {
    let mut matcher = constraint.matcher();
    let tokens = language.tokenizer.encode_plain(text).unwrap();
    tokens.into_iter().all(|token| matcher.read(token) != Reading::Refused) && matcher.may_end()
}

fn check(language: &Language, grammar: Grammar, accepted: &[&str], refused: &[&str]) {
    let constraint = language.compiler.compile(&grammar).unwrap_or_else(|why| panic!("{grammar:?}: {why}"));
    for text in accepted {
        assert!(accepts(language, &constraint, text), "{grammar:?} refuses {text}");
    }
    for text in refused {
        assert!(!accepts(language, &constraint, text), "{grammar:?} accepts {text}");
    }
}

fn parsed(schema: &str) -> Value {
    serde_json::from_str(&exact_numbers(schema)).unwrap()
}

#[test]
fn schemas_of_pydantic_and_zod_are_enforced() {
    let language = Language::new();
    let decimal =
        json!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]});
    let email = json!({"type": "string", "format": "email", "pattern":
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"});
    let set = json!({"type": "array", "items": {"$ref": "#/$defs/c"}, "uniqueItems": true, "maxItems": 2,
        "$defs": {"c": {"enum": ["a", "ab", 1]}}});
    let union = json!({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "discriminator": {"propertyName": "k"},
        "$defs": {"cat": {"type": "object", "properties": {"k": {"const": "cat"}, "n": {"type": "integer"}}, "required": ["k"], "additionalProperties": false},
                  "dog": {"type": "object", "properties": {"k": {"const": "dog"}}, "required": ["k"], "additionalProperties": false}}});
    let record = json!({"type": "object", "propertyNames": {"type": "string", "enum": ["x", "y"]},
        "additionalProperties": {"type": "boolean"}, "required": ["x"]});
    let named =
        json!({"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": {"type": "null"}});
    let int64 = json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX});
    for (schema, accepted, refused) in [
        (decimal, &["1.5", "\"1.5\"", "\"-.5\""][..], &["\"\"", "\"-.\"", "\"1.2.3\"", "null"][..]),
        (email, &["\"a.b@c.de\""][..], &["\"a..b@c.de\"", "\".a@b.cd\"", "\"a@b\"", "1"][..]),
        (
            set,
            &["[]", "[\"a\"]", "[\"a\", \"ab\"]", "[1,\"a\"]"][..],
            &["[\"a\", \"a\"]", "[\"a\",\"ab\",1]", "[\"b\"]"][..],
        ),
        (union, &["{\"k\": \"cat\", \"n\": 1}", "{\"k\":\"dog\"}"][..], &["{\"k\":\"dog\",\"n\":1}", "{}"][..]),
        (
            record,
            &["{\"x\":true}", "{\"x\":true,\"y\":false}"][..],
            &["{}", "{\"x\":true,\"z\":false}", "{\"x\":1}"][..],
        ),
        (named, &["{}", "{\"ab\":null}"][..], &["{\"d\":null}", "{\"a\":1}"][..]),
        (
            int64,
            &["-9223372036854775808", "9223372036854775807", "0"][..],
            &["9223372036854775808", "-9223372036854775809"][..],
        ),
        (json!({"type": "object", "propertyNames": {"type": "string"}}), &["{}", "{\"a\":1}"][..], &["[]"][..]),
        (
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": false}),
            &["[\"a\",\"a\"]"][..],
            &["1"][..],
        ),
        (json!({"type": "array", "items": {"const": 1}, "uniqueItems": true}), &["[1]", "[]"][..], &["[1,1]"][..]),
        (
            json!({"type": ["string", "null"], "pattern": "^(?!a)"}),
            &["null", "\"b\"", "\"\""][..],
            &["\"ab\"", "1"][..],
        ),
        (json!({"type": "string", "format": "binary"}), &["\"x\""][..], &["1"][..]),
        (
            json!({"anyOf": [{"type": "integer", "exclusiveMinimum": 9007199254740992u64}, {"type": "null"}]}),
            &["9007199254740993", "null"][..],
            &["9007199254740992", "1"][..],
        ),
        (
            json!({"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "null"}}, "additionalProperties": false}),
            &["{\"b\":null}"][..],
            &["{\"a\":null}"][..],
        ),
    ] {
        check(&language, Grammar::JsonSchema(schema), accepted, refused);
    }
}

#[test]
fn numbers_are_written_as_in_the_schema() {
    let language = Language::new();
    for (schema, accepted, refused) in [
        ("{\"const\": 12345678901234567890123}", &["12345678901234567890123"][..], &["12345678901234567000000"][..]),
        ("{\"type\": \"integer\", \"const\": 9007199254740993}", &["9007199254740993"][..], &["9007199254740992"][..]),
        (
            "{\"enum\": [\"a\", 12345678901234567890123, 0.12345678901234567890, 7]}",
            &["\"a\"", "12345678901234567890123", "0.12345678901234567890", "7"][..],
            &["0.12345678901234568"][..],
        ),
        (
            "{\"const\": {\"id\": [1, 18446744073709551615]}}",
            &["{\"id\":[1, 18446744073709551615]}"][..],
            &["{\"id\":[1,18446744073709551616]}", "{\"id\":[1]}"][..],
        ),
        (
            "{\"properties\": {\"a\": {\"enum\": [1e400]}}, \"required\": [\"a\"], \"type\": \"object\"}",
            &["{\"a\":1e400}"][..],
            &["{\"a\":1}"][..],
        ),
        (
            "{\"type\": \"integer\", \"minimum\": 12345678901234567890123, \"maximum\": 12345678901234567890125, \"multipleOf\": 2}",
            &["12345678901234567890124"][..],
            &["12345678901234567890123", "12345678901234567890126"][..],
        ),
    ] {
        check(&language, Grammar::JsonSchema(parsed(schema)), accepted, refused);
    }
}

#[test]
fn host_names_are_valid() {
    let language = Language::new();
    let label = "a".repeat(63);
    let long = format!("\"{label}.{label}.{label}.{}\"", "b".repeat(61));
    let too_long = format!("\"{label}.{label}.{label}.{}\"", "b".repeat(62));
    let too_long_label = format!("\"{label}a\"");
    let schema =
        json!({"type": "object", "properties": {"h": {"type": "string", "format": "hostname"}}, "required": ["h"]});
    let document = |host: &str| format!("{{\"h\":{host}}}");
    let documents: Vec<String> = [
        "\"a-b.example.com\"",
        "\"A1\"",
        &long,
        &too_long,
        &too_long_label,
        "\"-a\"",
        "\"a-\"",
        "\"xn--a\"",
        "\"a..b\"",
        "\"\"",
    ]
    .iter()
    .map(|host| document(host))
    .collect();
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    check(&language, Grammar::JsonSchema(schema), &documents[..3], &documents[3..]);
}

#[test]
fn references_are_unescaped() {
    let language = Language::new();
    let schema = json!({
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x~1y"}, "b": {"$ref": "#/$defs/m~0n"}, "c": {"$ref": "#/$defs/p%25q"},
                       "d/e": {"type": "null"}, "f": {"$ref": "#/properties/d~1e"}, "g": {"$ref": "#/x-types/0"}},
        "required": ["a", "b", "c", "f", "g"], "additionalProperties": false,
        "$defs": {"x/y": {"const": 1}, "m~n": {"const": 2}, "p%q": {"const": 3}},
        "x-types": [{"const": 4}]
    });
    let document = "{\"a\":1,\"b\":2,\"c\":3,\"f\":null,\"g\":4}";
    check(&language, Grammar::JsonSchema(schema), &[document], &["{}"]);
    let tree = json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": false});
    check(&language, Grammar::JsonSchema(tree), &["{\"next\":{\"next\":{}}}"], &["{\"next\":1}"]);
}

#[test]
fn at_most_one_space_separates_tokens() {
    let language = Language::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "null"}}}});
    for grammar in [Grammar::JsonSchema(schema), Grammar::JsonObject] {
        let accepted = ["{\"a\":[null,null]}", "{ \"a\" : [ null , null ] }", "{\"a\": [null, null]}"];
        let refused = ["{\n\"a\":[]}", "{  \"a\":[]}", "{\"a\":[null,\n null]}", "{\t\"a\":[]}", "{\"a\":[]\r}"];
        check(&language, grammar, &accepted, &refused);
    }
}

#[test]
fn refusals_name_the_position() {
    let language = Language::new();
    let list = json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true});
    let overlap =
        json!({"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]});
    for (schema, place) in [
        (json!({"properties": {"a/b": list}}), "#/properties/a~1b/uniqueItems: "),
        (json!({"items": overlap}), "#/items/oneOf: "),
        (json!({"$defs": {"x": {"not": {"type": "string"}}}, "$ref": "#/$defs/x"}), "#/$defs/x/not: "),
        (json!({"properties": {"a": {"$ref": "#/$defs/none"}}}), "#/properties/a/$ref: "),
        (json!({"properties": {"a": {"$ref": "other.json"}}}), "#/properties/a/$ref: "),
        (json!({"properties": {"a": {"pattern": "(x"}}}), "#/properties/a/pattern: "),
        (json!({"properties": {"a": {"pattern": "x(?=y)"}}}), "#/properties/a/pattern: "),
        (json!({"allOf": [{"type": "string"}, {"type": "string", "pattern": "^(?!a)"}]}), "#/allOf/1: "),
        (json!({"properties": {"a": {"type": "text"}}}), "#/properties/a/type: "),
        (json!({"anyOf": [true, 7]}), "#/anyOf/1: "),
        (json!({"properties": {"a": {"minimum": "é".repeat(200)}}}), "#/properties/a/minimum: "),
        (json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}), "#/$defs/"),
        // The library detects these errors.
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "minItems": 3, "maxItems": 1}}, "required": ["a"]}),
            "#/properties/a: ",
        ),
        (
            json!({"type": "object", "properties": {"o": {"type": "object", "properties": {"x": {}, "y": {}}, "minProperties": 2}}}),
            "#/properties/o: ",
        ),
        (
            json!({"$ref": "#/$defs/s", "$defs": {"s": {"type": "string", "minLength": 3, "maxLength": 1}}}),
            "#/$defs/s: ",
        ),
    ] {
        let why = language.compiler.compile(&Grammar::JsonSchema(schema.clone())).unwrap_err().to_string();
        assert!(why.contains(place), "{schema}: {why}");
        assert!(["option", "feature", "limits", "Enable"].iter().all(|word| !why.contains(word)), "{why}");
    }
    let tool = Tool { name: "look".into(), parameters: Some(json!({"properties": {"a": list}})), strict: true };
    let grammar = calls(ToolFormat::Hermes, std::slice::from_ref(&tool), false, &language.tokenizer);
    let why = language.compiler.compile(&grammar).unwrap_err().to_string();
    assert!(why.contains("the parameters of look: #/properties/a/uniqueItems: "), "{why}");
    let lenient = calls(ToolFormat::Hermes, &[Tool { strict: false, ..tool }], false, &language.tokenizer);
    assert_eq!(language.compiler.compile(&lenient).unwrap().unchecked().len(), 1);
}

#[test]
fn unchecked_conditions_are_listed() {
    let language = Language::new();
    let overlap =
        json!({"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]});
    let schema = json!({"type": "object", "properties": {
        "u": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}, "o": overlap,
        "n": {"type": "object", "propertyNames": {"minLength": 3}}}});
    let grammar = Grammar::LenientJsonSchema(schema.clone());
    let constraint = language.compiler.compile(&grammar).unwrap();
    let places: Vec<String> =
        constraint.unchecked().iter().map(|place| place.split(": ").next().unwrap_or_default().to_owned()).collect();
    assert_eq!(places, ["#/properties/u/uniqueItems", "#/properties/o/oneOf", "#/properties/n/propertyNames"]);
    check(&language, grammar, &["{\"u\":[\"a\",\"a\"],\"o\":{\"a\":1}}"], &["{\"u\":[1]}"]);
    assert!(language.compiler.compile(&Grammar::JsonSchema(schema)).is_err());
}
