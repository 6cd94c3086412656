//! Weights in the kernels' layout. Projections of the same input are fused, with their rows in the order that the
//! kernel's epilogue expects. Rows are padded with zeros to whole vectors, and matrices are padded with rows of zeros
//! to whole vectors of results. The padding gives zeros and does not change any result.

use crate::backend::cuda::gpu;
use std::ops::Range;
use std::sync::Arc;

use kernels::experts::product::ROW_MULTIPLE;
use kernels::gemm::epilogue::GATED_ROWS;
use kernels::layout::VECTOR;

use crate::backend::cuda::memory::packed::{CodePacking, CodedMatrix, QuantisedRow, Use};
use crate::backend::cuda::memory::tensor::CodedWeight;
use crate::backend::cuda::{CudaBackend, CudaProjection, CudaQkvProjection, CudaWeight};
use crate::backend::{HostLinear, HostQkv};
use crate::error::{Error, Result};
use crate::tensor::HostTensor;

impl CudaBackend {
    /// Copies a matrix or vector to the device.
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
            parts.push(&zeros[..(padded_rows(rows) - rows) * padded * tensor.dtype().size()]);
        }
        self.upload(&parts, rows, padded)
    }

    /// Copies matrices of equal shapes to the device, one after the other.
    pub(in crate::backend::cuda) fn load_heads(&self, matrices: Vec<HostTensor>) -> Result<CudaWeight> {
        let matrices: Vec<HostTensor> = matrices.into_iter().map(|matrix| matrix.to_dtype(self.dtype)).collect();
        let parts: Vec<&[u8]> = matrices.iter().map(HostTensor::bytes).collect();
        let [rows, cols] = matrices.first().map_or([0; 2], |matrix| [matrix.shape()[0], matrix.shape()[1]]);
        self.upload(&parts, rows * matrices.len(), cols)
    }

    /// Copies a projection's weight to the device: as codes if it is quantised and a kernel supports them, otherwise as
    /// elements.
    pub(in crate::backend::cuda) fn load_projection(&self, tensor: HostTensor) -> Result<CudaWeight> {
        if tensor.quantised().is_some() {
            let parts = concatenated(&[&tensor]);
            if let Some(weight) = self.load_codes(&[&tensor], &parts, Use::Dense)? {
                return Ok(weight);
            }
            self.note_widened(&tensor);
        }
        self.load(&tensor.to_dtype(self.dtype))
    }

    /// Copies the rows of quantised weights to the device as codes. Returns `None` if no kernel supports them.
    fn load_codes(&self, weights: &[&HostTensor], parts: &[ProjectionRows], usage: Use) -> Result<Option<CudaWeight>> {
        let Some(packing) = CodePacking::for_weights(weights, self.element, usage) else { return Ok(None) };
        let rows: Vec<QuantisedRow<'_>> = parts.iter().flat_map(|part| part.quantised(weights)).collect();
        let cols = weights[0].shape()[1];
        let Some(CodedMatrix { shape, factor, codes, scales }) = packing.pack(&rows, cols, self.element) else {
            return Ok(None);
        };
        let weight = self.upload(&[&codes, bytemuck::cast_slice(&scales)], rows.len(), cols)?;
        let mut kinds = self.quantised.borrow_mut();
        for kind in weights.iter().filter_map(|weight| weight.quantised()) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Ok(Some(CudaWeight { coded: Some(CodedWeight { shape, factor }), ..weight }))
    }

    /// Records that a projection's weight is quantised in its file but not on the device.
    fn note_widened(&self, tensor: &HostTensor) {
        let mut kinds = self.widened.borrow_mut();
        if let Some(kind) = tensor.quantised().filter(|kind| !kinds.contains(kind)) {
            kinds.push(kind);
        }
    }

    /// Copies the rows of a weight to the device: `parts`, one after the other.
    fn upload(&self, parts: &[&[u8]], rows: usize, cols: usize) -> Result<CudaWeight> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let memory = match (self.queue.device(), &mut *self.upload.borrow_mut()) {
            (Some(device), Some(upload)) => {
                let memory = self.allocate(bytes, "the weights")?.named("weight");
                upload.copy(&device.stream, parts, &memory).map_err(gpu)?;
                Some(Arc::new(memory))
            }
            (Some(_), None) => {
                return Err(Error::Device("no more weights can be loaded after the memory plan is made".into()));
            }
            (None, _) => None,
        };
        self.weight_bytes.set(self.weight_bytes.get() + bytes);
        Ok(CudaWeight { memory, rows: rows as u32, cols: cols as u32, coded: None })
    }

    /// Fuses the projections to query, key and value. The key and the value may be absent, as [`HostQkv`] says.
    pub(in crate::backend::cuda) fn fuse_qkv(
        &self,
        HostQkv { query, key, value }: HostQkv,
    ) -> Result<CudaQkvProjection> {
        let shared = key.as_ref().filter(|_| value.is_none()).map_or(0, |key| key.weight.shape()[0] as u32);
        let parts: Vec<HostLinear> = [Some(query), key, value].into_iter().flatten().collect();
        Ok(CudaQkvProjection { projection: self.fuse(parts, concatenated)?, shared })
    }

    /// Fuses several projections of the same input and copies them to the device. `parts` returns the rows of the fused
    /// matrix as ranges of the projections' rows.
    pub(in crate::backend::cuda) fn fuse(
        &self,
        projections: impl Into<Vec<HostLinear>>,
        parts: impl Fn(&[&HostTensor]) -> Vec<ProjectionRows>,
    ) -> Result<CudaProjection> {
        self.fuse_for(Use::Dense, projections, parts)
    }

    /// Like [`fuse`](Self::fuse), for projections of all experts.
    pub(in crate::backend::cuda) fn fuse_experts(
        &self,
        projections: Vec<HostLinear>,
        parts: impl Fn(&[&HostTensor]) -> Vec<ProjectionRows>,
    ) -> Result<CudaProjection> {
        self.fuse_for(Use::Grouped, projections, parts)
    }

    fn fuse_for(
        &self,
        usage: Use,
        projections: impl Into<Vec<HostLinear>>,
        parts: impl Fn(&[&HostTensor]) -> Vec<ProjectionRows>,
    ) -> Result<CudaProjection> {
        let (weights, biases): (Vec<_>, Vec<_>) =
            projections.into().into_iter().map(|HostLinear { weight, bias, .. }| (weight, bias)).unzip();
        let biases: Vec<&HostTensor> = biases.iter().flatten().collect();
        if !biases.is_empty() && biases.len() < weights.len() {
            return Err(Error::Unsupported("biases on only some of several fused projections".into()));
        }
        let all: Vec<&HostTensor> = weights.iter().collect();
        let parts = parts(&all);
        let coded = self.load_codes(&all, &parts, usage)?;
        let rows = parts.iter().map(|part| part.rows.len() + part.zeros).sum();
        let join = |tensors: &[&HostTensor], cols: usize| -> Result<CudaWeight> {
            self.expect_dtype(tensors)?;
            let row = cols * self.dtype.size();
            let zeros = vec![0; parts.iter().map(|part| part.zeros * row).max().unwrap_or(0)];
            let bytes: Vec<&[u8]> =
                parts.iter().flat_map(|part| [part.bytes(tensors), &zeros[..part.zeros * row]]).collect();
            self.upload(&bytes, rows, cols)
        };
        let weight = match coded {
            Some(weight) => weight,
            None => {
                weights.iter().for_each(|weight| self.note_widened(weight));
                let widen = |weight: HostTensor| match weight.quantised() {
                    Some(_) => weight.to_dtype(self.dtype),
                    None => weight,
                };
                let weights: Vec<HostTensor> = weights.into_iter().map(widen).collect();
                join(&weights.iter().collect::<Vec<_>>(), weights[0].shape()[1])?
            }
        };
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

    /// Waits until all weights are on the device and frees the staging buffers. No weight can be copied afterwards.
    pub(in crate::backend::cuda) fn finish_loading(&self) -> Result<()> {
        if let Some(device) = self.queue.device() {
            device.stream.synchronize().map_err(gpu)?;
        }
        self.upload.take();
        Ok(())
    }
}

