//! Weights as kernels read them: projections of the same input are one, with their rows in the order that the kernel's
//! epilogue wants; rows are filled up with zeros to whole vectors, and matrices with rows of zeros to whole vectors of
//! results. What is computed with the zeros is zero, and adds nothing.

use std::ops::Range;
use std::sync::Arc;

use kernels::gemm::epilogue::GATED_ROWS;
use kernels::layout::VECTOR;

use crate::backend::HostLinear;
use crate::backend::cuda::{CudaBackend, CudaProjection, CudaWeight};
use crate::error::{Error, Result};
use crate::tensor::HostTensor;

impl CudaBackend {
    /// Takes a matrix to the device, or a vector.
    pub(in crate::backend::cuda) fn load(&self, tensor: &HostTensor) -> Result<CudaWeight> {
        let (rows, cols) = match *tensor.shape() {
            [rows, cols] => (rows, cols),
            [cols] => (1, cols),
            ref shape => return Err(Error::Unsupported(format!("a weight of {} dimensions", shape.len()))),
        };
        let row = cols * tensor.dtype().size();
        let padded = cols.next_multiple_of(VECTOR as usize);
        let zeros = vec![0; VECTOR as usize * padded * tensor.dtype().size()];
        let gap = &zeros[..(padded - cols) * tensor.dtype().size()];
        let mut parts = if gap.is_empty() {
            vec![tensor.bytes()]
        } else {
            tensor.bytes().chunks(row).flat_map(|row| [row, gap]).collect()
        };
        if tensor.shape().len() > 1 {
            parts.push(&zeros[..(whole(rows) - rows) * padded * tensor.dtype().size()]);
        }
        self.upload(&parts, rows, padded)
    }

    /// Takes the rows of a weight to the device: `parts` one after the other.
    fn upload(&self, parts: &[&[u8]], rows: usize, cols: usize) -> Result<CudaWeight> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let memory = match (self.queue.device(), &mut *self.upload.borrow_mut()) {
            (Some(device), Some(upload)) => {
                let memory = self.allocate(bytes, "the weights")?.named("weight");
                upload.copy(&device.stream, parts, &memory)?;
                Some(Arc::new(memory))
            }
            (Some(_), None) => {
                return Err(Error::Device("the GPU takes no more weights once its memory is shared out".into()));
            }
            (None, _) => None,
        };
        self.weight_bytes.set(self.weight_bytes.get() + bytes);
        Ok(CudaWeight { memory, rows: rows as u32, cols: cols as u32 })
    }

    /// Takes several projections of the same input to the device as one, whose rows are `parts` of the projections' rows,
    /// one after the other.
    pub(in crate::backend::cuda) fn fuse(
        &self,
        projections: &[HostLinear],
        parts: impl Fn(&[&HostTensor]) -> Vec<ProjectionRows>,
    ) -> Result<CudaProjection> {
        let weights: Vec<&HostTensor> = projections.iter().map(|p| &p.weight).collect();
        let biases: Vec<&HostTensor> = projections.iter().filter_map(|p| p.bias.as_ref()).collect();
        if !biases.is_empty() && biases.len() < weights.len() {
            return Err(Error::Unsupported("a bias for some of several projections that are computed as one".into()));
        }
        let parts = parts(&weights);
        let rows = parts.iter().map(|part| part.rows.len() + part.zeros).sum();
        let join = |tensors: &[&HostTensor], cols: usize| -> Result<CudaWeight> {
            self.expect_dtype(tensors)?;
            let row = cols * self.dtype.size();
            let zeros = vec![0; parts.iter().map(|part| part.zeros * row).max().unwrap_or(0)];
            let bytes: Vec<&[u8]> =
                parts.iter().flat_map(|part| [part.of(tensors), &zeros[..part.zeros * row]]).collect();
            self.upload(&bytes, rows, cols)
        };
        let weight = join(&weights, weights[0].shape()[1])?;
        let bias = if biases.is_empty() { None } else { Some(join(&biases, 1)?) };
        Ok(CudaProjection { weight, bias })
    }

    fn expect_dtype(&self, tensors: &[&HostTensor]) -> Result<()> {
        match tensors.iter().find(|tensor| tensor.dtype() != self.dtype) {
            Some(tensor) => {
                Err(Error::Unsupported(format!("a weight in {} among others in {}", tensor.dtype(), self.dtype)))
            }
            None => Ok(()),
        }
    }

    /// Waits until all weights are on the device, and frees the staging buffers: no weight may follow.
    pub(in crate::backend::cuda) fn finish_loading(&self) -> Result<()> {
        if let Some(device) = self.queue.device() {
            device.stream.synchronize()?;
        }
        self.upload.take();
        Ok(())
    }
}

/// Rows of zeros included: as many as make whole vectors of a projection's results.
pub fn whole(rows: usize) -> usize {
    rows.next_multiple_of(VECTOR as usize)
}

/// Rows of one of several projections, and rows of zeros after them.
pub struct ProjectionRows {
    projection: usize,
    rows: Range<usize>,
    zeros: usize,
}

impl ProjectionRows {
    /// The bytes of these rows; of a vector, each element is a row.
    fn of<'a>(&self, tensors: &[&'a HostTensor]) -> &'a [u8] {
        let tensor = tensors[self.projection];
        let row = tensor.dtype().size() * tensor.shape()[1..].iter().product::<usize>();
        &tensor.bytes()[self.rows.start * row..self.rows.end * row]
    }
}

/// The rows of each of several projections, as the rows of one.
pub fn one_after_the_other(weights: &[&HostTensor]) -> Vec<ProjectionRows> {
    weights
        .iter()
        .enumerate()
        .map(|(projection, weight)| ProjectionRows { projection, rows: 0..weight.shape()[0], zeros: 0 })
        .collect()
}

/// Rows of gate and up as [`gated_row`](kernels::gemm::epilogue::gated_row) has them, the last of each filled up.
pub fn interleaved(weights: &[&HostTensor]) -> Vec<ProjectionRows> {
    let (rows, step) = (weights[0].shape()[0], GATED_ROWS as usize);
    let both = |first: usize| {
        let end = (first + step).min(rows);
        [0, 1].map(|projection| ProjectionRows { projection, rows: first..end, zeros: first + step - end })
    };
    (0..rows).step_by(step).flat_map(both).collect()
}
