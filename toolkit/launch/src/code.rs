//! Results of the driver's functions.

use cust::error::CudaError;
use cust::sys::{self, CUresult};
use std::ffi::{CStr, c_char, c_uint};
use std::fmt;

/// A result code of the driver: what a call failed with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(CUresult);

impl Code {
    /// CUDA's number for it.
    pub fn number(self) -> u32 {
        self.0 as u32
    }

    /// CUDA's name for it, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub fn name(self) -> String {
        self.ask(sys::cuGetErrorName).unwrap_or_else(|| format!("{:?}", self.0))
    }

    fn ask(self, about: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: there is a place for the answer, and answers are strings that are never freed.
        let answered = unsafe { about(self.0, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: as above.
        answered.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// A result that a driver gave. Codes later than the bindings are unknown to them, and would be no value of their type.
pub(crate) fn result_of(code: c_uint) -> CUresult {
    match code {
        0..=8
        | 34
        | 100..=102
        | 200..=202
        | 205..=224
        | 300..=304
        | 400
        | 401
        | 500
        | 600
        | 700..=705
        | 708..=720
        | 800..=808
        | 900..=911 => {
            // SAFETY: exactly the values that the type has.
            unsafe { std::mem::transmute::<c_uint, CUresult>(code) }
        }
        _ => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

/// Whether a function of `cust::sys` succeeded.
pub(crate) fn check(code: CUresult) -> Result<(), Code> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Code(code)) }
}

/// The answer to a query of whether work is done.
pub(crate) fn is_done(code: CUresult) -> Result<bool, Code> {
    if code == CUresult::CUDA_ERROR_NOT_READY { Ok(false) } else { check(code).map(|()| true) }
}

impl From<CudaError> for Code {
    fn from(error: CudaError) -> Self {
        // The numbers are the driver's, except for what `cust` itself finds wrong with a size or a pointer.
        Self(result_of(match error {
            CudaError::InvalidMemoryAllocation => CudaError::InvalidValue as u32,
            error => error as u32,
        }))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.ask(sys::cuGetErrorString).unwrap_or_else(|| "unknown error".to_owned());
        write!(f, "{text} ({})", self.name())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl std::error::Error for Code {}
