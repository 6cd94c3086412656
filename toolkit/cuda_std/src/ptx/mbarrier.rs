//! `mbarrier`: barriers in shared memory that count arrivals, and bytes that asynchronous copies bring. Hopper.
//!
//! An mbarrier is an aligned `u64` of shared memory that nothing else may touch between [`init`] and [`invalidate`]; it
//! is named by its offset ([`shared_offset`](crate::shared::shared_offset)). It goes through phases, the first of which
//! is 0. A phase ends when as many arrivals as [`init`] said have come, and all bytes that were announced in it. Threads
//! wait for a phase by its parity: who waits for parity 1 of a new mbarrier does not wait, as if a phase before the first
//! one were over. What came before an arrival, and what was copied, is visible to those who have waited.

/// An instruction on mbarriers of this block, without a result.
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
                // SAFETY: the mbarrier is one, by this function's contract.
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
        "Sets an mbarrier up, for phases of so many arrivals.",
        "The offset is that of an aligned `u64` of the block's shared memory, which is no mbarrier yet. Other threads and \
         copies use it only behind [`fence_init`] and a barrier.";
    invalidate(barrier) = "mbarrier.inval.shared::cta.b64 [{0}]",
        "Ends an mbarrier: its memory can be used otherwise.",
        "It is an mbarrier, and nothing uses it any more.";
    arrive(barrier) = "mbarrier.arrive.shared::cta.b64 _, [{0}]",
        "Arrives once.",
        "It is an mbarrier, whose phase still lacks an arrival.";
    arrive_expect(barrier, bytes) = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1}",
        "Announces bytes that copies will bring in this phase, and arrives once.",
        "As for [`arrive`].";
    expect(barrier, bytes) = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{0}], {1}",
        "Announces bytes that copies will bring in this phase.",
        "It is an mbarrier, whose phase is not over before this.";
    arrive_remote(barrier) = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{0}]",
        "Arrives once at an mbarrier of any block of the cluster, named by an address of \
         [`cluster::map`](crate::ptx::cluster::map).",
        "As for [`arrive`], and that block has not ended.";
    arrive_remote_after_reads(barrier) = "mbarrier.arrive.shared::cluster.b64 _, [{0}]",
        "[`arrive_remote`] of who has only read what others wait for: what this thread wrote before need not be visible to other          blocks. The assembler then makes no fence of the whole GPU before it.",
        "As for [`arrive_remote`].";
}

/// Makes mbarriers that this thread has set up ready for other blocks and for copies, behind a barrier of whoever uses
/// them.
///
/// `fence.mbarrier_init.release.cluster`
#[inline(always)]
pub fn fence_init() {
    device!(() => {
        // SAFETY: a fence orders memory accesses and makes none.
        unsafe { core::arch::asm!("fence.mbarrier_init.release.cluster;", options(nostack, preserves_flags)) }
    })
}

/// Whether the phase of this parity is over; the hardware may wait a while before it says no.
///
/// `mbarrier.try_wait.parity.shared::cta.b64`
///
/// # Safety
/// It is an mbarrier.
#[inline(always)]
pub unsafe fn try_wait(barrier: u32, parity: u32) -> bool {
    device!((barrier, parity) => {
        let over: u32;
        // SAFETY: the mbarrier is one, by this function's contract.
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

/// Waits until the phase of this parity is over: [`try_wait`] again and again, in two instructions.
///
/// # Safety
/// It is an mbarrier, and the phase ends.
#[inline(always)]
#[allow(named_asm_labels, reason = "a label within braces is known there alone")]
pub unsafe fn wait(barrier: u32, parity: u32) {
    device!((barrier, parity) => {
        // SAFETY: the mbarrier is one, by this function's contract.
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
