//! A parsed PTX text.

use crate::entry::Entry;
use crate::ptx::ast::{Source, Variable};
use crate::ptx::{self, ParseError};
use crate::window::function_address;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a module number that was never used before.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A parsed PTX text, whose kernels can be launched.
pub struct PtxModule {
    /// Distinguishes the modules of a device.
    pub(crate) id: u64,
    entries: Arc<[Entry]>,
    pub(crate) variables: Vec<Variable>,
    source: Arc<Source>,
}

impl PtxModule {
    /// Parses a PTX text.
    ///
    /// Each kernel is decoded on first use, so a kernel with an unsupported instruction does not prevent others from
    /// running.
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

    /// Returns the module as if it were loaded a second time. The two share kernels, but each has its own variables.
    pub(crate) fn again(&self) -> Self {
        let (entries, variables, source) = (self.entries.clone(), self.variables.clone(), self.source.clone());
        Self { id: next_id(), entries, variables, source }
    }

    /// Decodes all kernels. The error names the first instruction that the emulator does not support, and its line.
    pub fn check(&self) -> Result<(), ParseError> {
        self.entries.iter().try_for_each(Entry::check)
    }

    /// Returns the errors of all kernels that cannot be decoded.
    pub(crate) fn check_all(&self) -> impl Iterator<Item = ParseError> {
        self.entries.iter().filter_map(|entry| entry.check().err())
    }

    /// The kernels.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the kernel with this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name() == name)
    }

    /// The architecture that the PTX targets, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.source.target
    }

    /// Returns the address of a device function.
    pub(crate) fn function_address(&self, name: &str) -> Option<u64> {
        let index = self.source.functions.iter().position(|function| function.name == name && !function.entry);
        index.map(function_address)
    }

    /// Returns the source file that has this number in `.loc`.
    pub(crate) fn file(&self, number: u32) -> String {
        self.source.files.get(&number).cloned().unwrap_or_default()
    }
}

impl std::fmt::Debug for PtxModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PtxModule").field("id", &self.id).field("target", &self.target()).finish_non_exhaustive()
    }
}
