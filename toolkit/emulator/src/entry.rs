//! Kernels of a module. A kernel is decoded on first use, since a module may have hundreds.

use crate::decode;
use crate::parameter::Parameter;
use crate::program::Program;
use crate::ptx::ParseError;
use crate::ptx::ast::{LaunchBounds, Source};
use std::sync::{Arc, OnceLock};

/// A kernel of a module.
pub struct Entry {
    source: Arc<Source>,
    /// Index of its function in `source`.
    function: usize,
    parameters: Vec<Parameter>,
    program: OnceLock<Result<Program, ParseError>>,
}

impl Entry {
    pub(crate) fn new(source: &Arc<Source>, function: usize) -> Self {
        let mut parameters: Vec<Parameter> = Vec::new();
        for parameter in &source.functions[function].parameters {
            let end = parameters.last().map_or(0, |last| last.offset + last.size);
            let offset = end.next_multiple_of(parameter.align);
            parameters.push(Parameter { name: parameter.name.clone(), offset, size: parameter.size });
        }
        Self { source: Arc::clone(source), function, parameters, program: OnceLock::new() }
    }

    /// Returns the decoded kernel, or an error for its first unsupported instruction.
    pub(crate) fn program(&self) -> Result<&Program, &ParseError> {
        let decode = || decode::program(&self.source, self.function, &self.parameters);
        self.program.get_or_init(decode).as_ref()
    }

    /// Checks that the emulator supports all its instructions. The error names the first one it does not support, and
    /// its line.
    pub fn check(&self) -> Result<(), ParseError> {
        self.program().map(|_| ()).map_err(Clone::clone)
    }

    /// Its name in the PTX.
    pub fn name(&self) -> &str {
        &self.source.functions[self.function].name
    }

    /// Its parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The launch bounds it declares.
    pub fn bounds(&self) -> LaunchBounds {
        self.source.functions[self.function].bounds
    }

    /// Bytes of shared memory that the kernel declares itself, or 0 if it does not pass [`Entry::check`].
    pub fn static_shared(&self) -> usize {
        self.program().map_or(0, |program| program.static_shared)
    }

    /// Bytes of local memory per thread, or 0 if it does not pass [`Entry::check`].
    pub fn local(&self) -> usize {
        self.program().map_or(0, |program| program.local)
    }

    /// The opcodes it uses, each once. Empty if it does not pass [`Entry::check`].
    pub fn opcodes(&self) -> &[String] {
        self.program().map_or(&[], |program| &program.opcodes)
    }
}
