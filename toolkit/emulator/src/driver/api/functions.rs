//! The macro that defines functions of libcuda.

/// Defines functions of the driver, a list of them, and a macro of the given name that hands their names to another macro:
/// `list!(export)` is `export! { cuInit cuDeviceGet ... }`. `$` must be given, since a macro that makes a macro has no other
/// way to write it. A body gives a [`Result`](crate::driver::result_code::Result).
macro_rules! functions {
    ($list:ident($dollar:tt) $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        /// The functions of this file.
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
