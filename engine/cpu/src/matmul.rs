//! The inner loops of attention: `C += A . B` with all three row-major.
//!
//! Lanes run along the columns of `B`. Each element of `C` is summed in order of `k`, whichever tile it is in.

use std::ops::Range;

use pulp::{Simd, WithSimd};

/// Columns of `B` and `C` are padded to a multiple of this number of elements, the longest vector.
pub(super) const LANES: usize = 16;
/// Maximum number of rows in a register tile.
const ROWS: usize = 6;

/// Matrices that [`Columns`] multiplies with.
pub(super) const COLUMNS: usize = 4;

/// A row-major matrix within a slice.
#[derive(Clone, Copy)]
pub(super) struct View<'a, E = f32> {
    pub data: &'a [E],
    pub stride: usize,
}

impl<'a, E> View<'a, E> {
    /// Returns the elements from row `r` on.
    #[inline(always)]
    pub fn row(&self, r: usize) -> &'a [E] {
        &self.data[r * self.stride..]
    }
}

/// Adds a matrix product: `c[r][..cols] += sum over k in inner of a[r][k] * b[k][..cols]` for each of `rows` rows.
/// `cols` and the strides of `b` and `c` are multiples of [`LANES`].
///
/// `Simd::vectorize` compiles this once per instruction set, however many callers there are.
pub(super) struct Accumulate<'a> {
    pub a: View<'a>,
    pub b: View<'a>,
    pub c: &'a mut [f32],
    pub c_stride: usize,
    pub rows: usize,
    pub inner: Range<usize>,
    pub cols: usize,
}

impl WithSimd for Accumulate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Accumulate { a, b, c, c_stride, rows, inner, cols } = self;
        let mut r = 0;
        while r < rows {
            let left = rows - r;
            let count = left.div_ceil(left.div_ceil(ROWS));
            let a = View { data: a.row(r), ..a };
            let c = &mut c[r * c_stride..];
            match count {
                1 => band::<S, 1>(simd, a, b, c, c_stride, inner.clone(), cols),
                2 => band::<S, 2>(simd, a, b, c, c_stride, inner.clone(), cols),
                3 => band::<S, 3>(simd, a, b, c, c_stride, inner.clone(), cols),
                4 => band::<S, 4>(simd, a, b, c, c_stride, inner.clone(), cols),
                5 => band::<S, 5>(simd, a, b, c, c_stride, inner.clone(), cols),
                _ => band::<S, 6>(simd, a, b, c, c_stride, inner.clone(), cols),
            }
            r += count;
        }
    }
}

/// Sets `c[r][v * LANES..][..LANES]` to the sum over `k` of `a[r][k] * b[v][k][..LANES]` for each of `rows` rows. The sums
/// have the same order as with [`Accumulate`]. Strides are multiples of [`LANES`].
pub(super) struct Columns<'a> {
    pub a: View<'a>,
    /// The matrices. They have the same stride.
    pub b: [View<'a>; COLUMNS],
    pub c: &'a mut [f32],
    pub c_stride: usize,
    pub rows: usize,
    pub inner: usize,
}

impl WithSimd for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Columns { a, b, c, c_stride, rows, inner } = self;
        for r in (0..rows).step_by(2) {
            let (a, c) = (|i| &a.row(r + i)[..inner], &mut c[r * c_stride..]);
            match rows - r {
                1 => columns::<S, 1>(simd, [a(0)], b, c, c_stride),
                _ => columns::<S, 2>(simd, [a(0), a(1)], b, c, c_stride),
            }
        }
    }
}

#[inline(always)]
fn columns<S: Simd, const R: usize>(simd: S, a: [&[f32]; R], b: [View<'_>; COLUMNS], c: &mut [f32], c_stride: usize) {
    let lanes = S::F32_LANES;
    let c = S::as_mut_simd_f32s(c).0;
    for part in 0..LANES / lanes {
        let columns: [&[S::f32s]; COLUMNS] = std::array::from_fn(|v| &S::as_simd_f32s(b[v].data).0[part..]);
        let mut sums = [[simd.splat_f32s(0.0); COLUMNS]; R];
        for k in 0..a[0].len() {
            let b: [S::f32s; COLUMNS] = std::array::from_fn(|v| columns[v][k * (b[v].stride / lanes)]);
            for r in 0..R {
                let a = simd.splat_f32s(a[r][k]);
                for v in 0..COLUMNS {
                    sums[r][v] = simd.mul_add_e_f32s(a, b[v], sums[r][v]);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                c[(r * c_stride + v * LANES) / lanes + part] = *sum;
            }
        }
    }
}

/// Computes `R` rows of `c`, as many columns at a time as fit the registers.
#[inline(always)]
fn band<S: Simd, const R: usize>(
    simd: S,
    a: View<'_>,
    b: View<'_>,
    c: &mut [f32],
    c_stride: usize,
    inner: Range<usize>,
    cols: usize,
) {
    let a: [&[f32]; R] = std::array::from_fn(|r| &a.row(r)[inner.clone()]);
    let b_stride = b.stride / S::F32_LANES;
    let b = &S::as_simd_f32s(b.data).0[inner.start * b_stride..];
    let c = S::as_mut_simd_f32s(c).0;
    let c_stride = c_stride / S::F32_LANES;
    let cols = cols / S::F32_LANES;
    let mut v = 0;
    if const { S::REGISTER_COUNT >= 32 } {
        while v + 4 <= cols {
            tile::<S, R, 4>(simd, a, &b[v..], b_stride, &mut c[v..], c_stride);
            v += 4;
        }
    }
    while v + 2 <= cols {
        tile::<S, R, 2>(simd, a, &b[v..], b_stride, &mut c[v..], c_stride);
        v += 2;
    }
    while v < cols {
        tile::<S, R, 1>(simd, a, &b[v..], b_stride, &mut c[v..], c_stride);
        v += 1;
    }
}

#[inline(always)]
fn tile<S: Simd, const R: usize, const V: usize>(
    simd: S,
    a: [&[f32]; R],
    b: &[S::f32s],
    b_stride: usize,
    c: &mut [S::f32s],
    c_stride: usize,
) {
    let steps = a[0].len();
    let a = a.map(|a| &a[..steps]);
    let mut sums: [[S::f32s; V]; R] = std::array::from_fn(|r| std::array::from_fn(|v| c[r * c_stride + v]));
    for (k, b) in b.chunks(b_stride).take(steps).enumerate() {
        let b: &[S::f32s] = &b[..V];
        for r in 0..R {
            let a = simd.splat_f32s(a[r][k]);
            for v in 0..V {
                sums[r][v] = simd.mul_add_e_f32s(a, b[v], sums[r][v]);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        c[r * c_stride..][..V].copy_from_slice(sums);
    }
}
