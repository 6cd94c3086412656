//! The macro that defines functions of libcuda.

/// Defines functions of the driver and a list of them. A body gives a [`Result`].
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        /// The functions of this file.
        pub(super) const FUNCTIONS: &[(&str, *const std::ffi::c_void)] =
            &[$((stringify!($name), $name as *const std::ffi::c_void)),*];

        $(
            #[allow(non_snake_case, reason = "the driver's name")]
            unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
                let run = || -> $crate::driver::result_code::Result<()> { $body };
                run().err().unwrap_or($crate::driver::result_code::ResultCode::Success) as u32
            }
        )*
    };
}
pub(super) use functions;
