//! Module and kernel operations of a context.

use super::compile::compile;
use super::context::DriverContext;
use super::function::LoadedKernel;
use super::image::CodeImage;
use super::options::SHARED_PER_BLOCK;
use super::result_code::{Compiled, Result, ResultCode};
use super::session::Session;
use crate::module::PtxModule;
use std::ffi::CString;
use std::sync::Arc;

impl DriverContext {
    pub fn load_module(&mut self, image: &CodeImage) -> Compiled<u32> {
        self.check_waiting().map_err(|code| (code, String::new()))?;
        let module = compile(&image.ptx(&self.device_options)?, &self.device_options)?;
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
        let existing = self.functions.iter().find(|(_, other)| other.module_id == module_id && other.kernel == kernel);
        if let Some((&id, _)) = existing {
            return Ok(id);
        }
        let id = self.id();
        let dynamic_limit = SHARED_PER_BLOCK.saturating_sub(static_shared);
        let c_name = CString::new(kernel).map_err(|_| ResultCode::NotFound)?;
        let kernel = LoadedKernel { module, module_id, kernel: kernel.to_string(), c_name, dynamic_limit };
        self.functions.insert(id, kernel);
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
