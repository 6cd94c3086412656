//! Modules and their functions.

use super::code::{Code, Result};
use super::context::Context;
use super::options::SHARED_PER_BLOCK;
use crate::entry::Entry;
use crate::module::Module;
use std::sync::Arc;

/// A kernel of a loaded module.
pub(super) struct Function {
    pub module: Arc<Module>,
    /// The module's number, by which it is unloaded.
    pub module_id: u32,
    pub kernel: String,
    /// Bytes of dynamic shared memory that a launch may ask for.
    pub dynamic_limit: usize,
}

impl Function {
    pub fn entry(&self) -> Result<&Entry> {
        self.module.entry(&self.kernel).ok_or(Code::NotFound)
    }
}

impl Context {
    pub fn load_module(&mut self, ptx: &str) -> std::result::Result<u32, (Code, String)> {
        self.check_waiting().map_err(|code| (code, String::new()))?;
        // A driver compiles all of a module as it loads it.
        let module = Module::parse(ptx).and_then(|module| module.check().map(|()| module));
        let module = module.map_err(|error| (Code::InvalidPtx, error.to_string()))?;
        if !self.device_options.runs(module.target()) {
            let (major, minor) = self.device_options.capability;
            let text = format!("code for {} on a device of capability {major}.{minor}", module.target());
            return Err((Code::NoBinary, text));
        }
        let id = self.id();
        self.modules.insert(id, Arc::new(module));
        Ok(id)
    }

    pub fn unload_module(&mut self, module: u32) -> Result<()> {
        if !self.modules.contains_key(&module) {
            return Err(Code::InvalidHandle);
        }
        self.finish()?;
        self.modules.remove(&module);
        self.functions.retain(|_, function| function.module_id != module);
        self.healthy()
    }

    pub fn module(&self, module: u32) -> Result<&Arc<Module>> {
        self.modules.get(&module).ok_or(Code::InvalidHandle)
    }

    pub fn find_function(&mut self, module_id: u32, kernel: &str) -> Result<u32> {
        self.healthy()?;
        let module = self.module(module_id)?.clone();
        let static_shared = module.entry(kernel).ok_or(Code::NotFound)?.static_shared();
        let known = self.functions.iter().find(|(_, other)| other.module_id == module_id && other.kernel == kernel);
        if let Some((&id, _)) = known {
            return Ok(id);
        }
        let id = self.id();
        let dynamic_limit = SHARED_PER_BLOCK.saturating_sub(static_shared);
        self.functions.insert(id, Function { module, module_id, kernel: kernel.to_string(), dynamic_limit });
        Ok(id)
    }

    pub fn function(&mut self, function: u32) -> Result<&mut Function> {
        self.functions.get_mut(&function).ok_or(Code::InvalidHandle)
    }
}
