//! Flags that devices and the host use to signal progress to each other: strong loads and stores at system scope.
//!
//! Suppose that one thread stores a value with [`store_release`], and another reads it with [`load_acquire`] on any
//! device. Then the reader sees everything that the writer wrote, or saw written, before the store. After a barrier the
//! other threads of the reader's block see it, too. These functions are volatile inline assembly: a flag must be read
//! exactly as often as written here, and no access may move past it.

macro_rules! loads {
    ($($name:ident = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// The address is valid, aligned and in global memory: device memory, or host memory that is page-locked and
        /// mapped. While it is used as a flag, it is accessed only with these functions, or atomically by the host.
        #[inline(always)]
        pub unsafe fn $name(flag: *const u32) -> u32 {
            device!((flag) => {
                let value: u32;
                // SAFETY: this function's contract requires a valid, aligned address that is accessed only as a flag.
                unsafe {
                    core::arch::asm!(
                        concat!($instruction, " {0}, [{1}];"),
                        out(reg32) value,
                        in(reg64) flag,
                        options(nostack, preserves_flags),
                    );
                }
                value
            })
        }
    )*};
}

loads! {
    load_acquire = "ld.acquire.sys.global.b32", "Reads a flag. Later reads see everything that the flag's writer released.";
    load_relaxed = "ld.relaxed.sys.global.b32", "Reads a flag without ordering any other access.";
}

/// Writes a flag after everything that this thread wrote, or saw written, before this call.
///
/// `st.release.sys.global.b32`
///
/// # Safety
/// As for [`load_acquire`].
#[inline(always)]
pub unsafe fn store_release(flag: *mut u32, value: u32) {
    device!((flag, value) => {
        // SAFETY: this function's contract requires a valid, aligned address that is accessed only as a flag.
        unsafe {
            core::arch::asm!(
                "st.release.sys.global.b32 [{0}], {1};",
                in(reg64) flag,
                in(reg32) value,
                options(nostack, preserves_flags),
            );
        }
    })
}
