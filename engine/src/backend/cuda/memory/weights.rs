//! Weights as kernels read them: projections of the same input are one, with their rows in the order that the kernel's
//! epilogue wants.

use std::ops::Range;
use std::sync::Arc;

use kernels::gemm::epilogue::GATED_ROWS;

use crate::backend::HostLinear;
use crate::backend::cuda::{CudaBackend, CudaProjection, CudaWeight};
use crate::error::{Error, Result};
use crate::tensor::HostTensor;

impl CudaBackend {
    /// Takes rows to the device: `parts` one after the other.
    pub(in crate::backend::cuda) fn load(&self, parts: &[&[u8]], rows: usize, cols: usize) -> Result<CudaWeight> {
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
        let join = |tensors: &[&HostTensor], cols: usize| -> Result<CudaWeight> {
            let bytes: Vec<&[u8]> = parts.iter().map(|part| part.of(tensors)).collect();
            self.expect_dtype(tensors)?;
            self.load(&bytes, parts.iter().map(|part| part.rows.len()).sum(), cols)
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

/// Rows of one of several projections.
pub struct ProjectionRows {
    projection: usize,
    rows: Range<usize>,
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
        .map(|(projection, weight)| ProjectionRows { projection, rows: 0..weight.shape()[0] })
        .collect()
}

/// Rows of gate and up as [`gated_row`](kernels::gemm::epilogue::gated_row) has them.
pub fn interleaved(weights: &[&HostTensor]) -> Vec<ProjectionRows> {
    let (rows, step) = (weights[0].shape()[0], GATED_ROWS as usize);
    let both =
        |first: usize| [0, 1].map(|projection| ProjectionRows { projection, rows: first..(first + step).min(rows) });
    (0..rows).step_by(step).flat_map(both).collect()
}
