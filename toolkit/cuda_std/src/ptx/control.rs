//! Roles of threads in a block, and dependencies between launches. Hopper.

/// Elects one lane of the warp and returns `true` in this lane only. The same lanes always elect the same lane.
///
/// `elect.sync`. A collective in volatile inline assembly, since LLVM (22) assumes that it may move its own intrinsic.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
pub unsafe fn elect() -> bool {
    device!(() => {
        let elected: u32;
        // SAFETY: this function's contract requires that all lanes of the warp call it together.
        unsafe {
            core::arch::asm!(
                "{{",
                ".reg .pred elected;",
                "elect.sync _|elected, -1;",
                "selp.u32 {0}, 1, 0, elected;",
                "}}",
                out(reg32) elected,
                options(nomem, nostack, preserves_flags),
            );
        }
        elected != 0
    })
}

/// Releases registers of the warp group, down to `COUNT` per thread: a multiple of 8 from 24 to 256.
///
/// `setmaxnreg.dec.sync.aligned.u32 COUNT`
///
/// # Safety
/// All threads of a warp group call this together. A warp group is four whole warps, the first of which has a number
/// that is a multiple of four. The kernel has `max_threads`, and a register limit from it or from `max_regs`.
#[inline(always)]
pub unsafe fn give_registers<const COUNT: u32>() {
    const { assert!(COUNT.is_multiple_of(8) && COUNT >= 24 && COUNT <= 256) }
    device!(() => {
        // SAFETY: this function's contract requires that all threads of the warp group call it.
        unsafe {
            core::arch::asm!("setmaxnreg.dec.sync.aligned.u32 {0};", const COUNT, options(nostack, preserves_flags));
        }
    })
}

/// Waits for registers that other warp groups release, and takes them, up to `COUNT` per thread.
///
/// `setmaxnreg.inc.sync.aligned.u32 COUNT`
///
/// # Safety
/// As for [`give_registers`], and other warp groups release enough registers.
#[inline(always)]
pub unsafe fn take_registers<const COUNT: u32>() {
    const { assert!(COUNT.is_multiple_of(8) && COUNT >= 24 && COUNT <= 256) }
    device!(() => {
        // SAFETY: this function's contract requires that all threads of the warp group call it.
        unsafe {
            core::arch::asm!("setmaxnreg.inc.sync.aligned.u32 {0};", const COUNT, options(nostack, preserves_flags));
        }
    })
}

/// Waits until the launches that this one depends on have ended and their writes are visible. Does nothing in a launch
/// that was not allowed to begin early.
///
/// `griddepcontrol.wait`
#[inline(always)]
pub fn wait_for_earlier_launches() {
    // SAFETY: only waits.
    device!(() => unsafe { core::arch::asm!("griddepcontrol.wait;", options(nostack, preserves_flags)) })
}

/// Lets dependent launches begin once all blocks of this launch have called this or exited.
///
/// `griddepcontrol.launch_dependents`
#[inline(always)]
pub fn let_later_launches_begin() {
    // SAFETY: accesses no memory. Later launches wait before they read the results of this one.
    device!(() => unsafe { core::arch::asm!("griddepcontrol.launch_dependents;", options(nostack, preserves_flags)) })
}

/// Waits for earlier launches and lets later ones begin. A kernel with `#[kernel(dependent)]` begins with this call,
/// and a kernel with `#[kernel(dependent = "waits")]` makes it itself.
///
/// Threads wait before they access any memory that launches write, and no thread lets the next launch begin before it
/// has waited. Therefore a launch needs to wait only for the previous launch, which has itself waited for all earlier
/// ones.
#[inline(always)]
pub fn begin_dependent() {
    wait_for_earlier_launches();
    let_later_launches_begin();
}
