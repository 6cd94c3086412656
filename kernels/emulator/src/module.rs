//! A loaded PTX text.

use crate::decode;
use crate::program::Entry;
use crate::ptx::ast::Variable;
use crate::ptx::{self, ParseError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A PTX text whose kernels are ready to run.
pub struct Module {
    /// Tells modules apart on a device.
    pub(crate) id: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) files: HashMap<u32, String>,
    target: String,
}

impl Module {
    /// Parses a PTX text and decodes all of its kernels. An instruction that the emulator does not know is an error that
    /// names it and its line.
    pub fn parse(ptx: &str) -> Result<Self, ParseError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut source = ptx::parse(ptx)?;
        let entries = decode::entries(&source)?;
        source.variables.retain(decode::is_device_variable);
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            entries,
            variables: source.variables,
            files: source.files,
            target: source.target,
        })
    }

    /// The kernels.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The kernel of a name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The architecture the PTX was made for, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("id", &self.id).field("target", &self.target).finish_non_exhaustive()
    }
}
