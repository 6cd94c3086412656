//! Result codes of driver functions.

use cust::error::CudaError;
use cust::sys::{self, CUresult};
use std::ffi::{CStr, c_char, c_uint};
use std::fmt;

/// The result code of a driver call that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(CUresult);

impl Code {
    /// CUDA's number for the code.
    pub fn number(self) -> u32 {
        self.0 as u32
    }

    /// CUDA's name for the code, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub fn name(self) -> String {
        self.ask(sys::cuGetErrorName).unwrap_or_else(|| format!("{:?}", self.0))
    }

    fn ask(self, about: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: the pointer is valid for the result, and the driver never frees these strings.
        let answered = unsafe { about(self.0, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: as above.
        answered.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// Converts a driver's result. Codes that the bindings do not know become `CUDA_ERROR_UNKNOWN`, because they would be
/// invalid values of the enum.
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
            // SAFETY: the pattern lists exactly the values of the enum.
            unsafe { std::mem::transmute::<c_uint, CUresult>(code) }
        }
        _ => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

/// Converts a result of a `cust::sys` function.
pub(crate) fn check(code: CUresult) -> Result<(), Code> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Code(code)) }
}

/// Converts the result of a query: whether the work is done.
pub(crate) fn is_done(code: CUresult) -> Result<bool, Code> {
    if code == CUresult::CUDA_ERROR_NOT_READY { Ok(false) } else { check(code).map(|()| true) }
}

impl From<CudaError> for Code {
    fn from(error: CudaError) -> Self {
        // The numbers are the driver's, except for errors that `cust` itself finds in a size or pointer.
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
