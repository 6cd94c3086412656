//! Loops over arrays that are to stay in registers.
//!
//! An array that is indexed by a variable has an address, and lies in local memory. LLVM writes out a loop of known length
//! early enough to avoid that only if its body is small; these are written out from the start.

/// Calls `run` with 0 to `N - 1`, where `N` is at most 8.
#[inline(always)]
pub fn times<const N: usize>(mut run: impl FnMut(usize)) {
    const { assert!(N <= 8) }
    macro_rules! call {
        ($($i:literal)*) => {$(
            if $i < N {
                run($i);
            }
        )*};
    }
    call!(0 1 2 3 4 5 6 7);
}

/// What `element` gives for 0 to 7.
#[inline(always)]
pub fn eight(element: impl Fn(usize) -> f32) -> [f32; 8] {
    [element(0), element(1), element(2), element(3), element(4), element(5), element(6), element(7)]
}
