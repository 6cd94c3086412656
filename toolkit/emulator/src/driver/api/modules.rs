//! Module loading, module functions and module variables.

use super::argument::{Out, TextArgument, array, write_text};
use super::functions::functions;
use crate::driver::image::CodeImage;
use crate::driver::process::{Handle, create_in_current, handle, parts, with};
use crate::driver::result_code::{Result, ResultCode};
use crate::fault::{Fault, FaultKind};
use std::ffi::{c_char, c_void};

/// Compilation options that the emulator supports: the address and the size of the error log buffer.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;
/// The loading mode, by CUDA's numbers. Modules are compiled when they are loaded.
const EAGER: u32 = 1;

/// Loads code and returns the module's handle to the caller. On failure, passes the message to `log`.
pub(super) fn load(module: Out<Handle>, image: CodeImage, log: impl FnOnce(&str)) -> Result<()> {
    let mut why = String::new();
    let loaded = create_in_current(|context| {
        context.load_module(&image).map_err(|(code, text)| {
            context.record_refusal(Fault::of_call(FaultKind::Launch, "load of a module", text.clone()));
            why = text;
            code
        })
    });
    match loaded {
        Ok(loaded) => module.put(loaded),
        Err(code) => {
            log(&why);
            Err(code)
        }
    }
}

/// Compilation options and their values.
#[derive(Clone)]
pub(super) struct JitOptions {
    names: Vec<u32>,
    values: Vec<*mut c_void>,
}

impl JitOptions {
    /// Copies the options.
    ///
    /// # Safety
    /// Both arrays must have `count` elements.
    pub unsafe fn new(count: u32, names: *const u32, values: *const *mut c_void) -> Result<Self> {
        // SAFETY: this function's contract.
        let (names, values) = unsafe { (array(names, count as usize)?, array(values, count as usize)?) };
        Ok(Self { names, values })
    }

    fn value(&self, name: u32) -> Option<*mut c_void> {
        self.names.iter().position(|&other| other == name).map(|index| self.values[index])
    }

    /// Writes a message to the error log, if the options include one.
    ///
    /// # Safety
    /// The log buffer must have the size that the size option gives.
    pub unsafe fn log(&self, why: &str) {
        if let (Some(log), Some(room)) = (self.value(ERROR_LOG), self.value(ERROR_LOG_SIZE)) {
            // SAFETY: the log buffer has the given size. A size of zero writes nothing.
            let _ = unsafe { write_text(log.cast::<c_char>(), room.addr(), why) };
        }
    }
}

/// Returns the address and the size of a module's variable to the caller. Either output may be null.
pub(super) fn variable(pointer: Out<u64>, bytes: Out<usize>, module: Handle, name: TextArgument) -> Result<()> {
    let name = name.get()?;
    let (address, size) = with(module, |context, module| {
        let module = context.module(module)?.clone();
        let variable = module.variables.iter().find(|variable| variable.name == name).ok_or(ResultCode::NotFound)?;
        Ok((context.device().variable(&module, name).ok_or(ResultCode::NotFound)?, variable.size))
    })?;
    if !bytes.is_null() {
        bytes.put(size)?;
    }
    if pointer.is_null() { Ok(()) } else { pointer.put(address) }
}

functions! { module_functions($)
    fn cuModuleLoad(module: Out<Handle>, file: TextArgument) {
        load(module, CodeImage::from_file(file.get()?)?, |_| ())
    }

    fn cuModuleLoadData(module: Out<Handle>, image: *const c_void) {
        // SAFETY: the caller passes null, zero-terminated PTX, a cubin or a fatbin.
        load(module, unsafe { CodeImage::from_address(image) }?, |_| ())
    }

    fn cuModuleLoadFatBinary(module: Out<Handle>, image: *const c_void) {
        // SAFETY: the caller passes null or a fatbin.
        load(module, unsafe { CodeImage::from_address(image) }?, |_| ())
    }

    fn cuModuleLoadDataEx(
        module: Out<Handle>, image: *const c_void, count: u32, names: *const u32, values: *const *mut c_void,
    ) {
        // SAFETY: the caller guarantees that both arrays have `count` elements.
        let options = unsafe { JitOptions::new(count, names, values) }?;
        // SAFETY: the caller passes null, zero-terminated PTX, a cubin or a fatbin.
        let image = unsafe { CodeImage::from_address(image) }?;
        load(module, image, |why| {
            // SAFETY: the caller guarantees that the log buffer has the size that the size option gives.
            unsafe { options.log(why) }
        })
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        mode.put(EAGER)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle) {
        count.put(with(module, |context, module| Ok(context.module(module)?.entries().len() as u32))?)
    }

    fn cuModuleEnumerateFunctions(functions: *mut Handle, count: u32, module: Handle) {
        let ids = with(module, |context, module| {
            let loaded = context.module(module)?.clone();
            let names = loaded.entries().iter().take(count as usize);
            names.map(|entry| context.find_function(module, entry.name())).collect::<Result<Vec<u32>>>()
        })?;
        if functions.is_null() && !ids.is_empty() {
            return Err(ResultCode::InvalidValue);
        }
        for (index, id) in ids.into_iter().enumerate() {
            // SAFETY: the caller guarantees room for `count` handles, and at most `count` are written. The pointer is
            // not null.
            unsafe { functions.add(index).write(handle(parts(module).0, id)) };
        }
        Ok(())
    }

    fn cuModuleUnload(module: Handle) {
        with(module, |context, module| context.unload_module(module))
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: TextArgument) {
        let name = name.get()?;
        let id = with(module, |context, module| context.find_function(module, name))?;
        function.put(handle(parts(module).0, id))
    }

    fn cuModuleGetGlobal_v2(pointer: Out<u64>, bytes: Out<usize>, module: Handle, name: TextArgument) {
        variable(pointer, bytes, module, name)
    }
}
