//! Rewrites JSON schemas from clients into the form that `llguidance` reads.
//!
//! The library refuses keywords that it does not implement, resolves references without unescaping them, and compares
//! numbers as doubles. This pass therefore keeps only keywords that the library reads. It gives every target of a
//! reference a plain name under `$defs`. Some unsupported keywords have an equivalent in supported ones, which replaces
//! them. Others become regular expressions (see [`Leaf`]). The pass refuses everything else, and names the position as
//! a JSON pointer.
//!
//! Schemas are untrusted input. [`MAX_DEPTH`] bounds the recursion, and a queue resolves the references.

mod disjoint;
mod keywords;
mod leaf;
mod leaves;
mod number;
mod pattern;
mod pointer;
mod references;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use self::leaf::Leaf;
pub use self::leaf::substitute;
pub(super) use self::number::double;
pub use self::number::exact_numbers;

use super::reason::refused;
use checkpoint::error::{Error, Result};

/// Maximum nesting of schemas.
const MAX_DEPTH: usize = 320;
/// Maximum schemas that a pass visits. If a target of a reference is part of another target, it is visited twice.
const MAX_VISITS: usize = 100_000;
/// Maximum bytes of constants and lists that a pass reads or copies. References may lead to the same ones repeatedly.
const MAX_BYTES: usize = 32 << 20;
/// Assumed bytes of a schema or a constant, without its text.
const SCHEMA_COST: usize = 32;
/// Keywords that `llguidance` applies one after the other, each combined with the keywords around it.
const APPLICATORS: [&str; 5] = ["const", "enum", "anyOf", "oneOf", "$ref"];
/// Keywords that `llguidance` applies together, as one constraint.
const ASSERTIONS: [&str; 23] = [
    "type",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
const COMBINED: &str =
    "this number or pattern cannot be combined with other keywords or schemas that say something about it";

type Members = Map<String, Value>;

/// A schema that the library can read.
pub(super) struct Rewritten {
    /// The schema.
    pub schema: Value,
    /// The leaves, whose sentinel strings occur in the schema.
    pub leaves: Vec<Leaf>,
    /// Conditions of the schema that outputs are not checked for. Always empty if `strict`.
    pub unchecked: Vec<String>,
}

/// Rewrites the part of `root` at `path`. The sentinel strings of leaves begin with `mark`, which must occur in no
/// schema. If `strict`, refuses every condition that cannot be enforced.
///
/// # Errors
/// The condition that is refused, after its position.
pub(super) fn rewrite(root: &Value, path: &[String], mark: &str, strict: bool) -> Result<Rewritten> {
    let mut pass = Pass {
        root,
        mark,
        strict,
        path: path.to_vec(),
        depth: 0,
        visits: 0,
        left: MAX_BYTES,
        is_combined: false,
        target: 0,
        targets: vec![Target { path: path.to_vec(), ..Target::default() }],
        names: BTreeMap::from([(path.to_vec(), 0)]),
        leaves: Vec::new(),
        unchecked: Vec::new(),
    };
    let node = pointer::find(root, path).unwrap_or(&Value::Bool(true));
    let mut schema = match pass.visit(node)? {
        Value::Object(members) => members,
        Value::Bool(true) => Members::new(),
        _ => return Err(pass.refusal("no document is valid")),
    };
    let defs = pass.definitions()?;
    if !defs.is_empty() {
        schema.insert("$defs".into(), Value::Object(defs));
    }
    Ok(Rewritten { schema: Value::Object(schema), leaves: pass.leaves, unchecked: pass.unchecked })
}

/// Returns the paths from a schema to its direct subschemas.
pub(super) fn children(schema: &Value) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        let keys: Vec<String> = match (keyword.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(members)) => members.keys().cloned().collect(),
            ("items" | "additionalItems" | "additionalProperties", Value::Object(_)) => {
                all.push(vec![keyword.clone()]);
                continue;
            }
            ("items" | "prefixItems" | "allOf" | "anyOf" | "oneOf", Value::Array(items)) => {
                (0..items.len()).map(|at| at.to_string()).collect()
            }
            _ => continue,
        };
        all.extend(keys.into_iter().map(|key| vec![keyword.clone(), key]));
    }
    all
}

