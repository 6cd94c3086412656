//! Memory that the threads of a block share. For arrays of fixed size see [`shared_array!`](crate::shared_array).

#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 128 .b8 quire_dynamic_shared[];");

/// Returns the address of the block's dynamic shared memory, aligned to 128 bytes. The launch sets its size.
#[inline(always)]
pub fn dynamic_shared_mem<T>() -> *mut T {
    device!(() => {
        let address: *mut T;
        // SAFETY: computes an address and accesses no memory.
        unsafe {
            core::arch::asm!(
                "cvta.shared.u64 {0}, quire_dynamic_shared;",
                out(reg64) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        address
    })
}

/// Converts a pointer into shared memory to the 32-bit offset that instructions with a `.shared` operand take.
#[inline(always)]
pub fn shared_offset<T>(pointer: *const T) -> u32 {
    device!((pointer) => {
        let offset: u64;
        // SAFETY: converts an address and accesses no memory.
        unsafe {
            core::arch::asm!(
                "cvta.to.shared.u64 {0}, {1};",
                out(reg64) offset,
                in(reg64) pointer,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        offset as u32
    })
}
