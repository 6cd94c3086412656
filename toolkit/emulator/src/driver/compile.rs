//! PTX, compiled as a driver does it when a program loads it.

use super::options::DeviceOptions;
use super::result_code::{Compiled, ResultCode};
use crate::module::PtxModule;

/// Compiles PTX for a device.
pub(super) fn compile(ptx: &str, options: &DeviceOptions) -> Compiled<PtxModule> {
    // A driver compiles all of a module as it loads it. A kernel with a form that the emulator does not know is refused when it
    // is launched, and only then.
    let wrong = |module: &PtxModule| module.check_all().find(|error| !error.is_form);
    let module = PtxModule::parse(ptx).and_then(|module| wrong(&module).map_or(Ok(module), Err));
    let module = module.map_err(|error| (ResultCode::InvalidPtx, error.to_string()))?;
    if !options.runs(module.target()) {
        let (major, minor) = options.capability;
        let text = format!("code for {} on a device of capability {major}.{minor}", module.target());
        return Err((ResultCode::NoBinary, text));
    }
    Ok(module)
}