/// A schema that a reference points to. The first one is the whole schema.
#[derive(Default)]
struct Target {
    path: Vec<String>,
    /// Whether the library combines it with other schemas. A combined schema must not contain a leaf's string.
    is_combined: bool,
    /// Indices of the targets that it refers to.
    refers_to: Vec<usize>,
    /// The target that it points to, if it consists only of a reference.
    is_alias_of: Option<usize>,
    /// Path of a leaf in it.
    leaf: Option<Vec<String>>,
}

struct Pass<'a> {
    root: &'a Value,
    mark: &'a str,
    strict: bool,
    /// Path of the schema that is being read.
    path: Vec<String>,
    depth: usize,
    visits: usize,
    /// Bytes that the pass may still read or copy.
    left: usize,
    /// Whether the library combines the current schema with others.
    is_combined: bool,
    /// Index of the target that is being read.
    target: usize,
    targets: Vec<Target>,
    names: BTreeMap<Vec<String>, usize>,
    leaves: Vec<Leaf>,
    unchecked: Vec<String>,
}

impl<'a> Pass<'a> {
    /// Returns an error about the schema that is being read.
    fn refusal(&self, why: impl std::fmt::Display) -> Error {
        refused(named(&self.path, &why.to_string()))
    }

    /// Takes bytes from the pass's budget.
    fn spend(&mut self, bytes: usize) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.refusal("the schema's references lead to the same constants or lists too often")),
        }
    }

    /// Takes the bytes of a value.
    fn spend_on(&mut self, value: &Value) -> Result<()> {
        let mut rest = vec![value];
        while let Some(value) = rest.pop() {
            let text = match value {
                Value::String(text) => text.len(),
                Value::Array(items) => {
                    rest.extend(items);
                    0
                }
                Value::Object(members) => {
                    rest.extend(members.values());
                    members.keys().map(String::len).sum()
                }
                _ => 0,
            };
            self.spend(text + SCHEMA_COST)?;
        }
        Ok(())
    }

    /// Refuses a condition if the request is strict. Otherwise notes that outputs are not checked for it.
    fn leave_unchecked(&mut self, why: &str) -> Result<()> {
        if self.strict {
            return Err(self.refusal(why));
        }
        self.unchecked.push(named(&self.path, why));
        Ok(())
    }

    /// Runs `work` with `keys` appended to the current path.
    fn at<T>(&mut self, keys: &[&str], work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let length = self.path.len();
        self.path.extend(keys.iter().map(|&key| key.to_owned()));
        let result = work(self);
        self.path.truncate(length);
        result
    }

    /// Runs `work` on schemas that the library combines with others if `is_combined`.
    fn combined<T>(&mut self, is_combined: bool, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.is_combined;
        self.is_combined |= is_combined;
        let result = work(self);
        self.is_combined = before;
        result
    }

    fn visit(&mut self, node: &'a Value) -> Result<Value> {
        self.visits += 1;
        if self.visits > MAX_VISITS || self.depth >= MAX_DEPTH {
            return Err(self.refusal("the schema is too large or nests too deeply"));
        }
        let members = match node {
            Value::Bool(_) => return Ok(node.clone()),
            Value::Object(members) => members,
            _ => return Err(self.refusal("a schema must be an object, true or false")),
        };
        self.depth += 1;
        let schema = self.object(members);
        self.depth -= 1;
        schema
    }

    fn object(&mut self, members: &'a Members) -> Result<Value> {
        if keywords::is_never(members) {
            return Ok(Value::Bool(false));
        }
        if let Some(leaf) = self.leaf(members)? {
            return Ok(leaf);
        }
        let all_of = members.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
        let applied = APPLICATORS.iter().filter(|keyword| members.contains_key(**keyword)).count();
        let asserts = ASSERTIONS.iter().any(|keyword| members.contains_key(*keyword));
        let is_combined = all_of + applied + usize::from(asserts) > 1;
        self.combined(is_combined, |pass| pass.keywords(members))
    }

    /// Creates a leaf for this JSON text and returns a reference to it.
    fn add_leaf(&mut self, text: llguidance::derivre::RegexAst) -> Result<Value> {
        if self.is_combined {
            return Err(self.refusal(COMBINED));
        }
        let at = self.leaves.len();
        self.leaves.push(Leaf { sentinel: format!("{}{at}", self.mark), text });
        self.targets[self.target].leaf.get_or_insert_with(|| self.path.clone());
        Ok(json!({"$ref": format!("#/$defs/leaf{at}")}))
    }
}

