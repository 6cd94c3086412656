//! The macro that defines libcuda functions.

/// Defines driver functions, a list of them, and a macro named `$list` that passes their names to another macro:
/// `list!(export)` expands to `export! { cuInit cuDeviceGet ... }`. The caller must pass `$`, because a macro that
/// defines a macro cannot write it otherwise. Each body evaluates to a [`Result`](crate::driver::result_code::Result).
macro_rules! functions {
    ($list:ident($dollar:tt) $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        /// The functions defined in this file.
        pub(super) const FUNCTIONS: &[(&str, *const std::ffi::c_void)] =
            &[$((stringify!($name), $name as *const std::ffi::c_void)),*];

        #[doc(hidden)]
        #[macro_export]
        macro_rules! $list {
            ($dollar export:ident) => { $dollar export! { $($name)* } };
        }

        $(
            #[doc(hidden)]
            #[allow(non_snake_case, reason = "the driver's name")]
            #[allow(clippy::missing_safety_doc, reason = "the driver's documentation says what it requires")]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
                let run = || -> $crate::driver::result_code::Result<()> { $body };
                run().err().unwrap_or($crate::driver::result_code::ResultCode::Success) as u32
            }
        )*
    };
}
pub(super) use functions;
