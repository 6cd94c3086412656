//! A kernel of a loaded module.

use super::result_code::{Result, ResultCode};
use crate::entry::Entry;
use crate::module::PtxModule;
use std::ffi::CString;
use std::sync::Arc;

/// A kernel of a loaded module.
pub(super) struct LoadedKernel {
    /// The module that defines the kernel.
    pub module: Arc<PtxModule>,
    /// The module's id, used when it is unloaded.
    pub module_id: u32,
    /// The name of the kernel.
    pub kernel: String,
    /// The name as a C string, for callers of the driver.
    pub c_name: CString,
    /// Bytes of dynamic shared memory that a launch may ask for.
    pub dynamic_limit: usize,
}

impl LoadedKernel {
    /// The compiled kernel in the module.
    pub fn entry(&self) -> Result<&Entry> {
        self.module.entry(&self.kernel).ok_or(ResultCode::NotFound)
    }
}
