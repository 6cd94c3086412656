//! `device!`: the one place where the builds for device and host differ.

/// `device!((a, b) => expression)`: the expression on the device; on the host, where none of its intrinsics exist, the
/// named arguments are used up and the call panics. For functions of single instructions, here and in crates of
/// kernels.
///
/// ```
/// use cuda_std::device;
///
/// fn lane_above(lane: u32) -> u32 {
///     device!((lane) => lane + 1)
/// }
/// assert!(std::panic::catch_unwind(|| lane_above(3)).is_err(), "device only");
/// ```
#[macro_export]
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
