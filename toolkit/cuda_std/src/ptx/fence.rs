//! Fences between the two memory proxies: the *generic* proxy of ordinary loads and stores, and the *asynchronous*
//! proxy of bulk copies, tensor copies and `wgmma`. Hopper.
//!
//! The asynchronous proxy sees a thread's ordinary stores only after that thread's fence. The other direction needs no
//! fence: a thread that waits for a copy sees the copied data.

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
    proxy_async = "fence.proxy.async", "Fences all memory.";
    proxy_async_shared = "fence.proxy.async.shared::cta", "Fences the block's shared memory.";
    proxy_async_global = "fence.proxy.async.global", "Fences global memory.";
}
