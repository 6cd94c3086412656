//! Projections of activations, for every kind of weight.

#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
use super::element::Floats;
use super::linear::Linear;
use super::panels::Panels;
#[cfg(target_arch = "x86_64")]
use super::panels::Words;
#[cfg(target_arch = "x86_64")]
use super::product::{Pairs, round_to_pairs};
use super::quantised::{Inputs, PackedMatrix, Projector};
#[cfg(target_arch = "x86_64")]
use super::terms;
use super::tiles::{Finish, Tile};
use super::weight::WeightData;
use super::{Activation, Cpu, CpuTensor, CpuWeight};
use checkpoint::Result;
use checkpoint::tensor::HostTensor;

/// A projection: its weight and its optional bias.
pub struct CpuProjection {
    pub(super) weight: CpuWeight,
    pub(super) bias: Option<CpuWeight>,
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
        assert_eq!((x.rows(), weight.extents().0), (out.rows(), out.cols()), "shapes of a projection");
        let projected = self.prepare(x, weight, bias, (act, add));
        let tiles = projected.cut(out);
        self.threads.each(tiles.into_iter(), |tile| projected.run(tile));
    }

    /// Computes several projections at the same time. `out` has a matrix for each of them.
    pub(super) fn project_all<'o>(&self, all: &[Projected<'_>], out: impl Iterator<Item = &'o mut CpuTensor>) {
        let tiles = all
            .iter()
            .zip(out)
            .flat_map(|(projected, out)| projected.cut(out).into_iter().map(move |tile| (projected, tile)));
        let tiles: Vec<_> = tiles.collect();
        self.threads.each(tiles.into_iter(), |(projected, tile)| projected.run(tile));
    }

    /// Brings activations `x` into the form that a projection's weight needs.
    pub(super) fn prepare<'a>(
        &'a self,
        x: &'a CpuTensor,
        weight: &'a CpuWeight,
        bias: Option<&'a CpuWeight>,
        (act, add): (Option<Activation>, bool),
    ) -> Projected<'a> {
        assert_eq!(x.cols(), weight.extents().1, "columns of a projection");
        let bias = bias.map(|b| Floats::new(b.tensor(), &self.pool));
        let form = match &weight.0 {
            WeightData::Panels(panels, _) => self.prepare_floats(x, panels),
            WeightData::Quantised(matrix) => {
                let projector = Projector {
                    isa: self.isa,
                    #[cfg(target_arch = "x86_64")]
                    amx: self.amx,
                    arch: self.arch,
                    threads: &self.threads,
                    pool: &self.pool,
                };
                let inputs = projector.prepare(x, matrix);
                Form::Quantised(projector, matrix, inputs)
            }
            WeightData::Elements(_) => panic!("the weight was not converted by to_projection"),
        };
        Projected { cpu: self, form, bias, act, add }
    }

    fn prepare_floats<'a>(&self, x: &'a CpuTensor, weight: &'a Panels) -> Form<'a> {
        #[cfg(target_arch = "x86_64")]
        if let (Some(amx), Words::Bf16Pairs(_), 1..) = (self.amx, weight.words(), x.cols()) {
            return Form::Tiles(amx, weight, terms::Rows::new(self, x.as_slice(), x.cols(), self.pairs.is_some()));
        }
        #[cfg(target_arch = "x86_64")]
        if let (Some(pairs), Words::Bf16Pairs(_)) = (self.pairs, weight.words()) {
            let mut rounded = self.pool.tensor(x.rows(), x.cols().div_ceil(2));
            let (cols, inner, x) = (x.cols(), rounded.cols(), x.as_slice());
            self.each_row(rounded.as_mut_slice(), inner, |t, row| round_to_pairs(&x[t * cols..][..cols], row));
            return Form::Pairs(pairs, weight, rounded);
        }
        Form::Floats(weight, x)
    }
}

/// A projection whose activations have the form that the weight needs.
pub(super) struct Projected<'a> {
    cpu: &'a Cpu,
    form: Form<'a>,
    bias: Option<Floats<'a>>,
    act: Option<Activation>,
    add: bool,
}

/// A weight, and activations in its form.
#[allow(clippy::large_enum_variant)] // a value exists only during a projection
enum Form<'a> {
    Floats(&'a Panels, &'a CpuTensor),
    /// Pairs of activations that are rounded to bf16.
    #[cfg(target_arch = "x86_64")]
    Pairs(Pairs, &'a Panels, CpuTensor),
    #[cfg(target_arch = "x86_64")]
    Tiles(Amx, &'a Panels, terms::Rows),
    Quantised(Projector<'a>, &'a PackedMatrix, Inputs<'a>),
}

impl Projected<'_> {
    /// Divides the output into tiles for the threads.
    pub fn cut<'o>(&self, out: &'o mut CpuTensor) -> Vec<Tile<'o>> {
        let (cols, out) = (out.cols(), out.as_mut_slice());
        match &self.form {
            Form::Floats(weight, x) => self.linear(weight, x).cut(&self.cpu.threads, out),
            #[cfg(target_arch = "x86_64")]
            Form::Pairs(_, weight, x) => self.linear(weight, x).cut(&self.cpu.threads, out),
            #[cfg(target_arch = "x86_64")]
            Form::Tiles(_, _, rows) => rows.cut(self.cpu, cols, out),
            Form::Quantised(projector, weight, inputs) => projector.cut(inputs, weight, out),
        }
    }

    /// Writes a tile of the output.
    pub fn run(&self, tile: Tile<'_>) {
        match &self.form {
            Form::Floats(weight, x) => self.linear(weight, x).run(self.cpu.arch, tile),
            #[cfg(target_arch = "x86_64")]
            Form::Pairs(pairs, weight, x) => self.linear(weight, x).run_pairs(*pairs, tile),
            #[cfg(target_arch = "x86_64")]
            Form::Tiles(amx, weight, rows) => rows.run(self.cpu, *amx, (weight, self.finish()), tile),
            Form::Quantised(projector, weight, inputs) => projector.run(inputs, weight, self.finish(), tile),
        }
    }

    fn linear<'a>(&'a self, weight: &'a Panels, x: &'a CpuTensor) -> Linear<'a> {
        Linear { x: x.as_slice(), inner: x.cols(), weight, finish: self.finish() }
    }

    fn finish(&self) -> Finish<'_> {
        Finish { bias: self.bias.as_ref().map(Floats::as_slice), act: self.act, add: self.add }
    }
}
