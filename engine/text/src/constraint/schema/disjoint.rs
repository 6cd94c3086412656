//! Proves that JSON schemas exclude each other, in the easy cases.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::number;
use super::pointer;

/// Maximum comparisons of two schemas in one proof. A comparison of long lists counts more than once.
const MAX_STEPS: usize = 2000;
/// Bytes of listed documents that cost as much as one comparison. Each document counts [`DOCUMENT`] bytes and its text.
const STEP_BYTES: usize = 512;
const DOCUMENT: usize = 32;
/// Maximum nesting of properties and references that a proof follows.
const MAX_DEPTH: usize = 8;

type Members = Map<String, Value>;

/// The state of one proof.
struct Proof<'a> {
    root: &'a Value,
    /// Keywords that apply in addition to each branch.
    shared: &'a Members,
    steps: usize,
}

/// Whether no document is valid under two of `branches`, each combined with `shared`. References start at `root`. Also
/// returns the steps of the proof.
pub(super) fn are_disjoint(root: &Value, shared: &Members, branches: &[Value]) -> (bool, usize) {
    let mut proof = Proof { root, shared, steps: 0 };
    let pairs = branches.iter().enumerate().flat_map(|(at, a)| branches[at + 1..].iter().map(move |b| (a, b)));
    let are_disjoint = pairs.into_iter().all(|(a, b)| proof.disjoint(a, b, 0));
    (are_disjoint, proof.steps)
}

impl<'a> Proof<'a> {
    fn disjoint(&mut self, a: &'a Value, b: &'a Value, depth: usize) -> bool {
        self.steps += 1;
        if self.steps > MAX_STEPS || depth > MAX_DEPTH {
            return false;
        }
        let (a, b) = (self.resolve(a), self.resolve(b));
        let (Some(one), Some(other)) = (a.as_object(), b.as_object()) else {
            return *a == Value::Bool(false) || *b == Value::Bool(false);
        };
        self.steps += (bytes(one) + bytes(other)) / STEP_BYTES;
        if self.steps > MAX_STEPS {
            return false;
        }
        types(one).is_disjoint(&types(other))
            || exclude(one, other)
            || self.numbers_are_apart(one, other)
            || self.objects_differ(one, other, depth)
            || self.options(one).is_some_and(|all| all.iter().all(|option| self.disjoint(option, b, depth + 1)))
            || self.options(other).is_some_and(|all| all.iter().all(|option| self.disjoint(a, option, depth + 1)))
    }

