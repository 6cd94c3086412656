//! Loops that are written out, so that the arrays they go over stay in registers.
//!
//! Registers have no addresses, so an array stays in registers only if every index is a constant; and loads are in
//! flight together only if there is no branch between them. LLVM writes out small loops by itself, but not the larger
//! ones of kernels.
//!
//! There are two forms, since neither serves everywhere; what the PTX looks like decides. With [`unroll()`] LLVM
//! simplifies the body once, before it is copied; of bodies with branches it makes half the instructions that way.
//! Closures in closures, however, keep the arrays that they share in local memory: nested loops are written with
//! [`unroll!`](crate::unroll!), which copies the text.

/// Calls `body` with 0 to `N - 1`, without a loop; `N` is at most 32.
///
/// `N` is a parameter of the function and not an argument, so that LLVM never sees the steps from `N` on.
#[inline(always)]
pub fn unroll<const N: usize>(mut body: impl FnMut(usize)) {
    const { assert!(N <= 32) }
    macro_rules! steps {
        ($($step:literal)*) => {
            $(
                if const { $step < N } {
                    body($step);
                }
            )*
        };
    }
    steps!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

/// `unroll!(i in [0 1 2 3] { ... })` writes the block out once for each number: for nested loops, see
/// [the module](mod@crate::unroll) for the difference.
///
/// ```
/// use cuda_std::unroll;
///
/// let mut pairs = [[0; 2]; 2];
/// unroll!(i in [0 1] {
///     unroll!(j in [0 1] { pairs[i][j] = 10 * i + j });
/// });
/// assert_eq!(pairs, [[0, 1], [10, 11]]);
/// ```
#[macro_export]
macro_rules! unroll {
    ($i:ident in [$($number:literal)*] $body:block) => { $({ let $i = $number; $body })* };
}

/// The same number, of which the compiler knows nothing: a loop up to it stays a loop, and what follows from it is not worked out
/// early and kept. The assembler still sees that it is the same for all threads if it is.
#[inline(always)]
pub fn hidden(number: u32) -> u32 {
    device!((number) => {
        let same: u32;
        // SAFETY: copies a register, and accesses no memory.
        unsafe {
            core::arch::asm!(
                "mov.b32 {0}, {1};",
                out(reg32) same,
                in(reg32) number,
                options(nomem, nostack, preserves_flags),
            );
        }
        same
    })
}

/// What `element` gives for 0 to 7.
#[inline(always)]
pub fn eight(element: impl Fn(usize) -> f32) -> [f32; 8] {
    [element(0), element(1), element(2), element(3), element(4), element(5), element(6), element(7)]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn seen<const N: usize>() -> Vec<usize> {
        let mut seen = Vec::new();
        unroll::<N>(|i| seen.push(i));
        seen
    }

    #[test]
    fn every_index_comes_once_and_in_order() {
        assert_eq!([seen::<0>(), seen::<1>(), seen::<5>()], [0..0, 0..1, 0..5].map(|range| range.collect::<Vec<_>>()));
        assert_eq!(seen::<32>(), (0..32).collect::<Vec<_>>());
    }
}
