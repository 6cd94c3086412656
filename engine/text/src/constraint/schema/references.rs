//! References between schemas, and the schemas that they point to.

use serde_json::{Value, json};

use super::super::reason::refused;
use super::{COMBINED, Members, Pass, Target, named, pointer};
use checkpoint::error::Result;

impl Pass<'_> {
    /// Returns a reference to the schema at `path`.
    pub(super) fn reference(&mut self, path: Vec<String>) -> Value {
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

    /// Rewrites all targets of references, including the targets that they refer to in turn.
    pub(super) fn definitions(&mut self) -> Result<Members> {
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

    /// Refuses references that only lead back to themselves.
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

    /// Refuses leaves in schemas that the library combines with others.
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
}
