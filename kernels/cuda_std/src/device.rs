//! The one place where the two builds part.

/// `device!((a, b) => expression)`: the expression on the device; on the host, where none of its intrinsics exist, the
/// named arguments are used up and the call panics.
macro_rules! device {
    (($($argument:expr),*) => $body:expr) => {{
        #[cfg(target_arch = "nvptx64")]
        {
            $body
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            $(let _ = &$argument;)*
            $crate::device_only()
        }
    }};
}
