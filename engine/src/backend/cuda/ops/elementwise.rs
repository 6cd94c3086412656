//! Elementwise changes of activations and logits.

use cuda_std::launch::KernelCall;
use kernels::floor::Floor;
use kernels::layout::VECTOR;
use kernels::scaling::{self, Factor, add_rows, multiply_columns, scale_logits, scale_rows};
use kernels::with_element;

use crate::backend::Change;
use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::tensor::CudaTensor;
use crate::error::Error;

/// Maximum number of rows per launch. It is within the limit of a grid's second dimension.
const MAX_ROWS: u32 = 1 << 15;

impl CudaBackend {
    /// Changes each element of `x`. Activations can be multiplied and added to. Logits can be scaled and capped.
    pub(in crate::backend::cuda) fn change_elements(&self, x: &CudaTensor, change: Change<'_, CudaTensor>) {
        match (change, x.is_float) {
            (Change::Scale(factor), true) => self.change_logits(x, factor, 0.0),
            (Change::Softcap(cap), true) => self.change_logits(x, 1.0, cap),
            (Change::Scale(factor), false) => {
                let (vectors, out) = (x.rows * x.cols / VECTOR, x.ptr());
                // The rows have no gaps, so they are a single row.
                let args = scale_rows { x: out.cast_const(), out, vectors, stride: vectors, factor };
                self.change_vectors(x, with_element!(self.element, T => args.instance::<T>()), 2);
            }
            (Change::Add(y), false) => {
                debug_assert_eq!((x.rows, x.cols), (y.rows, y.cols));
                let (vectors, out, y) = (x.rows * x.cols / VECTOR, x.ptr(), y.ptr().cast_const());
                let args = add_rows { x: out.cast_const(), y, out, vectors };
                self.change_vectors(x, with_element!(self.element, T => args.instance::<T>()), 3);
            }
            (Change::Multiply { by, first, sigmoid }, false) if first.is_multiple_of(VECTOR as usize) => {
                self.multiply(x, (by, first), if sigmoid { Factor::Sigmoid } else { Factor::Plain });
            }
            _ => self.fail(Error::Unsupported("the GPU has no kernel for this change of elements".into())),
        }
    }

    /// Multiplies `x` by factors from the columns of `by` from `first` on, which is a multiple of the vector length.
    pub(in crate::backend::cuda) fn multiply(&self, x: &CudaTensor, (by, first): (&CudaTensor, usize), factor: Factor) {
        debug_assert!(x.rows == by.rows && first + x.cols as usize <= by.cols as usize);
        let (out, vectors, stride) = (x.ptr(), x.cols / VECTOR, by.stride / VECTOR);
        let by = by.ptr().offset(first / VECTOR as usize).cast_const();
        let function = factor as u32;
        let args = multiply_columns { x: out.cast_const(), by, out, rows: x.rows, vectors, stride, function };
        self.change_vectors(x, with_element!(self.element, T => args.instance::<T>()), 3);
    }

    /// Launches a kernel that has a thread for each vector of `x`, and that reads or writes `passes` matrices of its size.
    fn change_vectors(&self, x: &CudaTensor, call: KernelCall, passes: u64) {
        let floor = || Floor { bytes: 2 * passes * u64::from(x.rows) * u64::from(x.cols), flops: 0 };
        // SAFETY: the matrices have the shapes that the caller checked, and their rows consist of whole vectors.
        unsafe { self.queue.launch(scaling::shape(1, x.rows * x.cols / VECTOR), call, floor) };
    }

    /// Multiplies logits by a factor, then caps them if `cap` is positive.
    fn change_logits(&self, x: &CudaTensor, factor: f32, cap: f32) {
        let (width, stride) = (x.cols, x.stride);
        for (first, rows) in row_ranges(x.rows) {
            let out = x.ptr().offset(first as usize * stride as usize);
            let call = scale_logits { x: out.cast_const(), out, width, stride, factor, cap };
            let floor = || Floor { bytes: 8 * u64::from(rows) * u64::from(width), flops: 0 };
            // SAFETY: these rows are within the matrix.
            unsafe { self.queue.launch(scaling::shape(rows, width), call, floor) };
        }
    }
}

/// Divides rows among launches that have the rows in the second dimension of their grids: the first row of each launch,
/// and the number of its rows.
pub(super) fn row_ranges(rows: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..rows).step_by(MAX_ROWS as usize).map(move |first| (first, MAX_ROWS.min(rows - first)))
}
