//! Argument types of libcuda functions: output pointers, strings and arrays.

use crate::driver::result_code::{Result, ResultCode};
use std::ffi::{CStr, c_char};

/// An output pointer of a libcuda function: null or valid for a write.
///
/// The field is private, so a value exists only as an argument of such a function. The functions are unsafe to call
/// because of it.
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
        // SAFETY: the pointer is an argument of a libcuda function, whose caller guarantees that it is null or valid
        // for a write. It is not null.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// A zero-terminated string argument of a libcuda function: null or valid for reads up to the zero.
///
/// As with [`Out`], a value exists only as an argument of such a function.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextArgument(*const c_char);

impl TextArgument {
    pub(in crate::driver) fn get<'a>(self) -> Result<&'a str> {
        if self.0.is_null() {
            return Err(ResultCode::InvalidValue);
        }
        // SAFETY: the pointer is an argument of a libcuda function, whose caller guarantees that it is null or a
        // zero-terminated string that lives until the function returns. It is not null, and no function keeps the text.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| ResultCode::InvalidValue)
    }
}

/// Writes as much of a text as fits in `room` bytes, including a terminating zero.
///
/// # Safety
/// `to` must be null or valid for writes of `room` bytes.
pub(super) unsafe fn write_text(to: *mut c_char, room: usize, text: &str) -> Result<()> {
    if to.is_null() || room == 0 {
        return Err(ResultCode::InvalidValue);
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: `to` is valid for writes of `room` bytes, and at most `room - 1` bytes and a zero are written. `text` is
    // owned by the emulator, so the two do not overlap.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        to.add(bytes.len()).write(0);
    }
    Ok(())
}

/// Copies the elements of an array argument.
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