/// Number of rows including padding: a multiple of the vector length of a projection's results.
pub fn padded_rows(rows: usize) -> usize {
    rows.next_multiple_of(VECTOR as usize)
}

/// Rows of one of several projections, followed by rows of zeros.
pub struct ProjectionRows {
    projection: usize,
    rows: Range<usize>,
    zeros: usize,
}

impl ProjectionRows {
    /// Returns the bytes of these rows. Each element of a vector is a row.
    fn bytes<'a>(&self, tensors: &[&'a HostTensor]) -> &'a [u8] {
        let tensor = tensors[self.projection];
        let row = tensor.dtype().size() * tensor.shape()[1..].iter().product::<usize>();
        &tensor.bytes()[self.rows.start * row..self.rows.end * row]
    }

    /// Returns these rows of quantised matrices.
    fn quantised<'a>(&self, tensors: &[&'a HostTensor]) -> impl Iterator<Item = QuantisedRow<'a>> {
        let tensor = tensors[self.projection];
        let row = tensor.bytes().len() / tensor.shape()[0].max(1);
        let bytes = move |i: usize| Some((tensor.quantised()?, &tensor.bytes()[i * row..(i + 1) * row]));
        self.rows.clone().map(bytes).chain(std::iter::repeat_n(None, self.zeros))
    }
}

/// Concatenates the rows of several projections.
pub fn concatenated(weights: &[&HostTensor]) -> Vec<ProjectionRows> {
    weights
        .iter()
        .enumerate()
        .map(|(projection, weight)| ProjectionRows { projection, rows: 0..weight.shape()[0], zeros: 0 })
        .collect()
}

/// Interleaves the rows of gate and up as defined by [`gated_row`](kernels::gemm::epilogue::gated_row), padding the
/// last of each. With several pairs of gate and up, concatenates the pairs.
pub fn interleaved(weights: &[&HostTensor]) -> Vec<ProjectionRows> {
    let (rows, step) = (weights[0].shape()[0], GATED_ROWS as usize);
    let both = |gate: usize, first: usize| {
        let end = (first + step).min(rows);
        [gate, gate + 1].map(|projection| ProjectionRows { projection, rows: first..end, zeros: first + step - end })
    };
    let pairs = (0..weights.len()).step_by(2);
    pairs.flat_map(|gate| (0..rows).step_by(step).flat_map(move |first| both(gate, first))).collect()
}

/// Concatenates the rows of several projections, each padded to whole fragments.
pub fn padded_each(weights: &[&HostTensor]) -> Vec<ProjectionRows> {
    let pad = |rows: usize| rows.next_multiple_of(ROW_MULTIPLE as usize) - rows;
    concatenated(weights).into_iter().map(|part| ProjectionRows { zeros: pad(part.rows.len()), ..part }).collect()
}
