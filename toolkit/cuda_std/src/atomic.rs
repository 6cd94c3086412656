//! Atomic read-modify-write operations on memory that several threads change. Each returns the previous value.
//!
//! Operations without a suffix are relaxed, and atomic for the whole device. They use volatile inline assembly: an
//! atomic is not a collective, but it must execute exactly as often as it is written.

macro_rules! atomics {
    ($($name:ident($ty:ty, $class:ident) = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        ///
        /// # Safety
        /// The address is valid and aligned. Until the kernel ends or threads synchronise, other threads access it only
        /// with atomics.
        #[inline(always)]
        pub unsafe fn $name(address: *mut $ty, value: $ty) -> $ty {
            device!((address, value) => {
                let old: $ty;
                // SAFETY: this function's contract requires a valid, aligned address that is accessed only with
                // atomics.
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
    add_u32(u32, reg32) = "atom.relaxed.gpu.add.u32", "Adds, wrapping on overflow.";
    add_u64(u64, reg64) = "atom.relaxed.gpu.add.u64", "Adds, wrapping on overflow.";
    add_f32(f32, reg32) = "atom.relaxed.gpu.add.f32", "Adds. Denormals are flushed to zero, and the order of additions is undefined.";
    min_u32(u32, reg32) = "atom.relaxed.gpu.min.u32", "Stores the minimum.";
    max_u32(u32, reg32) = "atom.relaxed.gpu.max.u32", "Stores the maximum.";
    and_u32(u32, reg32) = "atom.relaxed.gpu.and.b32", "Stores the bitwise AND.";
    or_u32(u32, reg32) = "atom.relaxed.gpu.or.b32", "Stores the bitwise OR.";
    exchange_u32(u32, reg32) = "atom.relaxed.gpu.exch.b32", "Replaces the value.";
    add_u32_acq_rel(u32, reg32) = "atom.acq_rel.gpu.add.u32", "Adds, wrapping on overflow. A thread that reads the sum with another acquiring add sees all writes before this one.";
}

/// Replaces the value with `new` if it equals `current`.
///
/// # Safety
/// The address is valid and aligned. Until the kernel ends or threads synchronise, other threads access it only with
/// atomics.
#[inline(always)]
pub unsafe fn compare_exchange_u32(address: *mut u32, current: u32, new: u32) -> u32 {
    device!((address, current, new) => {
        let old: u32;
        // SAFETY: this function's contract requires a valid, aligned address that is accessed only with atomics.
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
