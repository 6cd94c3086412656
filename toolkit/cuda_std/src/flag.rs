//! Words by which devices, and the host, tell each other how far they are: strong loads and stores, at the scope of the
//! system.
//!
//! What a thread wrote, or saw written, before [`store_release`] is visible to the thread that reads the stored value by
//! [`load_acquire`], on whichever device it runs; and by way of barriers to the other threads of its block. They are
//! volatile assembly: a flag must be looked at as often as it is written here, and nothing may be moved past it.

macro_rules! loads {
    ($($name:ident = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// The address is valid, aligned, and of global memory: a device's, or the host's if that is page-locked and mapped.
        /// Meanwhile others access it only as flags.
        #[inline(always)]
        pub unsafe fn $name(flag: *const u32) -> u32 {
            device!((flag) => {
                let value: u32;
                // SAFETY: the address is valid, aligned and used only as a flag, by this function's contract.
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
    load_acquire = "ld.acquire.sys.global.b32", "Reads a flag, and then sees what its writer had released.";
    load_relaxed = "ld.relaxed.sys.global.b32", "Reads a flag that stands for nothing else than itself.";
}

/// Writes a flag after everything that this thread wrote, or saw written, before.
///
/// `st.release.sys.global.b32`
///
/// # Safety
/// As for [`load_acquire`].
#[inline(always)]
pub unsafe fn store_release(flag: *mut u32, value: u32) {
    device!((flag, value) => {
        // SAFETY: the address is valid, aligned and used only as a flag, by this function's contract.
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
