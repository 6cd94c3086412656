//! Attention over latent vectors: keys and values of all heads are projections of one short vector per token, which is
//! cached in their place. The projections are applied to queries and to results instead.

use super::projection::CpuProjection;
use super::{Cpu, CpuTensor};

/// The projections between heads and latent vectors, one per head.
pub struct CpuLatent {
    /// `[rank, unrotated]`: from the other part of a query.
    pub queries: Vec<CpuProjection>,
    /// `[value, rank]`: to the head's values.
    pub values: Vec<CpuProjection>,
}

impl Cpu {
    /// Returns the columns of both matrices, row by row.
    pub fn join(&self, [first, second]: [&CpuTensor; 2]) -> CpuTensor {
        let mut out = self.pool.tensor(first.rows(), first.cols() + second.cols());
        let cols = out.cols();
        for (t, row) in out.as_mut_slice().chunks_exact_mut(cols).enumerate() {
            let (to_first, to_second) = row.split_at_mut(first.cols());
            to_first.copy_from_slice(&first.as_slice()[t * first.cols()..][..first.cols()]);
            to_second.copy_from_slice(&second.as_slice()[t * second.cols()..][..second.cols()]);
        }
        out
    }

    /// Projects the second part of each query to a latent vector, and puts the first part in front of it.
    pub fn latent_queries(&self, [rotated, other]: [&CpuTensor; 2], weight: &CpuLatent) -> CpuTensor {
        self.project_heads(other, &weight.queries, Some(rotated))
    }

    /// Projects each head of `attended`, a latent vector, to the head's values.
    pub fn latent_values(&self, attended: &CpuTensor, weight: &CpuLatent) -> CpuTensor {
        self.project_heads(attended, &weight.values, None)
    }

    /// Projects the columns of each head of `x`. The result of a head follows the columns of the head in `before`.
    fn project_heads(&self, x: &CpuTensor, weights: &[CpuProjection], before: Option<&CpuTensor>) -> CpuTensor {
        let heads = weights.len();
        let width = x.cols() / heads;
        let inputs = |head: usize| {
            let mut own = self.pool.tensor(x.rows(), width);
            for (to, from) in own.as_mut_slice().chunks_exact_mut(width).zip(x.as_slice().chunks_exact(x.cols())) {
                to.copy_from_slice(&from[head * width..(head + 1) * width]);
            }
            own
        };
        let inputs: Vec<CpuTensor> = (0..heads).map(inputs).collect();
        let results = self.apply_all(&weights.iter().zip(&inputs).collect::<Vec<_>>());
        let front = before.map_or(0, |before| before.cols() / heads);
        let each = front + results.first().map_or(0, CpuTensor::cols);
        let mut out = self.pool.tensor(x.rows(), heads * each);
        for (i, to) in out.as_mut_slice().chunks_exact_mut(each).enumerate() {
            let (to_front, to_back) = to.split_at_mut(front);
            if let Some(before) = before {
                to_front.copy_from_slice(&before.as_slice()[i * front..][..front]);
            }
            let (t, result) = (i / heads, &results[i % heads]);
            to_back.copy_from_slice(&result.as_slice()[t * result.cols()..][..result.cols()]);
        }
        out
    }
}
