//! Products of one band of an FP8 weight with some tokens. Their activations are not quantised.

#![allow(clippy::needless_range_loop)] // as in `dots`

use super::dots::Rows;
use super::lanes::{Lanes, WithLanes};
use super::layout::ROWS;
use super::packed::PackedBand;

/// Independent partial sums of a group. Each addition waits for the previous one of its chain, so several chains hide
/// the latency.
const CHAINS: usize = 2;

/// One band of a weight, the tokens to multiply it with, and the output.
pub(super) struct Fp8Band<'a, 'b> {
    pub weight: PackedBand<'a>,
    /// The tokens' rows, concatenated, from the first one on.
    pub x: &'a [f32],
    /// Elements per row.
    pub cols: usize,
    pub rows: Rows<'a, 'b>,
}

impl WithLanes for Fp8Band<'_, '_> {
    fn count(&self) -> usize {
        self.rows.out.len()
    }

    #[inline(always)]
    fn tokens<L: Lanes, const T: usize>(&mut self, lanes: L, token: usize) -> usize {
        let (kind, cols) = (self.weight.kind, self.cols);
        let x: [&[f32]; T] = std::array::from_fn(|t| &self.x[(token + t) * cols..][..cols]);
        let mut totals = [lanes.zeros(); T];
        let lines = kind.group() / 4;
        for (group, (lines, scale)) in self.weight.lines.chunks_exact(lines).zip(self.weight.wide_scales).enumerate() {
            let x = x.map(|x| &x[group * kind.group()..][..kind.group()]);
            let mut sums = [[lanes.zeros(); T]; CHAINS];
            for (i, line) in lines.iter().enumerate() {
                let columns: &[[u8; ROWS]; 4] = bytemuck::must_cast_ref(&line.0);
                for col in 0..4 {
                    let codes = lanes.fp8(&columns[col]);
                    for t in 0..T {
                        sums[col % CHAINS][t] = lanes.mul_add_one(codes, x[t][i * 4 + col], sums[col % CHAINS][t]);
                    }
                }
            }
            let scale = lanes.mul(lanes.floats(scale), L::FP8_UNIT);
            for t in 0..T {
                let mut sum = sums[0][t];
                for chain in 1..CHAINS {
                    sum = lanes.mul_add_one(sums[chain][t], 1.0, sum);
                }
                totals[t] = lanes.fused(sum, scale, totals[t]);
            }
        }
        self.rows.finish(lanes, totals, token);
        T
    }
}
