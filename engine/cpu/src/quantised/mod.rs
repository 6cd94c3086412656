//! Quantised weights: projections computed with integer dot products.
//!
//! Activations are quantised too, in groups as long as the weight's groups. The product of two groups is then a sum of
//! products of small integers times the product of their scales. The integer sum is exact in any order. The scaled sums
//! are added up in f32 in the order of the groups. So the result is the same to the bit on every instruction set, in
//! every batch and on any number of threads.
//!
//! FP8 weights are the exception. Their codes are widened to f32 in registers, and the activations are not quantised.
//! Sums are f32 in a fixed order, so the results do not depend on the instruction set, batch or threads either.
//!
//! `layout` defines the layout of weights, and `packed` stores them. `activations` quantises activations. `dots` computes
//! sums: it extracts integers as `bits` says and scales the sums as `scales` says. `tiled` computes sums of many tokens
//! with AMX, and `fp8` computes sums for FP8. `lanes` implements the operations for each instruction set.

mod activations;
mod bits;
mod dots;
mod fp8;
mod lanes;
mod layout;
mod packed;
mod scales;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiled;

use std::sync::Arc;

use pulp::Arch;

use self::activations::{Activations, BLOCK};
use self::dots::{Band, Rows};
use self::fp8::Fp8Band;
pub(super) use self::lanes::Isa;
pub(super) use self::packed::PackedMatrix;
#[cfg(target_arch = "x86_64")]
use self::tiled::Tiled;
#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
use super::math::compiled;
use super::tensor::{CpuTensor, Pool};
use super::threads::Threads;
use super::tiles::{Finish, Tile};

/// The instruction sets, threads and memory that a projection uses.
pub(super) struct Projector<'a> {
    pub isa: Isa,
    #[cfg(target_arch = "x86_64")]
    pub amx: Option<Amx>,
    pub arch: Arch,
    pub threads: &'a Threads,
    pub pool: &'a Arc<Pool>,
}

/// The activations of a projection in the form that its weight needs.
pub(super) struct Inputs<'a> {
    x: &'a CpuTensor,
    /// The columns in the weight's order, if it is not their own.
    ordered: Option<CpuTensor>,
    /// `None` if activations are not quantised.
    activations: Option<Activations>,
}

impl Projector<'_> {
    /// Prepares the activations `x [M, K]` for `weight [N, K]`.
    pub fn prepare<'x>(&self, x: &'x CpuTensor, weight: &PackedMatrix) -> Inputs<'x> {
        let ordered = weight.order().map(|order| self.reordered(x, order));
        let in_order = ordered.as_ref().unwrap_or(x);
        let activations = (!weight.kind().is_fp8()).then(|| Activations::new(in_order, weight.kind(), self));
        Inputs { x, ordered, activations }
    }

    /// Divides `out [M, N]` into tiles for the threads.
    pub fn cut<'o>(&self, inputs: &Inputs<'_>, weight: &PackedMatrix, out: &'o mut [f32]) -> Vec<Tile<'o>> {
        let (tokens, cols) = (inputs.x.rows(), weight.rows());
        // Multiplying bytes takes a fourth of the time of multiplying f32 numbers.
        let work = tokens * cols * weight.cols() / if inputs.activations.is_some() { 4 } else { 1 };
        Tile::cut(out, cols, (BLOCK, packed::ROWS), work, self.threads)
    }

    /// Writes a tile of the result.
    pub fn run(&self, inputs: &Inputs<'_>, weight: &PackedMatrix, finish: Finish<'_>, mut tile: Tile<'_>) {
        let x = inputs.ordered.as_ref().unwrap_or(inputs.x);
        #[cfg(target_arch = "x86_64")]
        let tiled = Tiled::new(self.amx, self.isa, weight.kind(), tile.out.len());
        let width = tile.out[0].len();
        let mut at = 0;
        while at < width {
            let first = (tile.column + at) / packed::ROWS;
            let rows = Rows { out: &mut tile.out, at, add: finish.add };
            at += packed::ROWS;
            let band = weight.band(first);
            match &inputs.activations {
                Some(x) => {
                    let band = Band { weight: band, x, first: tile.row, rows };
                    #[cfg(target_arch = "x86_64")]
                    if let Some(tiled) = &tiled {
                        tiled.run(band);
                        continue;
                    }
                    self.isa.run(band);
                }
                None => {
                    let x = &x.as_slice()[tile.row * weight.cols()..];
                    self.isa.run(Fp8Band { weight: band, x, cols: weight.cols(), rows });
                }
            }
        }
        compiled(
            self.arch,
            #[inline(always)]
            || {
                for row in &mut tile.out {
                    finish.apply(row, tile.column);
                }
            },
        );
    }

    /// Returns the columns of `x` in the weight's column order.
    fn reordered(&self, x: &CpuTensor, order: &[u32]) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), x.cols());
        let rows = out.as_mut_slice().chunks_exact_mut(order.len()).zip(x.as_slice().chunks_exact(order.len()));
        self.threads.each(rows.collect::<Vec<_>>().into_iter(), |(to, from)| {
            to.iter_mut().zip(order).for_each(|(to, &col)| *to = from[col as usize]);
        });
        out
    }
}
