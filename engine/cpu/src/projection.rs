//! Projections of activations, for every kind of weight.

use super::element::Floats;
use super::linear::Linear;
use super::panels::Panels;
#[cfg(target_arch = "x86_64")]
use super::panels::Words;
#[cfg(target_arch = "x86_64")]
use super::product::round_to_pairs;
use super::quantised::Projector;
use super::tiles::Finish;
use super::weight::WeightData;
use super::{Activation, Cpu, CpuTensor, CpuWeight};
use checkpoint::Result;
use checkpoint::tensor::HostTensor;

/// A projection: its weight and its optional bias.
pub struct CpuProjection {
    weight: CpuWeight,
    bias: Option<CpuWeight>,
}

impl Cpu {
    /// Takes the matrices of a projection, `weight [N, K]` and `bias [N]`.
    ///
    /// # Errors
    /// If the system has no memory for it.
    pub fn projection(&self, weight: HostTensor, bias: Option<HostTensor>) -> Result<CpuProjection> {
        let weight = self.to_projection(self.weight(weight)?, false)?;
        Ok(CpuProjection { weight, bias: bias.map(|b| self.weight(b)).transpose()? })
    }

    /// Returns `x W^T + bias`.
    pub fn apply(&self, projection: &CpuProjection, x: &CpuTensor) -> CpuTensor {
        self.linear(x, &projection.weight, projection.bias.as_ref(), None)
    }

    /// Computes `act(x W^T + bias)` into `out`, or adds it to the contents of `out`.
    pub(super) fn project(
        &self,
        out: &mut CpuTensor,
        x: &CpuTensor,
        weight: &CpuWeight,
        bias: Option<&CpuWeight>,
        (act, add): (Option<Activation>, bool),
    ) {
        let (cols, inner) = weight.extents();
        assert_eq!((x.rows(), x.cols(), out.cols()), (out.rows(), inner, cols), "shapes of a projection");
        let bias = bias.map(|b| Floats::new(b.tensor(), &self.pool));
        let bias = bias.as_ref().map(Floats::as_slice);
        let finish = Finish { bias, act, add };
        match &weight.0 {
            WeightData::Panels(panels, _) => self.multiply(x, panels, finish, out),
            WeightData::Quantised(matrix) => {
                let projector = Projector {
                    isa: self.isa,
                    #[cfg(target_arch = "x86_64")]
                    amx: self.amx,
                    arch: self.arch,
                    threads: &self.threads,
                    pool: &self.pool,
                };
                projector.run(x, matrix, finish, out);
            }
            WeightData::Elements(_) => panic!("the weight was not converted by to_projection"),
        }
    }

    fn multiply(&self, x: &CpuTensor, weight: &Panels, finish: Finish<'_>, out: &mut CpuTensor) {
        #[cfg(target_arch = "x86_64")]
        if let (Some(amx), Words::Bf16Pairs(_), 1..) = (self.amx, weight.words(), x.cols()) {
            let linear = Linear { x: x.as_slice(), inner: x.cols(), weight, finish };
            return self.multiply_tiles(amx, self.pairs.is_some(), linear, out.as_mut_slice());
        }
        #[cfg(target_arch = "x86_64")]
        if let (Some(pairs), Words::Bf16Pairs(_)) = (self.pairs, weight.words()) {
            let mut rounded = self.pool.tensor(x.rows(), x.cols().div_ceil(2));
            let (cols, inner, x) = (x.cols(), rounded.cols(), x.as_slice());
            self.each_row(rounded.as_mut_slice(), inner, |t, row| round_to_pairs(&x[t * cols..][..cols], row));
            let linear = Linear { x: rounded.as_slice(), inner, weight, finish };
            return linear.run_pairs(pairs, &self.threads, out.as_mut_slice());
        }
        Linear { x: x.as_slice(), inner: x.cols(), weight, finish }.run(self.arch, &self.threads, out.as_mut_slice());
    }
}
