//! Unrolled loops, which keep their arrays in registers.
//!
//! Registers have no addresses, so an array stays in registers only if every index is a constant. Loads are in flight
//! together only if no branch separates them. LLVM unrolls small loops by itself, but not the larger loops of kernels.
//!
//! Neither of the two forms works everywhere, so check the PTX to choose one. With [`unroll()`] LLVM simplifies the
//! body once, before it copies it. For bodies with branches this produces half the instructions. Nested closures,
//! however, keep the arrays that they share in local memory. Write nested loops with [`unroll!`](crate::unroll!), which
//! copies the text.

/// Calls `body` with 0 to `N - 1`, without a loop. `N` is at most 32.
///
/// `N` is a const parameter and not an argument, so LLVM never sees the calls from `N` on.
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

/// `unroll!(i in [0 1 2 3] { ... })` repeats the block for each number. Use it for nested loops. [The
/// module](mod@crate::unroll) explains how it differs from the function.
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

/// Returns the same number, but hides its value from the compiler. A loop up to it stays a loop, and expressions that
/// depend on it are not precomputed and kept in registers. The assembler can still see whether it is the same for all
/// threads.
#[inline(always)]
pub fn hidden(number: u32) -> u32 {
    device!((number) => {
        let same: u32;
        // SAFETY: copies a register and accesses no memory.
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

/// Returns the array of `element(0)` to `element(7)`.
#[inline(always)]
pub fn eight(element: impl Fn(usize) -> f32) -> [f32; 8] {
    [element(0), element(1), element(2), element(3), element(4), element(5), element(6), element(7)]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn indices<const N: usize>() -> Vec<usize> {
        let mut seen = Vec::new();
        unroll::<N>(|i| seen.push(i));
        seen
    }

    #[test]
    fn unroll_passes_every_index_once_in_order() {
        assert_eq!(
            [indices::<0>(), indices::<1>(), indices::<5>()],
            [0..0, 0..1, 0..5].map(|range| range.collect::<Vec<_>>())
        );
        assert_eq!(indices::<32>(), (0..32).collect::<Vec<_>>());
    }
}
