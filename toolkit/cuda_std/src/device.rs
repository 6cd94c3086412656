//! `device!`: the only macro whose expansion differs between the builds for device and host.

/// `device!((a, b) => expression)` evaluates the expression on the device. On the host, where no GPU intrinsics exist,
/// it marks the named arguments as used and panics. It is meant for functions that wrap single instructions, here and
/// in kernel crates.
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
