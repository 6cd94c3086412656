//! Quantised weights: projections by integer dot products.
//!
//! Activations are quantised too, a group of them at a time, with as many elements as a group of the weight has. The
//! product of two groups is then a sum of products of small integers, which is exact in whatever order it is computed, times
//! the product of their scales. Those are summed in f32 in the order of the groups. So the result is the same, to the bit,
//! on every instruction set, in every batch and on any number of threads.
//!
//! `packed` has the layout of the weight, `activations` quantises what it is multiplied with, `dots` has the sums over the
//! vectors of `lanes`, and `lanes` what each instruction set does.

mod activations;
mod dots;
mod lanes;
mod packed;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pulp::Arch;

use self::activations::Activations;
use self::dots::{Band, Rows};
pub(super) use self::lanes::Isa;
pub(super) use self::packed::PackedMatrix;
use super::math::activate;
use super::tensor::{CpuTensor, Pool};
use super::threads::Threads;
use crate::backend::Activation;

/// Most tokens that a thread takes through the weight at a time: their activations lie in the second-level cache.
const TOKENS: usize = 64;

/// What a projection is computed with.
pub(super) struct Projector<'a> {
    pub isa: Isa,
    pub arch: Arch,
    pub threads: &'a Threads,
    pub pool: &'a Arc<Pool>,
}

/// What happens to a projection's result.
pub(super) struct Finish<'a> {
    /// `[N]`
    pub bias: Option<&'a [f32]>,
    pub act: Option<Activation>,
    /// Add to what the output holds instead of replacing it.
    pub add: bool,
}

impl Projector<'_> {
    /// Computes `out [M, N]` from `x [M, K]` and `weight [N, K]`.
    pub fn run(&self, x: &CpuTensor, weight: &PackedMatrix, finish: &Finish<'_>, out: &mut CpuTensor) {
        let (tokens, cols) = (x.rows(), weight.rows());
        if tokens == 0 || cols == 0 {
            return;
        }
        let activations = Activations::new(x, weight.kind(), self);
        let activations = activations.view();
        let tall = tokens.div_ceil(tokens.div_ceil(TOKENS));
        let bands = cols.div_ceil(packed::ROWS);
        // A product of bytes takes a fourth of one of f32's.
        let parts = self.threads.parts(tokens * cols * weight.cols() / 4, bands);
        let wide = bands.div_ceil(parts.div_ceil(tokens.div_ceil(tall))) * packed::ROWS;
        let tasks = out.as_mut_slice().chunks_mut(tall * cols).enumerate().flat_map(|(i, block)| {
            let count = block.len() / cols;
            let mut tasks: Vec<Task<'_>> = (0..cols)
                .step_by(wide)
                .map(|column| Task { token: i * tall, column, out: Vec::with_capacity(count) })
                .collect();
            for row in block.chunks_mut(cols) {
                row.chunks_mut(wide).zip(&mut tasks).for_each(|(part, task)| task.out.push(part));
            }
            tasks
        });
        let tasks: Vec<Task<'_>> = tasks.collect();
        self.threads.each(tasks.into_iter(), |mut task| {
            let x = activations.from(task.token);
            let width = task.out[0].len();
            for at in (0..width).step_by(packed::ROWS) {
                let band = weight.band((task.column + at) / packed::ROWS);
                let rows = Rows { out: &mut task.out, at, add: finish.add };
                self.isa.run(Band { weight: band, x, rows });
            }
            self.arch.dispatch(
                #[inline(always)]
                || task.out.iter_mut().for_each(|row| finish.apply(row, task.column)),
            );
        });
    }
}

/// Part of the output: a range of columns of some consecutive tokens.
struct Task<'a> {
    token: usize,
    column: usize,
    out: Vec<&'a mut [f32]>,
}

impl Finish<'_> {
    #[inline(always)]
    fn apply(&self, row: &mut [f32], column: usize) {
        if let Some(bias) = self.bias {
            row.iter_mut().zip(&bias[column..]).for_each(|(y, b)| *y += b);
        }
        if let Some(act) = self.act {
            activate(row, act);
        }
    }
}
