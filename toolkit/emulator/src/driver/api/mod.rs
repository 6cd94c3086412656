//! The functions of libcuda, by their names and with their signatures.
//!
//! Each is a thin shell over [`Context`](super::context::Context) and [`process`](super::process).

mod contexts;
mod graphs;
mod memory;
mod modules;
mod streams;

use super::code::{Code, Result};
use std::ffi::{CStr, c_char, c_void};

/// Where a function of the driver puts a result.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Out<T>(*mut T);

impl<T> Out<T> {
    fn is_null(&self) -> bool {
        self.0.is_null()
    }

    fn put(self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: such values only come in as arguments of the functions of the driver, whose callers vouch for them.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// A string that ends with a zero, given to a function of the driver.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Text(*const c_char);

impl Text {
    fn get<'a>(self) -> Result<&'a str> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: as for `Out`; what is read from it is used before the function returns.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| Code::InvalidValue)
    }
}

/// Writes as much of a text as there is room for, and a zero.
fn write_text(to: *mut c_char, room: usize, text: &str) -> Result<()> {
    if to.is_null() || room == 0 {
        return Err(Code::InvalidValue);
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: as for `Out`; the caller says that there is room for this many bytes.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        to.add(bytes.len()).write(0);
    }
    Ok(())
}

/// Defines functions of the driver and a list of them. A body gives a [`Result`].
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        /// The functions of this file.
        pub(super) const FUNCTIONS: &[(&str, *const std::ffi::c_void)] =
            &[$((stringify!($name), $name as *const std::ffi::c_void)),*];

        $(
            #[allow(non_snake_case, reason = "the driver's name")]
            unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
                let run = || -> $crate::driver::code::Result<()> { $body };
                run().err().unwrap_or($crate::driver::code::Code::Success) as u32
            }
        )*
    };
}
use functions;

/// The address of the function of this name, if the emulator has it.
pub(super) fn symbol(name: &str) -> Option<*const c_void> {
    [contexts::FUNCTIONS, modules::FUNCTIONS, memory::FUNCTIONS, streams::FUNCTIONS, graphs::FUNCTIONS]
        .into_iter()
        .flatten()
        .find(|(known, _)| *known == name)
        .map(|&(_, address)| address)
}
