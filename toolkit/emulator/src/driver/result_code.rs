//! The driver's result codes.

use crate::fault::FaultKind;

macro_rules! codes {
    ($($variant:ident = $number:literal $name:literal $text:literal,)*) => {
        /// The code that a failed call returns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(super) enum ResultCode {
            $($variant = $number,)*
        }

        impl ResultCode {
            const ALL: &[(u32, &std::ffi::CStr, &std::ffi::CStr)] = &[$(($number, $name, $text),)*];
        }
    };
}

codes! {
    Success = 0 c"CUDA_SUCCESS" c"no error",
    InvalidValue = 1 c"CUDA_ERROR_INVALID_VALUE" c"invalid argument",
    OutOfMemory = 2 c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory",
    NotInitialized = 3 c"CUDA_ERROR_NOT_INITIALIZED" c"the driver is not initialised",
    InvalidDevice = 101 c"CUDA_ERROR_INVALID_DEVICE" c"no such device",
    InvalidImage = 200 c"CUDA_ERROR_INVALID_IMAGE" c"the image is not valid code",
    InvalidContext = 201 c"CUDA_ERROR_INVALID_CONTEXT" c"no context is current, or it is the wrong one",
    NoBinary = 209 c"CUDA_ERROR_NO_BINARY_FOR_GPU" c"the code is for another kind of GPU",
    InvalidPtx = 218 c"CUDA_ERROR_INVALID_PTX" c"the PTX cannot be compiled",
    PeerAccessUnsupported = 217 c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" c"the devices do not support peer access",
    FileNotFound = 301 c"CUDA_ERROR_FILE_NOT_FOUND" c"the file cannot be read",
    InvalidHandle = 400 c"CUDA_ERROR_INVALID_HANDLE" c"no such object",
    IllegalState = 401 c"CUDA_ERROR_ILLEGAL_STATE" c"the object is in a state that does not permit this",
    NotFound = 500 c"CUDA_ERROR_NOT_FOUND" c"the name was not found",
    NotReady = 600 c"CUDA_ERROR_NOT_READY" c"the work is not finished",
    IllegalAddress = 700 c"CUDA_ERROR_ILLEGAL_ADDRESS" c"a kernel accessed memory that is not allocated",
    LaunchTimeout = 702 c"CUDA_ERROR_LAUNCH_TIMEOUT" c"a kernel did not end",
    PeerAccessAlreadyEnabled = 704 c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" c"access to the peer was enabled before",
    PeerAccessNotEnabled = 705 c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" c"access to the peer was not enabled",
    CooperativeTooLarge = 720 c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" c"not all blocks of the launch fit the device",
    Assert = 710 c"CUDA_ERROR_ASSERT" c"an assertion in a kernel failed",
    MisalignedAddress = 716 c"CUDA_ERROR_MISALIGNED_ADDRESS" c"a kernel used a misaligned address",
    LaunchFailed = 719 c"CUDA_ERROR_LAUNCH_FAILED" c"a kernel failed",
    NotPermitted = 800 c"CUDA_ERROR_NOT_PERMITTED" c"not permitted in a host function",
    NotSupported = 801 c"CUDA_ERROR_NOT_SUPPORTED" c"not supported",
    CaptureUnsupported = 900 c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" c"not permitted while a stream is captured",
    CaptureInvalidated = 901 c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" c"an earlier error ended the capture",
    CaptureUnmatched = 903 c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" c"the capture began on another stream",
    CaptureUnjoined = 904 c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED" c"a forked stream was not joined before the end",
    CaptureIsolation = 905 c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION" c"the capture would depend on work outside of it",
    CaptureImplicit = 906 c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" c"the default stream would wait for a captured one",
    CapturedEvent = 907 c"CUDA_ERROR_CAPTURED_EVENT" c"the event was recorded in a captured stream",
    CaptureWrongThread = 908 c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" c"the capture began on another thread",
    GraphUpdateFailure = 910 c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" c"the graphs differ in more than arguments",
    Unknown = 999 c"CUDA_ERROR_UNKNOWN" c"an environment variable has an invalid value",
}

impl ResultCode {
    /// The code that CUDA would return for a fault.
    pub fn from_fault(kind: FaultKind) -> Self {
        match kind {
            FaultKind::Launch => Self::InvalidValue,
            FaultKind::OutOfBounds => Self::IllegalAddress,
            FaultKind::Misaligned => Self::MisalignedAddress,
            FaultKind::Deadlock | FaultKind::InstructionLimit => Self::LaunchTimeout,
            FaultKind::Assertion => Self::Assert,
            FaultKind::Unsupported => Self::NotSupported,
            _ => Self::LaunchFailed,
        }
    }

    /// The name and description of a code, if the emulator ever returns it.
    pub fn describe(number: u32) -> Option<(&'static std::ffi::CStr, &'static std::ffi::CStr)> {
        Self::ALL.iter().find(|(code, ..)| *code == number).map(|&(_, name, text)| (name, text))
    }
}

/// The result type of driver functions.
pub(super) type Result<T> = std::result::Result<T, ResultCode>;

/// The result of compiling or reading code. The error includes a message.
pub(super) type Compiled<T> = std::result::Result<T, (ResultCode, String)>;
