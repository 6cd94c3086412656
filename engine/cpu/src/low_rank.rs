//! Low-rank products that adapters add to the results of projections.
//!
//! A product has few rows or few columns, so the panels of [`Panels`](super::panels::Panels) would mostly be padding. Here
//! the inputs are multiplied by the rows of `a`, and rows of `b`, transposed, are added to the outputs. All sums for a
//! token are computed in an order that depends only on the sizes.

use std::ops::Range;

use super::{Cpu, CpuTensor, math, rows};
use checkpoint::load::adapter::LowRank;
use checkpoint::tensor::HostTensor;

/// Partial sums of a dot product.
const SUMS: usize = 64;

/// A product `scale * b a` that is added to a weight.
pub struct CpuLowRank {
    /// `[rank, K]`
    a: HostTensor,
    /// `b` transposed: `[rank, N]`
    b: HostTensor,
    scale: f32,
}

/// Some rows of the output and of the input, and the product that they are changed by.
struct Task<'a> {
    product: &'a CpuLowRank,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl CpuLowRank {
    /// Takes the matrices of a product.
    pub fn new(LowRank { a, b, scale }: LowRank) -> Self {
        CpuLowRank { a, b: b.transposed(), scale }
    }

    fn rank(&self) -> usize {
        self.a.shape()[0]
    }

    /// Adds the product of each row of `x` to the row of `y`. `hidden` is memory for intermediate results.
    #[inline(always)]
    fn add(&self, x: &[f32], y: &mut [f32], hidden: &mut Vec<f32>) {
        let (rank, inputs, outputs) = (self.rank(), self.a.shape()[1], self.b.shape()[1]);
        let count = x.len() / inputs;
        hidden.clear();
        hidden.resize(rank * count, 0.0);
        for r in 0..rank {
            rows::with_widened(self.a.elements(), r * inputs, inputs, |a| {
                for (t, x) in x.chunks_exact(inputs).enumerate() {
                    hidden[r * count + t] = dot(x, a) * self.scale;
                }
            });
        }
        for r in 0..rank {
            rows::with_widened(self.b.elements(), r * outputs, outputs, |b| {
                for (t, y) in y.chunks_exact_mut(outputs).enumerate() {
                    let factor = hidden[r * count + t];
                    y.iter_mut().zip(b).for_each(|(y, b)| *y += factor * b);
                }
            });
        }
    }
}

impl Cpu {
    /// Adds low-rank products to rows of `y`, the output of a projection of `x`. `parts` are ranges of rows, ascending,
    /// each with its product.
    pub fn add_low_rank(&self, y: &mut CpuTensor, x: &CpuTensor, parts: &[(Range<usize>, &CpuLowRank)]) {
        assert_eq!(x.rows(), y.rows(), "rows of a low-rank product");
        let (inputs, outputs) = (x.cols(), y.cols());
        let count: usize = parts.iter().map(|(rows, _)| rows.len()).sum();
        let rank = parts.iter().map(|(_, product)| product.rank()).max().unwrap_or(0);
        let tall = count.div_ceil(self.threads.parts(count * rank * (inputs + outputs), count)).max(1);
        let (mut tasks, mut rest, mut at) = (Vec::new(), y.as_mut_slice(), 0);
        for (rows, product) in parts {
            assert_eq!((product.a.shape()[1], product.b.shape()[1]), (inputs, outputs), "shape of a low-rank product");
            let (own, after) = rest.split_at_mut((rows.end - at) * outputs);
            let own = &mut own[(rows.start - at) * outputs..];
            (rest, at) = (after, rows.end);
            let x = x.as_slice()[rows.start * inputs..rows.end * inputs].chunks(tall * inputs);
            tasks.extend(x.zip(own.chunks_mut(tall * outputs)).map(|(x, y)| Task { product, x, y }));
        }
        self.threads.each(tasks.into_iter(), |Task { product, x, y }| {
            let mut hidden = Vec::new();
            math::compiled(
                self.arch,
                #[inline(always)]
                || product.add(x, y, &mut hidden),
            );
        });
    }
}

/// The dot product of two vectors of equal length.
#[inline(always)]
fn dot(x: &[f32], w: &[f32]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    let ((xs, x_rest), (ws, w_rest)) = (x.as_chunks::<SUMS>(), w.as_chunks::<SUMS>());
    for (x, w) in xs.iter().zip(ws) {
        for i in 0..SUMS {
            sums[i] += x[i] * w[i];
        }
    }
    for ((sum, x), w) in sums.iter_mut().zip(x_rest).zip(w_rest) {
        *sum += x * w;
    }
    sums.iter().sum()
}
