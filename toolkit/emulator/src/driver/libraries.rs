//! Libraries: code that is loaded once for all contexts. Each context loads the module when it first uses the library.

use super::compile::compile;
use super::image::CodeImage;
use super::notice::{self, Notice};
use super::process::{self, Handle, handle, parts, with};
use super::result_code::{Result, ResultCode};
use super::session::Session;
use crate::fault::{Fault, FaultKind};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the place of the context id in handles of libraries and their kernels. It is below 2^31 so that handles are
/// non-negative as signed integers, which Python bindings expect.
const LIBRARIES: u32 = i32::MAX as u32 - 1;

/// Code that is loaded for all contexts.
struct Library {
    image: CodeImage,
    /// The names of its kernels.
    kernels: Vec<String>,
    /// The library's module id in each context, by context id.
    modules: HashMap<u32, u32>,
}

/// A kernel of a library.
struct LibraryKernel {
    library: u32,
    name: CString,
}

#[derive(Default)]
struct Libraries {
    libraries: HashMap<u32, Library>,
    kernels: HashMap<u32, LibraryKernel>,
    next: u32,
}

static ALL: Mutex<Option<Libraries>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Libraries>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_library<T>(library: Handle, action: impl FnOnce(&mut Library) -> Result<T>) -> Result<T> {
    let (owner, id) = parts(library);
    let mut all = lock();
    let found = all.get_or_insert_default().libraries.get_mut(&id).filter(|_| owner == LIBRARIES);
    action(found.ok_or(ResultCode::InvalidHandle)?)
}

/// Loads a library and checks its code.
pub(super) fn load(image: CodeImage) -> Result<Handle> {
    let options = process::device(0)?;
    let compiled = image.ptx(&options).and_then(|ptx| compile(&ptx, &options));
    let module = compiled.map_err(|(code, why)| {
        notice::notify(Notice::Refusal(&Fault::of_call(FaultKind::Launch, "load of a library", why)));
        code
    })?;
    let kernels = module.entries().iter().map(|entry| entry.name().to_owned()).collect();
    let mut all = lock();
    let all = all.get_or_insert_default();
    all.next += 1;
    all.libraries.insert(all.next, Library { image, kernels, modules: HashMap::new() });
    Ok(handle(LIBRARIES, all.next))
}

/// Unloads a library from all contexts.
pub(super) fn unload(library: Handle) -> Result<()> {
    let modules = with_library(library, |library| Ok(std::mem::take(&mut library.modules)))?;
    let id = parts(library).1;
    if let Some(all) = lock().as_mut() {
        all.libraries.remove(&id);
        all.kernels.retain(|_, kernel| kernel.library != id);
    }
    for (context, module) in modules {
        // The context may no longer exist.
        let _ = with(handle(context, module), |context, module| context.unload_module(module));
    }
    Ok(())
}

/// Returns the names of a library's kernels.
pub(super) fn kernels(library: Handle) -> Result<Vec<String>> {
    with_library(library, |library| Ok(library.kernels.clone()))
}

/// Returns the handle of a library's kernel.
pub(super) fn kernel(library: Handle, name: &str) -> Result<Handle> {
    let exists = with_library(library, |library| Ok(library.kernels.iter().any(|kernel| kernel == name)))?;
    if !exists {
        return Err(ResultCode::NotFound);
    }
    let id = parts(library).1;
    let mut all = lock();
    let all = all.get_or_insert_default();
    let matches = |kernel: &LibraryKernel| kernel.library == id && kernel.name.as_bytes() == name.as_bytes();
    if let Some((&existing, _)) = all.kernels.iter().find(|(_, kernel)| matches(kernel)) {
        return Ok(handle(LIBRARIES, existing));
    }
    let name = CString::new(name).map_err(|_| ResultCode::NotFound)?;
    all.next += 1;
    all.kernels.insert(all.next, LibraryKernel { library: id, name });
    Ok(handle(LIBRARIES, all.next))
}

fn with_kernel<T>(kernel: Handle, action: impl FnOnce(&LibraryKernel) -> T) -> Result<T> {
    let (owner, id) = parts(kernel);
    let all = lock();
    let found = all.as_ref().and_then(|all| all.kernels.get(&id)).filter(|_| owner == LIBRARIES);
    found.map(action).ok_or(ResultCode::InvalidHandle)
}

/// The library that a kernel belongs to.
pub(super) fn library_of(kernel: Handle) -> Result<Handle> {
    with_kernel(kernel, |kernel| handle(LIBRARIES, kernel.library))
}

/// A kernel's name. The pointer is valid while the library is loaded.
pub(super) fn name_of(kernel: Handle) -> Result<*const std::ffi::c_char> {
    with_kernel(kernel, |kernel| kernel.name.as_ptr())
}

/// Returns the library's module in the current context, loading it first if needed.
pub(super) fn module_of(library: Handle) -> Result<Handle> {
    let context = process::with_current(|context| Ok(context.id))?;
    let (existing, image) = with_library(library, |library| {
        let existing = library.modules.get(&context).copied();
        Ok((existing, library.image.clone()))
    })?;
    if let Some(existing) = existing {
        return Ok(handle(context, existing));
    }
    let loaded = process::with_id(context, |context| context.load_module(&image).map_err(|(code, _)| code))?;
    // If another thread loaded the module first, use that one.
    with_library(library, |library| Ok(handle(context, *library.modules.entry(context).or_insert(loaded))))
}

/// Resolves a handle to a function. A library's kernel resolves to its function in the current context.
pub(super) fn function_of(function: Handle) -> Result<Handle> {
    if parts(function).0 != LIBRARIES {
        return Ok(function);
    }
    let (library, name) = with_kernel(function, |kernel| (handle(LIBRARIES, kernel.library), kernel.name.clone()))?;
    let module = module_of(library)?;
    let name: &CStr = &name;
    let name = name.to_str().map_err(|_| ResultCode::NotFound)?;
    let id = with(module, |context, module| context.find_function(module, name))?;
    Ok(handle(parts(module).0, id))
}

/// Runs an action on a function or a library's kernel.
pub(super) fn with_function<T>(function: Handle, action: impl FnOnce(&mut Session<'_>, u32) -> Result<T>) -> Result<T> {
    with(function_of(function)?, action)
}
