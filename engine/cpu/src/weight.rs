//! Weights as the CPU holds them.

use std::sync::Arc;

use super::element::widen_range;
use super::panels::Panels;
use super::quantised::PackedMatrix;
use checkpoint::tensor::HostTensor;

/// A weight.
#[derive(Clone)]
pub struct CpuWeight(pub(super) WeightData);

/// What a weight consists of.
#[derive(Clone)]
pub(super) enum WeightData {
    /// The bytes as they were loaded, usually a mapped file.
    Elements(Arc<HostTensor>),
    /// A projection's matrix, copied; with its elements as they were loaded if it is an embedding too.
    Panels(Arc<Panels>, Option<Arc<HostTensor>>),
    /// A quantised matrix, in an order of its own.
    Quantised(Arc<PackedMatrix>),
}

impl CpuWeight {
    /// `[N, K]` of a matrix; a vector is one row.
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

    /// The elements of a weight that is no projection's and no embedding's: only those stay quantised.
    pub(super) fn tensor(&self) -> &HostTensor {
        match &self.0 {
            WeightData::Elements(tensor) => tensor,
            WeightData::Panels(..) | WeightData::Quantised(_) => panic!("a projection's elements lie elsewhere"),
        }
    }

    /// Row `row` in f32.
    pub(super) fn read_row(&self, row: usize, to: &mut [f32]) {
        match &self.0 {
            WeightData::Elements(tensor) | WeightData::Panels(_, Some(tensor)) => {
                widen_range(tensor.elements(), row * to.len(), to);
            }
            WeightData::Panels(_, None) => panic!("a projection that is no embedding is not read by rows"),
            WeightData::Quantised(matrix) => matrix.decode_row(row, to),
        }
    }
}
