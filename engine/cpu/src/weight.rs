//! The CPU's representation of weights.

use std::sync::Arc;

use super::element::widen_range;
use super::panels::Panels;
use super::quantised::PackedMatrix;
use checkpoint::tensor::HostTensor;

/// A weight.
#[derive(Clone)]
pub struct CpuWeight(pub(super) WeightData);

/// The representations of a weight.
#[derive(Clone)]
pub(super) enum WeightData {
    /// The bytes as they were loaded, usually a mapped file.
    Elements(Arc<HostTensor>),
    /// A copy of a projection's matrix in panels. An embedding also keeps its elements as they were loaded.
    Panels(Arc<Panels>, Option<Arc<HostTensor>>),
    /// A quantised matrix, repacked for the integer dot products.
    Quantised(Arc<PackedMatrix>),
}

impl CpuWeight {
    /// `[N, K]` of a matrix. A vector is one row.
    pub(super) fn extents(&self) -> (usize, usize) {
        match &self.0 {
            WeightData::Panels(panels, _) => (panels.rows(), panels.cols()),
            WeightData::Quantised(matrix) => (matrix.rows(), matrix.cols()),
            WeightData::Elements(tensor) => match *tensor.shape() {
                [rows, cols] => (rows, cols),
                _ => (1, tensor.shape().iter().product()),
            },
        }
    }

    /// The elements of a weight that is neither a projection nor an embedding. Such weights are never quantised or in
    /// panels.
    pub(super) fn tensor(&self) -> &HostTensor {
        match &self.0 {
            WeightData::Elements(tensor) => tensor,
            WeightData::Panels(..) | WeightData::Quantised(_) => {
                panic!("a projection or quantised matrix has no plain elements")
            }
        }
    }

    /// Returns the elements of a weight that is neither a projection nor an embedding, widened to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        self.tensor().elements().to_f32()
    }

    /// Writes row `row`, widened to f32, to `to`.
    pub(super) fn read_row(&self, row: usize, to: &mut [f32]) {
        match &self.0 {
            WeightData::Elements(tensor) | WeightData::Panels(_, Some(tensor)) => {
                widen_range(tensor.elements(), row * to.len(), to);
            }
            WeightData::Panels(_, None) => panic!("only an embedding can be read by rows"),
            WeightData::Quantised(matrix) => matrix.decode_row(row, to),
        }
    }
}
