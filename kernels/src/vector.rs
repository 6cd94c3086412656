//! Rows of 16-bit elements as kernels hold them: 16-byte vectors in registers, widened for arithmetic.

use core::fmt;
use cuda_std::vector::Vector;

use cuda_std::half::Half2;

use crate::element::Element;
use crate::layout::VECTOR;

/// Widens the eight elements of a vector to `f32`, exactly.
#[inline(always)]
pub fn widen<T: Element>(vector: Vector) -> [f32; 8] {
    // Not a loop, which the compiler might keep in a large kernel, with the numbers in local memory.
    let pair = |i: usize| T::Pair::from_bits(vector.0[i]).to_f32();
    let ([a, b], [c, d], [e, f], [g, h]) = (pair(0), pair(1), pair(2), pair(3));
    [a, b, c, d, e, f, g, h]
}

/// Rounds eight numbers to a vector, each to nearest even.
#[inline(always)]
pub fn narrow<T: Element>(values: [f32; 8]) -> Vector {
    let pair = |i: usize| T::Pair::from_f32([values[2 * i], values[2 * i + 1]]).to_bits();
    Vector([pair(0), pair(1), pair(2), pair(3)])
}

/// Adds eight numbers, pair by pair.
#[inline(always)]
pub fn sum_of_eight([a, b, c, d, e, f, g, h]: [f32; 8]) -> f32 {
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// The reason why a kernel does not support rows of some width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WidthError {
    /// The width is not a multiple of the number of elements that are moved at once.
    Ragged {
        /// Elements in a row.
        width: u32,
        /// The number that `width` must be a multiple of.
        multiple: u32,
    },
    /// The width is more than the kernel holds.
    Long {
        /// Elements in a row.
        width: u32,
        /// The largest supported width.
        most: u32,
    },
}

impl fmt::Display for WidthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WidthError::Ragged { width, multiple } => {
                write!(f, "rows have {width} elements, but the GPU's kernels need a multiple of {multiple}")
            }
            WidthError::Long { width, most } => {
                write!(f, "rows have {width} elements, but the GPU's kernels take at most {most}")
            }
        }
    }
}

impl core::error::Error for WidthError {}

/// Returns the number of vectors in a row of `width` elements.
///
/// # Errors
/// [`WidthError::Ragged`] if the row is not a whole number of vectors.
pub const fn row_vectors(width: u32) -> Result<u32, WidthError> {
    if width == 0 || !width.is_multiple_of(VECTOR) {
        return Err(WidthError::Ragged { width, multiple: VECTOR });
    }
    Ok(width / VECTOR)
}