    /// Follows a schema's references to the schema they point to.
    fn resolve(&self, mut schema: &'a Value) -> &'a Value {
        for _ in 0..MAX_DEPTH {
            let target =
                schema.get("$ref").and_then(Value::as_str).and_then(|reference| pointer::parse(reference).ok());
            match target.and_then(|path| pointer::find(self.root, &path)) {
                Some(target) => schema = target,
                None => break,
            }
        }
        schema
    }

    /// Returns a schema's alternatives. A valid document matches at least one.
    fn options(&self, schema: &'a Members) -> Option<&'a [Value]> {
        let options = ["anyOf", "oneOf"].into_iter().find_map(|keyword| schema.get(keyword)?.as_array());
        options.filter(|options| !options.is_empty()).map(Vec::as_slice)
    }

    /// Whether the ranges of numbers do not overlap and one schema allows only numbers.
    fn numbers_are_apart(&self, a: &Members, b: &Members) -> bool {
        let only_numbers = |schema: &Members| types(schema).iter().all(|kind| *kind == "number");
        let number = |schema: &Members, keyword: &str| schema.get(keyword).and_then(number::double);
        let below = |a: &Members, b: &Members| {
            let pairs = [
                (number(a, "maximum"), number(b, "minimum"), false),
                (number(a, "exclusiveMaximum"), number(b, "minimum"), true),
                (number(a, "maximum"), number(b, "exclusiveMinimum"), true),
                (number(a, "exclusiveMaximum"), number(b, "exclusiveMinimum"), true),
            ];
            pairs.into_iter().any(|(most, least, or_equal)| match (most, least) {
                (Some(most), Some(least)) => most < least || or_equal && most == least,
                _ => false,
            })
        };
        (only_numbers(a) || only_numbers(b)) && (below(a, b) || below(b, a))
    }

    /// Whether a required property has schemas that exclude each other, and one schema allows only objects.
    fn objects_differ(&mut self, a: &'a Members, b: &'a Members, depth: usize) -> bool {
        let top = (depth == 0).then_some(self.shared);
        let is_object = |schema: &Members| types(schema).iter().all(|kind| *kind == "object");
        if !is_object(a) && !is_object(b) && !top.is_some_and(is_object) {
            return false;
        }
        let required: BTreeSet<&'a str> =
            [Some(a), Some(b), top].into_iter().flatten().flat_map(|schema| names(schema.get("required"))).collect();
        required.into_iter().any(|name| match (property(a, name), property(b, name)) {
            (Some(one), Some(other)) => self.disjoint(one, other, depth + 1),
            _ => false,
        })
    }
}

/// Returns the strings in an array.
fn names(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the schema that applies to a property, if it can be determined.
fn property<'a>(schema: &'a Members, name: &str) -> Option<&'a Value> {
    let named = schema.get("properties").and_then(|all| all.get(name));
    let has_patterns = schema.contains_key("patternProperties");
    named.or_else(|| schema.get("additionalProperties").filter(|_| !has_patterns))
}

/// Returns the types that a document may have. Integers count as numbers.
fn types(schema: &Members) -> BTreeSet<&str> {
    let all = || BTreeSet::from(["null", "boolean", "number", "string", "array", "object"]);
    let name = |name: &'static str| name;
    let mut types = match schema.get("type") {
        Some(Value::String(kind)) => BTreeSet::from([kind.as_str()]),
        Some(list @ Value::Array(_)) => names(Some(list)).collect(),
        _ => all(),
    };
    if types.remove("integer") {
        types.insert(name("number"));
    }
    match values(schema) {
        Some(values) => {
            let kinds: BTreeSet<&str> = values.iter().map(|value| kind(value)).collect();
            types.into_iter().filter(|kind| kinds.contains(kind)).collect()
        }
        None => types,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        _ if number::text(value).is_some() => "number",
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the documents that a schema lists, if it does.
fn values(schema: &Members) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// Returns the bytes of the documents that a schema lists.
fn bytes(schema: &Members) -> usize {
    let bytes = |value: &Value| DOCUMENT + value.as_str().map_or(0, str::len);
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => bytes(value),
        (None, Some(Value::Array(values))) => values.iter().map(bytes).sum(),
        _ => 0,
    }
}

/// The part of a document that the proof compares. Documents with different keys differ.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Null,
    Bool(bool),
    /// The bits of the nearest double. Different numbers may have equal doubles, so equal keys are no proof.
    Number(u64),
    /// A number out of the range of doubles. It may equal every number.
    AnyNumber,
    String(&'a str),
    /// Any array.
    Array,
    /// Any object.
    Object,
}

fn key(value: &Value) -> Key<'_> {
    match value {
        Value::Null => Key::Null,
        Value::Bool(truth) => Key::Bool(*truth),
        Value::String(text) => Key::String(text),
        Value::Array(_) => Key::Array,
        _ if kind(value) == "object" => Key::Object,
        // Adding zero makes 0 of -0.
        _ => number::double(value).map_or(Key::AnyNumber, |double| Key::Number((double + 0.0).to_bits())),
    }
}

/// Whether both schemas list their documents and no document is in both lists.
fn exclude(a: &Members, b: &Members) -> bool {
    let (Some(a), Some(b)) = (values(a), values(b)) else { return false };
    let keys: HashSet<Key<'_>> = a.into_iter().map(key).collect();
    let has_number = keys.iter().any(|key| matches!(key, Key::Number(_) | Key::AnyNumber));
    b.into_iter().map(key).all(|key| match key {
        Key::AnyNumber => !has_number,
        Key::Number(_) => !keys.contains(&key) && !keys.contains(&Key::AnyNumber),
        _ => !keys.contains(&key),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn branches_that_share_a_document_are_never_disjoint() {
        let root = json!({"$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "puppy"]}}},
            "any": {"properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
            "loop": {"$ref": "#/$defs/loop"},
        }});
        let reference = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
        let none = Members::new();
        let number = |text: &str| serde_json::from_str::<Value>(&number::exact_numbers(text)).unwrap();
        for (a, b, expected) in [
            (json!({"type": "string"}), json!({"type": ["integer", "null"]}), true),
            (json!({"type": "number"}), json!({"type": "integer"}), false),
            (json!({"const": "a"}), json!({"enum": ["b", 1]}), true),
            (json!({"const": 1}), json!({"enum": [1.0]}), false),
            (json!({"const": 0.0}), json!({"const": -0.0}), false),
            (json!({"const": 1}), json!({"enum": ["1", 2, [1], {"a": 1}]}), true),
            (json!({"const": number("1e400")}), json!({"const": 1}), false),
            (json!({"const": number("1e400")}), json!({"const": "1"}), true),
            (json!({"const": [1]}), json!({"const": [2]}), false),
            (json!({"enum": ["a", 1]}), json!({"type": "boolean"}), true),
            (json!({"type": "integer", "maximum": 3}), json!({"minimum": 4}), true),
            (json!({"maximum": 3}), json!({"minimum": 4}), false),
            (json!({"type": "integer", "maximum": 3}), json!({"minimum": 3}), false),
            (json!({"type": "integer", "exclusiveMaximum": 3}), json!({"minimum": 3}), true),
            (reference("cat"), reference("dog"), true),
            (reference("dog"), reference("any"), false),
            (reference("cat"), json!({"type": "object", "properties": {}}), false),
            (reference("cat"), json!({"type": "object", "additionalProperties": false}), true),
            (reference("cat"), json!({"anyOf": [reference("dog"), {"type": "null"}]}), true),
            (reference("cat"), json!({"anyOf": [reference("dog"), {}]}), false),
            (reference("loop"), reference("loop"), false),
            (json!({"properties": {"a": {"const": "x"}}}), json!({"properties": {"a": {"const": "y"}}}), false),
            (json!(false), json!({}), true),
            (json!(true), json!({"type": "null"}), false),
        ] {
            assert_eq!(are_disjoint(&root, &none, &[a.clone(), b.clone()]).0, expected, "{a} {b}");
            assert_eq!(are_disjoint(&root, &none, &[b.clone(), a.clone()]).0, expected, "{b} {a}");
        }
        let shared = json!({"type": "object", "required": ["a"]});
        let branches = ["x", "y"].map(|word| json!({"properties": {"a": {"const": word}}}));
        assert!(are_disjoint(&root, shared.as_object().unwrap(), &branches).0);
    }

    #[test]
    fn long_lists_count_as_many_steps() {
        let (root, none) = (json!({}), Members::new());
        let list = |first: usize, count: usize| json!({"enum": (first..first + count).collect::<Vec<_>>()});
        let (is_proved, steps) = are_disjoint(&root, &none, &[list(0, 1000), list(1000, 1000)]);
        assert!(is_proved && (100..500).contains(&steps), "{steps}");
        let branches: Vec<Value> = (0..64).map(|at| list(at * 1000, 1000)).collect();
        assert!(!are_disjoint(&root, &none, &branches).0, "the proof is given up");
    }
}
