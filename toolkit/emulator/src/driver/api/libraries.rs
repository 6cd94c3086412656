//! Libraries and their kernels.

use super::argument::{Out, TextArgument};
use super::functions::functions;
use super::modules::JitOptions;
use crate::driver::image::CodeImage;
use crate::driver::libraries;
use crate::driver::process::Handle;
use crate::driver::result_code::ResultCode;
use std::ffi::{c_char, c_void};

functions! { library_functions($)
    fn cuLibraryLoadData(
        library: Out<Handle>, image: *const c_void, names: *const u32, values: *const *mut c_void, count: u32,
        _library_options: *const u32, _library_values: *const *mut c_void, _library_count: u32,
    ) {
        // SAFETY: the caller guarantees that both arrays have `count` elements.
        unsafe { JitOptions::new(count, names, values) }?;
        // SAFETY: the caller passes null, zero-terminated PTX, a cubin or a fatbin.
        library.put(libraries::load(unsafe { CodeImage::from_address(image) }?)?)
    }

    fn cuLibraryLoadFromFile(
        library: Out<Handle>, file: TextArgument, _names: *const u32, _values: *const *mut c_void, _count: u32,
        _library_options: *const u32, _library_values: *const *mut c_void, _library_count: u32,
    ) {
        library.put(libraries::load(CodeImage::from_file(file.get()?)?)?)
    }

    fn cuLibraryUnload(library: Handle) {
        libraries::unload(library)
    }

    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: TextArgument) {
        kernel.put(libraries::kernel(library, name.get()?)?)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: Handle) {
        count.put(libraries::kernels(library)?.len() as u32)
    }

    fn cuLibraryEnumerateKernels(kernels: *mut Handle, count: u32, library: Handle) {
        if kernels.is_null() {
            return Err(ResultCode::InvalidValue);
        }
        for (index, name) in libraries::kernels(library)?.iter().take(count as usize).enumerate() {
            let kernel = libraries::kernel(library, name)?;
            // SAFETY: the caller guarantees room for `count` handles, and at most `count` are written. The pointer is
            // not null.
            unsafe { kernels.add(index).write(kernel) };
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        module.put(libraries::module_of(library)?)
    }

    fn cuLibraryGetGlobal(pointer: Out<u64>, bytes: Out<usize>, library: Handle, name: TextArgument) {
        super::modules::variable(pointer, bytes, libraries::module_of(library)?, name)
    }

    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        libraries::library_of(kernel)?;
        function.put(libraries::function_of(kernel)?)
    }

    fn cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) {
        library.put(libraries::library_of(kernel)?)
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: Handle) {
        name.put(libraries::name_of(kernel)?)
    }

    fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: Handle, _device: i32) {
        super::kernels::attribute(value, attribute, kernel)
    }

    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: Handle, _device: i32) {
        super::kernels::set_attribute(kernel, attribute, value)
    }

    fn cuKernelSetCacheConfig(kernel: Handle, _config: u32, _device: i32) {
        libraries::library_of(kernel).map(|_| ())
    }

    fn cuKernelGetParamInfo(kernel: Handle, index: usize, offset: Out<usize>, size: Out<usize>) {
        super::kernels::parameter(kernel, index, offset, size)
    }
}
