//! The origin of a loaded matrix: the projection of the model's files that it is a part of.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::load::adapter::LowRank;

/// Some outputs and inputs of a projection. Models split, reorder and divide projections when they load them, and an
/// adapter's matrices must follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The model's name of the projection.
    pub name: Arc<str>,
    /// The projection's numbers of outputs and inputs.
    pub shape: [usize; 2],
    /// The projection's output that each row of the matrix computes.
    rows: Vec<u32>,
    /// The projection's inputs that the matrix reads.
    cols: Range<usize>,
}

impl Origin {
    /// The whole projection `name`.
    pub fn whole(name: &str, outputs: usize, inputs: usize) -> Self {
        // Sizes in configurations are far below 32 bits.
        let rows = (0..outputs as u32).collect();
        Origin { name: name.into(), shape: [outputs, inputs], rows, cols: 0..inputs }
    }

    /// The part whose row `i` is row `order(i)` of this one.
    pub fn gathered(&self, order: impl IntoIterator<Item = usize>) -> Self {
        Origin { rows: order.into_iter().map(|row| self.rows[row]).collect(), ..self.clone() }
    }

    /// The part that reads some of the inputs.
    pub fn inputs(&self, range: &Range<usize>) -> Self {
        Origin { cols: self.cols.start + range.start..self.cols.start + range.end, ..self.clone() }
    }

    /// The matrix's part of a product that is added to the projection.
    ///
    /// # Errors
    /// Never for adapters, whose matrices are not quantised.
    pub fn part(&self, product: &LowRank) -> Result<LowRank> {
        let LowRank { a, b, scale } = product;
        let a = a.rows(0..product.rank()).into_cols(self.cols.clone())?;
        Ok(LowRank { a, b: b.gathered(self.rows.iter().map(|row| *row as usize)), scale: *scale })
    }

    /// The numbers of elements of both matrices of [`Self::part`], for a product of this rank.
    pub fn elements(&self, rank: usize) -> [usize; 2] {
        [rank * self.cols.len(), rank * self.rows.len()]
    }
}