/// Whether a keyword is known to restrict documents.
fn is_constraint(keyword: &str) -> bool {
    let others = ["allOf", "not", "if", "contains", "dependencies", "dependentRequired", "dependentSchemas"];
    let more = ["unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"];
    [&ASSERTIONS[..], &APPLICATORS, &others, &more].iter().any(|all| all.contains(&keyword))
}

/// Formats a path as a JSON pointer.
pub(super) fn place(path: &[String]) -> String {
    let keys = path.iter().map(|key| format!("/{}", pointer::escaped(key)));
    std::iter::once("#".to_owned()).chain(keys).collect()
}

/// Returns the part of `root` at `path`.
pub(super) fn find<'a>(root: &'a Value, path: &[String]) -> Option<&'a Value> {
    pointer::find(root, path)
}

/// Returns the regular expressions that a text must match or must not match to satisfy a pattern. `None` if the pattern
/// looks around where that is not supported.
pub(super) fn conditions(pattern: &str) -> Option<Vec<String>> {
    Some(pattern::split(pattern).ok()?.into_iter().map(|(regex, _)| regex).collect())
}

/// Returns the part of `root` that a reference points to.
pub(super) fn resolved<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    pointer::find(root, &pointer::parse(reference).ok()?)
}

/// Returns the path that a schema's reference points to, if it has one.
pub(super) fn target_of(schema: &Value) -> Option<Vec<String>> {
    pointer::parse(schema.get("$ref")?.as_str()?).ok()
}

/// Formats an error message with its position.
fn named(path: &[String], why: &str) -> String {
    format!("{}: {why}", place(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_for_listed_values_is_bounded() {
        // Four levels of 100 references to the next one.
        let reference = |level: usize| json!({"$ref": format!("#/$defs/d{level}")});
        let level = |level: usize| (format!("d{level}"), json!({"anyOf": vec![reference(level + 1); 100]}));
        let mut defs: Members = (0..4).map(level).collect();
        defs.insert("d4".into(), json!({"type": "null"}));
        let array = json!({"type": "array", "items": reference(0), "uniqueItems": true, "$defs": defs});
        let unchecked = rewrite(&array, &[], "m", false).unwrap().unchecked;
        assert!(unchecked.len() == 1 && unchecked[0].starts_with("#/uniqueItems: "), "{unchecked:?}");
        let short = json!({"type": "array", "items": reference(3), "uniqueItems": true, "$defs": array["$defs"]});
        assert!(rewrite(&short, &[], "m", true).is_ok());
    }

    #[test]
    fn a_rounded_divisor_is_refused() {
        let divisor = |text: &str| {
            let schema = format!("{{\"type\": \"number\", \"multipleOf\": {text}}}");
            let schema: Value = serde_json::from_str(&exact_numbers(&schema)).unwrap();
            rewrite(&schema, &[], "m", true).map(|rewritten| rewritten.schema["multipleOf"].clone())
        };
        assert_eq!(divisor("0.5000000000000000000").ok(), Some(json!(0.5)));
        let why = divisor("0.5000000000000000001").unwrap_err().to_string();
        assert!(why.contains("#/multipleOf: has too many digits"), "{why}");
    }

    #[test]
    fn constants_are_not_copied_without_end() {
        // Each reference's target contains the following ones.
        let schema = |count: usize| {
            let constants: Vec<String> = (0..10_000).map(|at| format!("{at:020}")).collect();
            let nested = (0..count).fold(json!({"enum": constants}), |inner, _| json!({"items": inner}));
            let reference = |at: usize| json!({"$ref": format!("#/$defs/a{}", "/items".repeat(at))});
            json!({"anyOf": (0..count).map(reference).collect::<Vec<_>>(), "$defs": {"a": nested}})
        };
        assert!(rewrite(&schema(10), &[], "m", true).is_ok());
        let why = rewrite(&schema(300), &[], "m", true).err().unwrap().to_string();
        assert!(why.contains("too often"), "{why}");
    }
}
