//! Arguments of the functions of libcuda: where results go, and texts.

use crate::driver::result_code::{Result, ResultCode};
use std::ffi::{CStr, c_char};

/// Where a function of the driver puts a result.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub fn put(self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(ResultCode::InvalidValue);
        }
        // SAFETY: such values only come in as arguments of the functions of the driver, whose callers vouch for them.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// A string that ends with a zero, given to a function of the driver.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Text(*const c_char);

impl Text {
    pub fn get<'a>(self) -> Result<&'a str> {
        if self.0.is_null() {
            return Err(ResultCode::InvalidValue);
        }
        // SAFETY: as for `Out`; what is read from it is used before the function returns.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| ResultCode::InvalidValue)
    }
}

/// Writes as much of a text as there is room for, and a zero.
pub(super) fn write_text(to: *mut c_char, room: usize, text: &str) -> Result<()> {
    if to.is_null() || room == 0 {
        return Err(ResultCode::InvalidValue);
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: as for `Out`; the caller says that there is room for this many bytes.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        to.add(bytes.len()).write(0);
    }
    Ok(())
}
