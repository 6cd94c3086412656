//! Read-modify-write of memory that several threads change. All of them return the value that was there before.
//!
//! Without a suffix they are relaxed, and hold over the whole device. They are volatile assembly: an atomic is no
//! collective, but it must happen exactly as often as it is written.

macro_rules! atomics {
    ($($name:ident($ty:ty, $class:ident) = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        ///
        /// # Safety
        /// The address is valid and aligned, and other threads access it only by atomics meanwhile.
        #[inline(always)]
        pub unsafe fn $name(address: *mut $ty, value: $ty) -> $ty {
            device!((address, value) => {
                let old: $ty;
                // SAFETY: the address is valid, aligned and used only by atomics meanwhile, by this function's
                // contract.
                unsafe {
                    core::arch::asm!(
                        concat!($instruction, " {0}, [{1}], {2};"),
                        out($class) old,
                        in(reg64) address,
                        in($class) value,
                        options(nostack, preserves_flags),
                    );
                }
                old
            })
        }
    )*};
}

atomics! {
    add_u32(u32, reg32) = "atom.relaxed.gpu.add.u32", "Adds, wrapping.";
    add_u64(u64, reg64) = "atom.relaxed.gpu.add.u64", "Adds, wrapping.";
    add_f32(f32, reg32) = "atom.relaxed.gpu.add.f32", "Adds; denormals count as zero, and the order of additions is undefined.";
    min_u32(u32, reg32) = "atom.relaxed.gpu.min.u32", "Keeps the smaller.";
    max_u32(u32, reg32) = "atom.relaxed.gpu.max.u32", "Keeps the greater.";
    and_u32(u32, reg32) = "atom.relaxed.gpu.and.b32", "Bitwise and.";
    or_u32(u32, reg32) = "atom.relaxed.gpu.or.b32", "Bitwise or.";
    exchange_u32(u32, reg32) = "atom.relaxed.gpu.exch.b32", "Replaces.";
    add_u32_acq_rel(u32, reg32) = "atom.acq_rel.gpu.add.u32", "Adds, wrapping; what was written before it is visible to whoever sees the sum by another acquiring add.";
}

/// Replaces `current` by `new`, if that is what is there.
///
/// # Safety
/// The address is valid and aligned, and other threads access it only by atomics meanwhile.
#[inline(always)]
pub unsafe fn compare_exchange_u32(address: *mut u32, current: u32, new: u32) -> u32 {
    device!((address, current, new) => {
        let old: u32;
        // SAFETY: the address is valid, aligned and used only by atomics meanwhile, by this function's contract.
        unsafe {
            core::arch::asm!(
                "atom.relaxed.gpu.cas.b32 {0}, [{1}], {2}, {3};",
                out(reg32) old,
                in(reg64) address,
                in(reg32) current,
                in(reg32) new,
                options(nostack, preserves_flags),
            );
        }
        old
    })
}
