//! The two products of attention as `wgmma` chains: scores = queries x keys, and output += weights x values.

use cuda_std::half::Half2;
use cuda_std::ptx::pattern::TilePattern;
use cuda_std::ptx::wgmma::MatrixLayout;
use cuda_std::ptx::wgmma_chain as chain;

use super::shape::{GROUP_ROWS, GROUPS};

use crate::element::{Bf16, Element, F16};
use crate::kv_element::KvElement;

/// A lane's sums in a warp group's product, for each eight columns. Head size 64 uses the first half.
pub type Sums = [[f32; 4]; 16];

/// Eight operand descriptors along K.
type Factor = [u64; 8];

/// A 16-bit type with these products.
pub trait GroupProducts: KvElement<Element = Self> + Element {
    /// Returns a product of 64 rows by 128 columns, 64 or 128 elements along K. Both operands are K-major.
    ///
    /// # Safety
    /// All threads of the warp group call this together. No thread writes the operands meanwhile.
    unsafe fn new_products<const DEPTH: u32>(a: Factor, b: Factor) -> Sums;

    /// Adds a product of 64 rows in registers by 64 or 128 columns, 128 along K, to `sums`. `b` is MN-major.
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
                // SAFETY: this function's contract is the same as the callee's.
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
                // SAFETY: this function's contract is the same as the callee's. The first elements of a longer array
                // form a valid shorter one.
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

/// Bytes of eight elements of all query rows, which is the distance to the next eight elements.
const QUERY_STEP: u32 = GROUPS * GROUP_ROWS * 16;

/// Returns the scores of 64 queries against the [`KEYS`](super::shape::KEYS) keys of a tile.
///
/// Both are at shared-memory offsets: queries as `[D / 8][rows][8]`, keys as `[KEYS / 8][D / 8][8][8]`.
///
/// # Safety
/// All threads of the warp group call this together. Queries and keys have arrived in shared memory.
#[inline(always)]
pub unsafe fn scores<T: GroupProducts, const D: u32>(queries: u32, keys: u32) -> Sums {
    let query = MatrixLayout::new(TilePattern::Plain, QUERY_STEP, MATRIX);
    let key = MatrixLayout::new(TilePattern::Plain, MATRIX, D / 8 * MATRIX);
    // SAFETY: this function's contract is the same as the callee's.
    unsafe { T::new_products::<D>(query.along(queries, 2 * QUERY_STEP), key.along(keys, 2 * MATRIX)) }
}

/// Adds the weighted values at the shared-memory offset `values` to the output. Values have the same layout as keys.
/// Rounds the weights to 16 bits first.
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
    // SAFETY: this function's contract is the same as the callee's.
    unsafe { T::add_rows::<D>(output, rows, value.along(values, 2 * group)) };
}
