//! Counts the levels of JSON schemas, with references followed.

use std::collections::HashMap;

use serde_json::Value;

use super::super::schema as rewriter;

/// Maximum values that are read to count levels through references.
const MAX_READ: usize = 500_000;

/// Returns the values that a reference may point to. Schemas are rewritten before the library reads them, and the
/// rewrite decodes references. The library itself, which also reads schemas in Lark grammars, reads some keys as they
/// are.
pub(super) fn targets<'a>(root: &'a Value, reference: &str) -> Vec<&'a Value> {
    let decoded = rewriter::resolved(root, reference);
    let verbatim = reference.strip_prefix("#/").and_then(|path| {
        path.split('/').try_fold(root, |value, segment| match value {
            Value::Array(items) => items.get(segment.parse::<usize>().ok()?),
            other => other.get(segment),
        })
    });
    decoded.into_iter().chain(verbatim).collect()
}

/// Returns the deepest nesting that the library can reach. It follows every reference once.
pub(super) fn levels(root: &Value) -> Result<usize, String> {
    Levels { root, indices: HashMap::new(), references: HashMap::new(), targets: Vec::new(), read: 0 }.count()
}

struct Levels<'a> {
    root: &'a Value,
    /// Indices of the targets of references, by address.
    indices: HashMap<*const Value, usize>,
    /// The same, by the reference's text.
    references: HashMap<&'a str, Vec<usize>>,
    targets: Vec<Target>,
    read: usize,
}

/// A value that a reference points to.
struct Target {
    /// Levels in the value itself, without references.
    levels: usize,
    /// Indices of the targets that it refers to.
    references: Vec<usize>,
}

impl<'a> Levels<'a> {
    fn count(mut self) -> Result<usize, String> {
        let mut found = vec![self.root];
        while let Some(&value) = found.get(self.targets.len()) {
            let mut target = Target { levels: 0, references: Vec::new() };
            self.value(value, 1, &mut target, &mut found)?;
            target.references.sort_unstable();
            target.references.dedup();
            self.targets.push(target);
        }
        Ok(longest(&self.targets))
    }

    fn value(
        &mut self,
        value: &'a Value,
        level: usize,
        into: &mut Target,
        found: &mut Vec<&'a Value>,
    ) -> Result<(), String> {
        self.read += 1;
        if self.read > MAX_READ {
            return Err("the schema's references point to too many values".into());
        }
        if value.is_array() || value.is_object() {
            into.levels = into.levels.max(level);
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.value(item, level + 1, into, found)),
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    into.references.extend(self.reference(reference, found));
                }
                members.values().try_for_each(|member| self.value(member, level + 1, into, found))
            }
            _ => Ok(()),
        }
    }

    fn reference(&mut self, reference: &'a str, found: &mut Vec<&'a Value>) -> &[usize] {
        if !self.references.contains_key(reference) {
            let targets = targets(self.root, reference).into_iter().map(|target| self.index(target, found)).collect();
            self.references.insert(reference, targets);
        }
        self.references.get(reference).map_or(&[], Vec::as_slice)
    }

    fn index(&mut self, target: &'a Value, found: &mut Vec<&'a Value>) -> usize {
        *self.indices.entry(std::ptr::from_ref(target)).or_insert_with(|| {
            found.push(target);
            found.len() - 1
        })
    }
}

/// Returns the most levels on a path that visits no target twice. If references form a cycle, the result is an upper
/// bound.
fn longest(targets: &[Target]) -> usize {
    let mut users = vec![Vec::new(); targets.len()];
    let mut open: Vec<usize> = targets.iter().map(|target| target.references.len()).collect();
    for (at, target) in targets.iter().enumerate() {
        target.references.iter().for_each(|&used| users[used].push(at));
    }
    let mut below = vec![0; targets.len()];
    let mut ready: Vec<usize> = (0..targets.len()).filter(|&at| open[at] == 0).collect();
    let mut done = 0;
    while let Some(&at) = ready.get(done) {
        done += 1;
        let levels = targets[at].levels + below[at];
        for &user in &users[at] {
            below[user] = levels.max(below[user]);
            open[user] -= 1;
            if open[user] == 0 {
                ready.push(user);
            }
        }
    }
    let acyclic = ready.iter().map(|&at| targets[at].levels + below[at]).max().unwrap_or(0);
    // Targets on cycles, or that lead to one. A path visits each of them at most once.
    let cyclic: usize = (0..targets.len()).filter(|&at| open[at] > 0).map(|at| targets[at].levels).sum();
    acyclic + cyclic
}
