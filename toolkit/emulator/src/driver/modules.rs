//! What a context does with modules and their kernels.

use super::context::DriverContext;
use super::function::LoadedKernel;
use super::options::SHARED_PER_BLOCK;
use super::result_code::{Result, ResultCode};
use super::session::Session;
use crate::module::PtxModule;
use std::sync::Arc;

impl DriverContext {
    pub fn load_module(&mut self, ptx: &str) -> std::result::Result<u32, (ResultCode, String)> {
        self.check_waiting().map_err(|code| (code, String::new()))?;
        // A driver compiles all of a module as it loads it. A kernel with a form that the emulator does not know is refused
        // when it is launched, and only then.
        let wrong = |module: &PtxModule| module.check_all().find(|error| !error.is_form);
        let module = PtxModule::parse(ptx).and_then(|module| wrong(&module).map_or(Ok(module), Err));
        let module = module.map_err(|error| (ResultCode::InvalidPtx, error.to_string()))?;
        if !self.device_options.runs(module.target()) {
            let (major, minor) = self.device_options.capability;
            let text = format!("code for {} on a device of capability {major}.{minor}", module.target());
            return Err((ResultCode::NoBinary, text));
        }
        let id = self.id();
        self.modules.insert(id, Arc::new(module));
        Ok(id)
    }

    pub fn module(&self, module: u32) -> Result<&Arc<PtxModule>> {
        self.modules.get(&module).ok_or(ResultCode::InvalidHandle)
    }

    pub fn find_function(&mut self, module_id: u32, kernel: &str) -> Result<u32> {
        self.healthy()?;
        let module = self.module(module_id)?.clone();
        let static_shared = module.entry(kernel).ok_or(ResultCode::NotFound)?.static_shared();
        let known = self.functions.iter().find(|(_, other)| other.module_id == module_id && other.kernel == kernel);
        if let Some((&id, _)) = known {
            return Ok(id);
        }
        let id = self.id();
        let dynamic_limit = SHARED_PER_BLOCK.saturating_sub(static_shared);
        self.functions.insert(id, LoadedKernel { module, module_id, kernel: kernel.to_string(), dynamic_limit });
        Ok(id)
    }

    pub fn function(&mut self, function: u32) -> Result<&mut LoadedKernel> {
        self.functions.get_mut(&function).ok_or(ResultCode::InvalidHandle)
    }
}

impl Session<'_> {
    pub fn unload_module(&mut self, module: u32) -> Result<()> {
        if !self.modules.contains_key(&module) {
            return Err(ResultCode::InvalidHandle);
        }
        self.finish()?;
        self.modules.remove(&module);
        self.functions.retain(|_, function| function.module_id != module);
        self.healthy()
    }
}
