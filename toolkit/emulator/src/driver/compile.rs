//! Compiles PTX when a program loads it, as a driver does.

use super::options::DeviceOptions;
use super::result_code::{Compiled, ResultCode};
use crate::module::PtxModule;
use std::sync::{Mutex, PoisonError};

/// The capacity of the module cache. Programs, and tests above all, load the same few modules again and again.
const CAPACITY: usize = 4;

/// A cache of compiled texts with their modules, least recently used first.
struct ModuleCache(Vec<(String, PtxModule)>);

static CACHE: Mutex<ModuleCache> = Mutex::new(ModuleCache(Vec::new()));

impl ModuleCache {
    /// Finds the module of a text and returns a copy with variables of its own.
    fn find(&mut self, ptx: &str) -> Option<PtxModule> {
        let at = self.0.iter().position(|(text, _)| text == ptx)?;
        self.0[at..].rotate_left(1);
        self.0.last().map(|(_, module)| module.again())
    }

    /// Adds a module. If the cache is full, evicts the least recently used one.
    fn insert(&mut self, ptx: &str, module: &PtxModule) {
        if self.0.len() == CAPACITY {
            self.0.remove(0);
        }
        self.0.push((ptx.to_string(), module.again()));
    }
}

/// Compiles PTX for a device, or takes the module from the cache.
pub(super) fn compile(ptx: &str, options: &DeviceOptions) -> Compiled<PtxModule> {
    // As in a driver, loading compiles the whole module. A kernel with an instruction form that the emulator does not
    // support is refused only when it is launched.
    let wrong = |module: &PtxModule| module.check_all().find(|error| !error.is_form);
    let cache = || CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let found = cache().find(ptx);
    let module = match found {
        Some(module) => module,
        None => {
            let module = PtxModule::parse(ptx).and_then(|module| wrong(&module).map_or(Ok(module), Err));
            let module = module.map_err(|error| (ResultCode::InvalidPtx, error.to_string()))?;
            cache().insert(ptx, &module);
            module
        }
    };
    if !options.runs(module.target()) {
        let (major, minor) = options.capability;
        let text = format!("code for {} on a device of capability {major}.{minor}", module.target());
        return Err((ResultCode::NoBinary, text));
    }
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_modules_have_their_own_variables() {
        let text = |kernel: usize| {
            format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.global .u32 v;\n.visible .entry k{kernel}() {{ ret; }}\n"
            )
        };
        let module = |kernel: usize| PtxModule::parse(&text(kernel)).unwrap();
        let mut cache = ModuleCache(Vec::new());
        assert!(cache.find(&text(0)).is_none());
        let first = module(0);
        cache.insert(&text(0), &first);
        let again = cache.find(&text(0)).unwrap();
        assert!(std::ptr::eq(first.entries(), again.entries()));
        let mut device = crate::EmulatedDevice::new();
        let places = [&first, &again].map(|module| device.variable(module, "v").unwrap());
        assert_ne!(places[0], places[1]);
        // The least recently used module is evicted.
        (1..=CAPACITY).for_each(|kernel| {
            assert!(cache.find(&text(0)).is_some());
            cache.insert(&text(kernel), &module(kernel));
        });
        assert!(cache.find(&text(0)).is_some() && cache.find(&text(1)).is_none());
    }
}
