//! Loops that are written out, so that the arrays they go over stay in registers.

/// Calls `body` with 0, 1, 2 and so on, `count` times, without a loop: `count` is a constant to the compiler, at most 32.
///
/// Registers have no addresses, so an array stays in registers only if every index is known; and loads are under way
/// together only if there is no branch between them. LLVM unrolls small loops by itself, but not the larger ones here.
#[inline(always)]
pub fn unroll(count: u32, mut body: impl FnMut(usize)) {
    macro_rules! steps {
        ($($step:literal)*) => {
            $(
                if $step < count {
                    body($step);
                }
            )*
        };
    }
    debug_assert!(count <= 32);
    steps!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
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

    #[test]
    fn every_index_comes_once_and_in_order() {
        for count in [0, 1, 5, 31, 32] {
            let mut seen = Vec::new();
            unroll(count, |i| seen.push(i));
            assert_eq!(seen, (0..count as usize).collect::<Vec<_>>());
        }
    }
}
