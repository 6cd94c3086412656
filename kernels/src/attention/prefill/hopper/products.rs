//! The two products of attention by `wgmma`: scores = queries x keys, and output += weights x values.

use cuda_std::half::Half2;
use cuda_std::ptx::pattern::TilePattern;
use cuda_std::ptx::wgmma::MatrixLayout;
use cuda_std::ptx::wgmma_chain as chain;

use super::shape::{GROUP_ROWS, GROUPS};

use crate::element::{Bf16, Element, F16};
use crate::kv_element::KvElement;

/// Sums of a warp group: of each eight columns what a lane has of them. Of heads of 64 the first half is used.
pub type Sums = [[f32; 4]; 16];

/// Eight descriptors along K.
type Factor = [u64; 8];

/// The 16-bit types, as these products take them.
pub trait GroupProducts: KvElement<Element = Self> + Element {
    /// 64 rows by 128 columns, 64 or 128 elements along K, both K-major.
    ///
    /// # Safety
    /// All threads of the warp group call this together; nobody writes the factors meanwhile.
    unsafe fn new_products<const DEPTH: u32>(a: Factor, b: Factor) -> Sums;

    /// 64 rows in registers by 64 or 128 columns, 128 along K, added to sums. `b` is MN-major.
    ///
    /// # Safety
    /// As for [`new_products`](Self::new_products).
    unsafe fn add_rows<const COLUMNS: u32>(sums: &mut Sums, a: [[u32; 4]; 8], b: Factor);
}

macro_rules! products {
    ($($element:ident $short:ident $long:ident $rows_64:ident $rows_128:ident;)*) => {$(
        impl GroupProducts for $element {
            #[inline(always)]
            unsafe fn new_products<const DEPTH: u32>(a: Factor, b: Factor) -> Sums {
                // SAFETY: this function's contract.
                unsafe {
                    if DEPTH == 128 {
                        chain::$long(a, b)
                    } else {
                        chain::$short([a[0], a[1], a[2], a[3]], [b[0], b[1], b[2], b[3]])
                    }
                }
            }

            #[inline(always)]
            unsafe fn add_rows<const COLUMNS: u32>(sums: &mut Sums, a: [[u32; 4]; 8], b: Factor) {
                // SAFETY: this function's contract; the first elements of a longer array.
                unsafe {
                    if COLUMNS == 128 {
                        chain::$rows_128(sums, a, b);
                    } else {
                        chain::$rows_64(&mut *core::ptr::from_mut(sums).cast(), a, b);
                    }
                }
            }
        }
    )*};
}

products! {
    F16 m64n128k64_f16_first m64n128k128_f16_first m64n64k128_f16_registers m64n128k128_f16_registers;
    Bf16 m64n128k64_bf16_first m64n128k128_bf16_first m64n64k128_bf16_registers m64n128k128_bf16_registers;
}

/// Bytes of an 8 x 8 matrix.
const MATRIX: u32 = 128;

/// Bytes of the matrices of eight rows of queries; all of them are as far from those of the next eight elements.
const QUERY_STEP: u32 = GROUPS * GROUP_ROWS * 16;

/// Scores of 64 queries at `queries`, `[D / 8][rows][8]`, and the [`KEYS`] keys at `keys`, `[KEYS / 8][D / 8][8][8]`, both
/// offsets in shared memory.
///
/// # Safety
/// All threads of the warp group call this together; queries and keys are there.
#[inline(always)]
pub unsafe fn scores<T: GroupProducts, const D: u32>(queries: u32, keys: u32) -> Sums {
    let query = MatrixLayout::new(TilePattern::Plain, QUERY_STEP, MATRIX);
    let key = MatrixLayout::new(TilePattern::Plain, MATRIX, D / 8 * MATRIX);
    // SAFETY: this function's contract.
    unsafe { T::new_products::<D>(query.along(queries, 2 * QUERY_STEP), key.along(keys, 2 * MATRIX)) }
}

/// Adds the values at `values`, which lie as keys do, times their weights, which are rounded to 16 bits.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
pub unsafe fn add_values<T: GroupProducts, const D: u32>(output: &mut Sums, weights: &Sums, values: u32) {
    let group = D / 8 * MATRIX;
    let value = MatrixLayout::new(TilePattern::Plain, group, MATRIX);
    let pair = |a: f32, b: f32| <T as Element>::Pair::from_f32([a, b]).to_bits();
    let rows = [0, 1, 2, 3, 4, 5, 6, 7].map(|step| {
        let [low, high] = [0, 1].map(|i| weights[2 * step + i]);
        [pair(low[0], low[1]), pair(low[2], low[3]), pair(high[0], high[1]), pair(high[2], high[3])]
    });
    // SAFETY: this function's contract.
    unsafe { T::add_rows::<D>(output, rows, value.along(values, 2 * group)) };
}
