//! JSON schemas as clients write them, in the form that `llguidance` reads.
//!
//! The library refuses keywords that it does not implement, resolves references without their escapes, and compares
//! numbers as doubles. This pass keeps only keywords that the library reads. It gives every target of a reference a plain
//! name under `$defs`, replaces what it can prove by keywords that the library has, and leaves to regular expressions
//! ([`Leaf`]) what only they can say. It refuses the rest, and names the place as a JSON pointer.
//!
//! Schemas are input of strangers. Recursion is bounded by [`MAX_DEPTH`], and references are followed in a queue.

mod disjoint;
mod keywords;
mod leaf;
mod leaves;
mod number;
mod pattern;
mod pointer;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use self::leaf::Leaf;
pub use self::leaf::substitute;
pub use self::number::exact_numbers;

use super::grammar::refused;
use checkpoint::error::{Error, Result};

/// Levels of schemas within each other, at most.
const MAX_DEPTH: usize = 320;
/// Schemas that a pass visits, at most. A target of a reference that is part of another target is visited twice.
const MAX_VISITS: usize = 100_000;
/// Keywords that the library applies one after the other, and combines with the keywords around them.
const APPLICATORS: [&str; 5] = ["const", "enum", "anyOf", "oneOf", "$ref"];
/// Keywords that the library applies together.
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

/// A schema that the library reads.
pub(super) struct Rewritten {
    /// The schema.
    pub schema: Value,
    /// The strings in it that stand for something else.
    pub leaves: Vec<Leaf>,
    /// What the schema says and the outputs are not checked for, if the request is not strict.
    pub unchecked: Vec<String>,
}

