//! A loaded PTX text.

use crate::entry::Entry;
use crate::ptx::ast::{Source, Variable};
use crate::ptx::{self, ParseError};
use crate::window::function_address;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no module has had.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A PTX text.
pub struct PtxModule {
    /// Tells modules apart on a device.
    pub(crate) id: u64,
    entries: Arc<[Entry]>,
    pub(crate) variables: Vec<Variable>,
    source: Arc<Source>,
}

impl PtxModule {
    /// Parses a PTX text. A kernel is decoded when it is first needed, so that one with an instruction that the emulator does
    /// not know does not stand in the way of the others.
    pub fn parse(ptx: &str) -> Result<Self, ParseError> {
        let source = Arc::new(ptx::parse(ptx)?);
        let kernels = source.functions.iter().enumerate().filter(|(_, function)| function.entry && function.defined);
        Ok(Self {
            id: next_id(),
            entries: kernels.map(|(index, _)| Entry::new(&source, index)).collect(),
            variables: source.variables.iter().filter(|variable| variable.is_on_device()).cloned().collect(),
            source,
        })
    }

    /// The same module loaded once more: its kernels are those of this one, and its variables are its own.
    pub(crate) fn again(&self) -> Self {
        let (entries, variables, source) = (self.entries.clone(), self.variables.clone(), self.source.clone());
        Self { id: next_id(), entries, variables, source }
    }

    /// Decodes all kernels. The first instruction that the emulator does not know is an error that names it and its line.
    pub fn check(&self) -> Result<(), ParseError> {
        self.entries.iter().try_for_each(Entry::check)
    }

    /// What each kernel is refused for, if it is.
    pub(crate) fn check_all(&self) -> impl Iterator<Item = ParseError> {
        self.entries.iter().filter_map(|entry| entry.check().err())
    }

    /// The kernels.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The kernel of a name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name() == name)
    }

    /// The architecture the PTX was made for, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.source.target
    }

    /// The address of a device function.
    pub(crate) fn function_address(&self, name: &str) -> Option<u64> {
        let index = self.source.functions.iter().position(|function| function.name == name && !function.entry);
        index.map(function_address)
    }

    /// The source file of a number in `.loc`.
    pub(crate) fn file(&self, number: u32) -> String {
        self.source.files.get(&number).cloned().unwrap_or_default()
    }
}

impl std::fmt::Debug for PtxModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PtxModule").field("id", &self.id).field("target", &self.target()).finish_non_exhaustive()
    }
}
