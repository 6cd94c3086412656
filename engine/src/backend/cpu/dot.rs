//! The inner loop of every projection: dot products of a few rows of the weight with a few tokens, in registers.
//!
//! Weight and activations are both contiguous along `K`, so that nothing is packed or transposed. Each of the
//! `R x T` dot products has one vector of partial sums; every value loaded is used `R` or `T` times.

use pulp::Simd;

use super::element::Element;
use super::matmul::View;

/// Most rows of the weight in a tile.
pub(super) const ROWS: usize = 4;
/// Most tokens in a tile: the sums, `ROWS` of the weight and a token take 29 of 32 vector registers.
const TOKENS: usize = 6;
/// Most tokens in a tile on a processor with 16 vector registers.
const TOKENS_FEW_REGISTERS: usize = 3;

/// `out[t][r] += w[r] . x[t]` for `R` rows of the weight and `T` tokens, all of the same length.
///
/// A dot product is summed in an order that depends on its length alone, and not on its place in the tile or on the type
/// of the weight. What lies `ahead` elements behind each row of `w` is prefetched meanwhile.
#[inline(always)]
fn tile<S: Simd, E: Element, const R: usize, const T: usize>(
    simd: S,
    w: [&[E]; R],
    x: [&[f32]; T],
    ahead: usize,
    out: &mut [[f32; R]; T],
) {
    let len = w[0].len();
    assert!(w.iter().all(|w| w.len() == len) && x.iter().all(|x| x.len() == len));
    let lanes = S::F32_LANES;
    let steps = len / lanes;
    let wide_x: [&[S::f32s]; T] = std::array::from_fn(|t| S::as_simd_f32s(x[t]).0);
    let mut sums = [[simd.splat_f32s(0.0); R]; T];
    for k in 0..steps {
        // SAFETY: `k` is less than `steps`, so that so many elements follow in each of these slices of `len`. With checked
        // indices the compiler keeps copies of all sums for the panics, and the loop takes twice the time.
        let at: [&[E]; R] = std::array::from_fn(|r| unsafe { w[r].get_unchecked(k * lanes..(k + 1) * lanes) });
        // A single row is read in order of memory, which the processor prefetches by itself.
        for row in at.iter().filter(|_| R > 1) {
            prefetch(row.as_ptr().wrapping_add(ahead));
        }
        let w: [S::f32s; R] = std::array::from_fn(|r| E::load(simd, at[r]));
        for t in 0..T {
            // SAFETY: `k` is less than `steps`, the length of this slice.
            let x = unsafe { *wide_x[t].get_unchecked(k) };
            for r in 0..R {
                sums[t][r] = simd.mul_add_e_f32s(w[r], x, sums[t][r]);
            }
        }
    }
    for t in 0..T {
        for r in 0..R {
            out[t][r] += simd.reduce_sum_f32s(sums[t][r]);
        }
    }
    for k in steps * lanes..len {
        for t in 0..T {
            for r in 0..R {
                out[t][r] += w[r][k].wide() * x[t][k];
            }
        }
    }
}

/// `out[t][column + r] += w[r] . x[t]` for the first `R` rows of `w` and as many rows of `x` as `out` has; `len`
/// elements of each are used.
#[inline(always)]
pub(super) fn rows_by_tokens<S: Simd, E: Element, const R: usize>(
    simd: S,
    w: View<'_, E>,
    x: View<'_>,
    len: usize,
    out: &mut [&mut [f32]],
    column: usize,
) {
    // The next tile's rows begin this many elements further on, and are prefetched.
    let ahead = R * w.stride;
    let w: [&[E]; R] = std::array::from_fn(|r| &w.row(r)[..len]);
    let most = if S::REGISTER_COUNT >= 32 { TOKENS } else { TOKENS_FEW_REGISTERS };
    let mut t = 0;
    while t < out.len() {
        // Tiles of nearly equal size: 8 tokens are 4 and 4 rather than 6 and 2.
        let left = out.len() - t;
        let count = left.div_ceil(left.div_ceil(most));
        let (x, out) = (View { data: x.row(t), ..x }, &mut out[t..t + count]);
        match count {
            1 => tokens::<S, E, R, 1>(simd, w, x, ahead, out, column),
            2 => tokens::<S, E, R, 2>(simd, w, x, ahead, out, column),
            3 => tokens::<S, E, R, 3>(simd, w, x, ahead, out, column),
            4 => tokens::<S, E, R, 4>(simd, w, x, ahead, out, column),
            5 => tokens::<S, E, R, 5>(simd, w, x, ahead, out, column),
            _ => tokens::<S, E, R, 6>(simd, w, x, ahead, out, column),
        }
        t += count;
    }
}

#[inline(always)]
fn tokens<S: Simd, E: Element, const R: usize, const T: usize>(
    simd: S,
    w: [&[E]; R],
    x: View<'_>,
    ahead: usize,
    out: &mut [&mut [f32]],
    column: usize,
) {
    let x = std::array::from_fn(|t| &x.row(t)[..w[0].len()]);
    let mut sums: [[f32; R]; T] = std::array::from_fn(|t| std::array::from_fn(|r| out[t][column + r]));
    tile(simd, w, x, ahead, &mut sums);
    for t in 0..T {
        out[t][column..column + R].copy_from_slice(&sums[t]);
    }
}

/// Prefetches the cache line at `at`. The address need not be valid.
#[inline(always)]
fn prefetch<E>(at: *const E) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that accesses nothing and faults on no address, and its SSE instruction is part of
    // every x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
