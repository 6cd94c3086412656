//! Who does what in a block, and when the next launch may begin. Hopper.

/// Whether this lane is the one that the warp elects, the same one for the same lanes: for what one thread does.
///
/// `elect.sync`. A collective in volatile assembly, since LLVM (22) takes its intrinsic for one that it may move.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
pub unsafe fn elect() -> bool {
    device!(() => {
        let elected: u32;
        // SAFETY: all lanes of the warp are here together, by this function's contract.
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

/// Gives registers of the warp group back, down to `COUNT` a thread: a multiple of 8 from 24 to 256.
///
/// `setmaxnreg.dec.sync.aligned.u32 COUNT`
///
/// # Safety
/// All threads of a warp group, four whole warps from one whose number is a multiple of four on, call this together. The
/// kernel has `max_threads`, and a limit of registers by it or by `max_regs`.
#[inline(always)]
pub unsafe fn give_registers<const COUNT: u32>() {
    const { assert!(COUNT.is_multiple_of(8) && COUNT >= 24 && COUNT <= 256) }
    device!(() => {
        // SAFETY: all threads of the warp group are here, by this function's contract.
        unsafe {
            core::arch::asm!("setmaxnreg.dec.sync.aligned.u32 {0};", const COUNT, options(nostack, preserves_flags));
        }
    })
}

/// Waits for registers that other warp groups give back, up to `COUNT` a thread.
///
/// `setmaxnreg.inc.sync.aligned.u32 COUNT`
///
/// # Safety
/// As for [`give_registers`], and so many are given back.
#[inline(always)]
pub unsafe fn take_registers<const COUNT: u32>() {
    const { assert!(COUNT.is_multiple_of(8) && COUNT >= 24 && COUNT <= 256) }
    device!(() => {
        // SAFETY: all threads of the warp group are here, by this function's contract.
        unsafe {
            core::arch::asm!("setmaxnreg.inc.sync.aligned.u32 {0};", const COUNT, options(nostack, preserves_flags));
        }
    })
}

/// Waits until the launches that this one depends on have ended and what they wrote is visible. In a launch that was not
/// made to begin early it does nothing.
///
/// `griddepcontrol.wait`
#[inline(always)]
pub fn wait_for_earlier_launches() {
    // SAFETY: only waits.
    device!(() => unsafe { core::arch::asm!("griddepcontrol.wait;", options(nostack, preserves_flags)) })
}

/// Lets launches that depend on this one begin, once all its blocks have called this or ended.
///
/// `griddepcontrol.launch_dependents`
#[inline(always)]
pub fn let_later_launches_begin() {
    // SAFETY: accesses no memory; what later launches may read they wait for.
    device!(() => unsafe { core::arch::asm!("griddepcontrol.launch_dependents;", options(nostack, preserves_flags)) })
}

/// Waits for the launches ahead, and lets those behind begin: what a kernel with `#[kernel(dependent)]` begins with, and one with
/// `#[kernel(dependent = "waits")]` calls itself.
///
/// Threads wait before they access any memory that launches write, and none lets the next launch begin before it has waited. So
/// what a launch waits for, the one ahead, has itself waited for all before that.
#[inline(always)]
pub fn begin_dependent() {
    wait_for_earlier_launches();
    let_later_launches_begin();
}
