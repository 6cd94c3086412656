//! Arguments of the functions of libcuda: where results go, and texts.

use crate::driver::result_code::{Result, ResultCode};
use std::ffi::{CStr, c_char};

/// Where a function of libcuda puts a result: a pointer that is null or valid for a write.
///
/// One is made only when such a function is called, since the field is private. The functions are unsafe to call for this
/// reason.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(in crate::driver) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(in crate::driver) fn put(self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(ResultCode::InvalidValue);
        }
        // SAFETY: the pointer is an argument of a function of libcuda, which requires that it is null or valid for a write. It
        // is not null.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// A string that ends with a zero, given to a function of libcuda: a pointer that is null or valid for reads up to the zero.
///
/// One is made only when such a function is called, as for [`Out`].
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextArgument(*const c_char);

impl TextArgument {
    pub(in crate::driver) fn get<'a>(self) -> Result<&'a str> {
        if self.0.is_null() {
            return Err(ResultCode::InvalidValue);
        }
        // SAFETY: the pointer is an argument of a function of libcuda, which requires that it is null or a string with a zero at
        // its end that lives until the function returns. It is not null, and the functions keep no text.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| ResultCode::InvalidValue)
    }
}

/// Writes as much of a text as there is room for, and a zero.
///
/// # Safety
/// `to` must be null or valid for writes of `room` bytes.
pub(super) unsafe fn write_text(to: *mut c_char, room: usize, text: &str) -> Result<()> {
    if to.is_null() || room == 0 {
        return Err(ResultCode::InvalidValue);
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: `to` is valid for writes of `room` bytes, and at most `room - 1` bytes and a zero are written. `text` is memory of
    // the emulator, which does not overlap them.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        to.add(bytes.len()).write(0);
    }
    Ok(())
}

/// The elements of an array that a caller gave.
///
/// # Safety
/// `from` must be null or valid for reads of `count` elements.
pub(super) unsafe fn array<T: Copy>(from: *const T, count: usize) -> Result<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if from.is_null() {
        return Err(ResultCode::InvalidValue);
    }
    // SAFETY: `from` is not null, so it is valid for reads of `count` elements, and `index` is less than `count`.
    Ok((0..count).map(|index| unsafe { from.add(index).read_unaligned() }).collect())
}
