//! Fences between the two ways to memory: the *generic* one of ordinary loads and stores, and the *asynchronous* one of
//! bulk copies, tensor copies and `wgmma`. Hopper.
//!
//! What threads stored is seen by the asynchronous way only behind a fence of theirs. The other direction needs none: who
//! waits for a copy sees what it brought.

macro_rules! fences {
    ($($name:ident = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        #[inline(always)]
        pub fn $name() {
            device!(() => {
                // SAFETY: a fence orders memory accesses and makes none.
                unsafe { core::arch::asm!(concat!($instruction, ";"), options(nostack, preserves_flags)) }
            })
        }
    )*};
}

fences! {
    proxy_async = "fence.proxy.async", "For all memory.";
    proxy_async_shared = "fence.proxy.async.shared::cta", "For the block's shared memory.";
    proxy_async_global = "fence.proxy.async.global", "For global memory.";
}