/// Rewrites the part of `root` at `path`. Its strings for leaves begin with `mark`, which is in no schema. If `strict`,
/// everything that the schema says is kept to or refused.
///
/// # Errors
/// What cannot be kept to, after its place.
pub(super) fn rewrite(root: &Value, path: &[String], mark: &str, strict: bool) -> Result<Rewritten> {
    let mut pass = Pass {
        root,
        mark,
        strict,
        path: path.to_vec(),
        depth: 0,
        visits: 0,
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

/// The keys from a schema to each schema within it.
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

/// A schema that a reference leads to; the first is the whole.
#[derive(Default)]
struct Target {
    path: Vec<String>,
    /// Whether the library combines it with other schemas, in which no string may stand for a leaf.
    is_combined: bool,
    /// The targets that it refers to.
    refers_to: Vec<usize>,
    /// The target that it is, if it is only a reference.
    is_alias_of: Option<usize>,
    /// The keys of a leaf in it.
    leaf: Option<Vec<String>>,
}

struct Pass<'a> {
    root: &'a Value,
    mark: &'a str,
    strict: bool,
    /// The keys of what is being read.
    path: Vec<String>,
    depth: usize,
    visits: usize,
    /// Whether the library combines what is being read with other schemas.
    is_combined: bool,
    /// The target that is being read.
    target: usize,
    targets: Vec<Target>,
    names: BTreeMap<Vec<String>, usize>,
    leaves: Vec<Leaf>,
    unchecked: Vec<String>,
}

impl<'a> Pass<'a> {
    /// An error about what is being read.
    fn refusal(&self, why: impl std::fmt::Display) -> Error {
        refused(named(&self.path, &why.to_string()))
    }

    /// Refuses a condition, unless the request is not strict: then outputs are not checked for it.
    fn leave_unchecked(&mut self, why: &str) -> Result<()> {
        if self.strict {
            return Err(self.refusal(why));
        }
        self.unchecked.push(named(&self.path, why));
        Ok(())
    }

    /// Does `work` at an inner place.
    fn at<T>(&mut self, keys: &[&str], work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let length = self.path.len();
        self.path.extend(keys.iter().map(|&key| key.to_owned()));
        let result = work(self);
        self.path.truncate(length);
        result
    }

    /// Does `work` on schemas that are combined with others if `is_combined`.
    fn combined<T>(&mut self, is_combined: bool, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.is_combined;
        self.is_combined |= is_combined;
        let result = work(self);
        self.is_combined = before;
        result
    }

    /// The definitions of everything that is referred to, and of what is referred to there.
    fn definitions(&mut self) -> Result<Members> {
        let mut defs = Members::new();
        let root = self.root;
        self.target = 1;
        while let Some(target) = self.targets.get(self.target) {
            self.path.clone_from(&target.path);
            let node = pointer::find(root, &self.path).unwrap_or(&Value::Null);
            let schema = self.visit(node)?;
            defs.insert(format!("r{}", self.target), schema);
            self.target += 1;
        }
        self.check_aliases()?;
        self.check_combined()?;
        for (at, leaf) in self.leaves.iter().enumerate() {
            defs.insert(format!("leaf{at}"), json!({"const": leaf.sentinel}));
        }
        Ok(defs)
    }

    /// Refuses references that lead to nothing but each other.
    fn check_aliases(&self) -> Result<()> {
        let mut walks = vec![None; self.targets.len()];
        for walk in 0..self.targets.len() {
            let mut at = Some(walk);
            while let Some(target) = at {
                if walks[target] == Some(walk) {
                    let why = "the reference leads only back to itself";
                    return Err(refused(named(&self.targets[target].path, why)));
                }
                if walks[target].is_some() {
                    break;
                }
                walks[target] = Some(walk);
                at = self.targets[target].is_alias_of;
            }
        }
        Ok(())
    }

    /// Refuses leaves in what the library combines with something else.
    fn check_combined(&mut self) -> Result<()> {
        let mut queue: Vec<usize> = (0..self.targets.len()).filter(|&at| self.targets[at].is_combined).collect();
        while let Some(at) = queue.pop() {
            if let Some(path) = &self.targets[at].leaf {
                return Err(refused(named(path, COMBINED)));
            }
            for next in std::mem::take(&mut self.targets[at].refers_to) {
                if !std::mem::replace(&mut self.targets[next].is_combined, true) {
                    queue.push(next);
                }
            }
        }
        Ok(())
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

    /// A reference to the schema at `path`.
    fn reference(&mut self, path: Vec<String>) -> Value {
        let next = self.targets.len();
        let target = *self.names.entry(path.clone()).or_insert(next);
        if target == next {
            self.targets.push(Target { path, ..Target::default() });
        }
        if self.is_combined {
            self.targets[target].is_combined = true;
        } else {
            self.targets[self.target].refers_to.push(target);
        }
        Value::from(if target == 0 { "#".into() } else { format!("#/$defs/r{target}") })
    }

    /// A reference to a string that stands for this JSON text.
    fn stand_in(&mut self, text: llguidance::derivre::RegexAst) -> Result<Value> {
        if self.is_combined {
            return Err(self.refusal(COMBINED));
        }
        let at = self.leaves.len();
        self.leaves.push(Leaf { sentinel: format!("{}{at}", self.mark), text });
        self.targets[self.target].leaf.get_or_insert_with(|| self.path.clone());
        Ok(json!({"$ref": format!("#/$defs/leaf{at}")}))
    }
}

/// Whether a keyword restricts documents, as far as anything here knows.
fn is_constraint(keyword: &str) -> bool {
    let others = ["allOf", "not", "if", "contains", "dependencies", "dependentRequired", "dependentSchemas"];
    let more = ["unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"];
    [&ASSERTIONS[..], &APPLICATORS, &others, &more].iter().any(|all| all.contains(&keyword))
}

/// The JSON pointer with these keys.
pub(super) fn place(path: &[String]) -> String {
    let keys = path.iter().map(|key| format!("/{}", pointer::escaped(key)));
    std::iter::once("#".to_owned()).chain(keys).collect()
}

/// The schema at a place of another one.
pub(super) fn find<'a>(root: &'a Value, path: &[String]) -> Option<&'a Value> {
    pointer::find(root, path)
}

/// Where the reference of a schema leads, if it has one.
pub(super) fn target_of(schema: &Value) -> Option<Vec<String>> {
    pointer::parse(schema.get("$ref")?.as_str()?).ok()
}

/// What is wrong at a place.
fn named(path: &[String], why: &str) -> String {
    format!("{}: {why}", place(path))
}
