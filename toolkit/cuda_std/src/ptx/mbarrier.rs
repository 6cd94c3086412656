//! `mbarrier`: barriers in shared memory that count arrivals of threads and bytes of asynchronous copies. Hopper.
//!
//! An mbarrier is an aligned `u64` of shared memory that nothing else may access between [`init`] and [`invalidate`].
//! Functions take its offset ([`shared_offset`](crate::shared::shared_offset)). An mbarrier goes through phases,
//! beginning with phase 0. A phase ends after the number of arrivals given to [`init`] and after all bytes announced in
//! it have been copied. Threads wait for a phase by its parity. Waiting for parity 1 of a new mbarrier returns at once,
//! as if a phase before phase 0 had ended. Threads that have waited see all writes before an arrival, and all copied
//! data.

/// Functions for single instructions on mbarriers of this block, without a result.
macro_rules! instructions {
    ($($name:ident($($argument:ident),*) = $instruction:literal, $doc:literal, $safety:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        #[doc = $safety]
        #[inline(always)]
        pub unsafe fn $name($($argument: u32),*) {
            device!(($($argument),*) => {
                // SAFETY: this function's contract requires an mbarrier at this offset.
                unsafe {
                    core::arch::asm!(
                        concat!($instruction, ";"),
                        $(in(reg32) $argument,)*
                        options(nostack, preserves_flags),
                    );
                }
            })
        }
    )*};
}

instructions! {
    init(barrier, arrivals) = "mbarrier.init.shared::cta.b64 [{0}], {1}",
        "Initialises an mbarrier whose phases take `arrivals` arrivals.",
        "The offset is that of an aligned `u64` of the block's shared memory that is not an mbarrier yet. Other threads and \
         copies use it only after [`fence_init`] and a barrier.";
    invalidate(barrier) = "mbarrier.inval.shared::cta.b64 [{0}]",
        "Destroys an mbarrier, so its memory can be reused.",
        "The offset is that of an mbarrier that is no longer used.";
    arrive(barrier) = "mbarrier.arrive.shared::cta.b64 _, [{0}]",
        "Arrives once.",
        "The offset is that of an mbarrier whose phase still expects an arrival.";
    arrive_expect(barrier, bytes) = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1}",
        "Announces bytes that copies will write in this phase, and arrives once.",
        "As for [`arrive`].";
    expect(barrier, bytes) = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{0}], {1}",
        "Announces bytes that copies will write in this phase.",
        "The offset is that of an mbarrier whose phase has not ended yet.";
    arrive_remote(barrier) = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{0}]",
        "Arrives once at an mbarrier of any block of the cluster, at an address from \
         [`cluster::map`](crate::ptx::cluster::map).",
        "As for [`arrive`], and that block has not exited.";
    arrive_remote_after_reads(barrier) = "mbarrier.arrive.shared::cluster.b64 _, [{0}]",
        "[`arrive_remote`] for a thread that has only read: its earlier writes need not become visible to other blocks. The \
         assembler then emits no GPU-wide fence before it.",
        "As for [`arrive_remote`].";
}

/// Makes mbarriers that this thread has initialised usable by other blocks and copies, once their users have passed a
/// barrier.
///
/// `fence.mbarrier_init.release.cluster`
#[inline(always)]
pub fn fence_init() {
    device!(() => {
        // SAFETY: a fence orders memory accesses and makes none.
        unsafe { core::arch::asm!("fence.mbarrier_init.release.cluster;", options(nostack, preserves_flags)) }
    })
}

/// Returns whether the phase of this parity has ended. The hardware may wait a while before it returns `false`.
///
/// `mbarrier.try_wait.parity.shared::cta.b64`
///
/// # Safety
/// The offset is that of an mbarrier.
#[inline(always)]
pub unsafe fn try_wait(barrier: u32, parity: u32) -> bool {
    device!((barrier, parity) => {
        let over: u32;
        // SAFETY: this function's contract requires an mbarrier at this offset.
        unsafe {
            core::arch::asm!(
                "{{",
                ".reg .pred over;",
                "mbarrier.try_wait.parity.shared::cta.b64 over, [{1}], {2};",
                "selp.u32 {0}, 1, 0, over;",
                "}}",
                out(reg32) over,
                in(reg32) barrier,
                in(reg32) parity,
                options(nostack, preserves_flags),
            );
        }
        over != 0
    })
}

/// Waits until the phase of this parity has ended. Repeats [`try_wait`], in a loop of two instructions.
///
/// # Safety
/// The offset is that of an mbarrier, and the phase ends.
#[inline(always)]
#[allow(named_asm_labels, reason = "a label within braces is local to them")]
pub unsafe fn wait(barrier: u32, parity: u32) {
    device!((barrier, parity) => {
        // SAFETY: this function's contract requires an mbarrier at this offset.
        unsafe {
            core::arch::asm!(
                "{{",
                ".reg .pred over;",
                "again:",
                "mbarrier.try_wait.parity.shared::cta.b64 over, [{0}], {1};",
                "@!over bra again;",
                "}}",
                in(reg32) barrier,
                in(reg32) parity,
                options(nostack, preserves_flags),
            );
        }
    })
}
