//! Quire's arithmetic on a CPU.
//!
//! Activations are f32. Weights and the KV cache keep their own type and are widened on the way into registers. Projections
//! with quantised weights quantise activations as well (see `quantised`). [`Cpu::new`] chooses the instruction set: AVX-512,
//! AVX2, NEON or none. A token's result is the same to the bit whatever else is in its batch and however many threads compute
//! it.
//!
//! Everything here works on matrices and slices. The engine's `backend::cpu` implements its `Backend` over [`Cpu`].

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod element;
mod experts;
mod kv;
mod latent;
mod linear;
mod low_rank;
mod math;
mod matmul;
pub mod pages;
mod panels;
mod product;
mod projection;
mod quantised;
mod recurrent;
mod routing;
mod rows;
mod shape;
mod stored;
mod tensor;
#[cfg(target_arch = "x86_64")]
mod terms;
#[cfg(test)]
mod tests;
mod threads;
mod tiles;
mod weight;

use std::ops::Range;
use std::sync::Arc;

use checkpoint::config::Activation;
use checkpoint::tensor::HostTensor;
use checkpoint::{Error, Result};
use pulp::Arch;

pub use attention::{Attention, Span};
pub use experts::{CpuExpert, CpuExperts, GatedUnit, StoredProjection};
pub use kv::{rounded, write_kv};
pub use latent::CpuLatent;
pub use low_rank::CpuLowRank;
pub use projection::CpuProjection;
pub use recurrent::{CpuRecurrent, NO_BLOCK, States};
pub use routing::{Router, gaps::router_gaps};
pub use shape::KvShape;
pub use tensor::CpuTensor;
pub use weight::CpuWeight;

#[cfg(target_arch = "x86_64")]
use self::amx::Amx;
use self::element::Floats;
use self::pages::Pages;
use self::panels::Panels;
#[cfg(target_arch = "x86_64")]
use self::product::Pairs;
use self::quantised::{Isa, PackedMatrix};
use self::stored::{LayerBlocks, with_stored};
use self::tensor::Pool;
use self::threads::Threads;
use self::weight::WeightData;

/// The processor: its instruction set, the threads that share operations, and the memory of activations.
///
/// Shapes: `T` tokens, `H` hidden size, `D` head size; `x [T, K]` and `weight [N, K]` in projections.
pub struct Cpu {
    arch: Arch,
    #[cfg(target_arch = "x86_64")]
    amx: Option<Amx>,
    #[cfg(target_arch = "x86_64")]
    pairs: Option<Pairs>,
    isa: Isa,
    threads: Threads,
    pool: Arc<Pool>,
    pages: Pages,
}

impl Cpu {
    /// Creates a processor that computes on `threads` threads, including the caller's. The default is one for each
    /// available core.
    ///
    /// # Errors
    /// If `threads` is 0, or the system cannot start a thread.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        Ok(Cpu {
            arch: Arch::new(),
            #[cfg(target_arch = "x86_64")]
            amx: Amx::new(),
            #[cfg(target_arch = "x86_64")]
            pairs: None,
            isa: Isa::new(),
            threads: Threads::new(threads)?,
            pool: Pool::new(),
            pages: Pages::default(),
        })
    }

    /// Rounds activations to bf16 before products with bf16 weights, if the processor multiplies pairs of bf16 numbers. This is
    /// faster and less exact.
    pub fn with_rounded_activations(self) -> Self {
        Cpu {
            #[cfg(target_arch = "x86_64")]
            pairs: Pairs::new(),
            ..self
        }
    }

    /// Whether activations are rounded. They are if the caller asked for it and the processor multiplies pairs of bf16
    /// numbers.
    pub fn rounds_activations(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.pairs.is_some();
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// Buffers allocated for activations so far. The count stops growing once steps of every shape have run.
    pub fn allocations(&self) -> usize {
        self.pool.allocations()
    }

    /// Allocates a matrix with unspecified elements. The caller must write all of them.
    pub fn tensor(&self, rows: usize, cols: usize) -> CpuTensor {
        self.pool.tensor(rows, cols)
    }

    /// Calls `run` with each of `tasks`, spread over the threads.
    pub fn each<T: Send>(&self, tasks: impl ExactSizeIterator<Item = T> + Send, run: impl Fn(T) + Sync) {
        self.threads.each(tasks, run);
    }

    /// Calls `run` with the index and the elements of each row of a `[_, cols]` matrix, on all threads if it is large.
    fn each_row(&self, data: &mut [f32], cols: usize, run: impl Fn(usize, &mut [f32]) + Sync) {
        if data.is_empty() {
            return;
        }
        let rows = data.len() / cols;
        // An element of these operations takes about as long as eight multiply-adds of a projection.
        let chunk = rows.div_ceil(self.threads.parts(data.len() * 8, rows));
        self.threads.each(data.chunks_mut(chunk * cols).enumerate(), |(i, rows)| {
            // Everything is inlined so that it is compiled for the instruction set that `compiled` selects.
            math::compiled(
                self.arch,
                #[inline(always)]
                || {
                    for (r, row) in rows.chunks_mut(cols).enumerate() {
                        run(i * chunk + r, row);
                    }
                },
            );
        });
    }

    /// Copies the given rows of `x`.
    pub fn gather(&self, x: &CpuTensor, rows: &[u32]) -> CpuTensor {
        let mut out = self.pool.tensor(rows.len(), x.cols());
        for (to, &row) in out.as_mut_slice().chunks_mut(x.cols().max(1)).zip(rows) {
            to.copy_from_slice(&x.as_slice()[row as usize * x.cols()..][..x.cols()]);
        }
        out
    }

    /// Normalises each group of `D` elements (`weight [D]`) in place by its root mean square. A row consists of whole
    /// heads.
    pub fn head_norm(&self, x: &mut CpuTensor, weight: &CpuWeight, eps: f32) {
        let weight = Floats::new(weight.tensor(), &self.pool);
        let (cols, weight) = (x.cols(), weight.as_slice());
        self.each_row(x.as_mut_slice(), cols, |_, row| rows::head_norm(row, weight, eps));
    }

    /// Divides each group of `head_dim` elements by its root mean square. A row consists of whole heads.
    pub fn unweighted_head_norm(&self, x: &mut CpuTensor, head_dim: usize, eps: f32) {
        let cols = x.cols();
        self.each_row(x.as_mut_slice(), cols, |_, row| rows::unweighted_head_norm(row, head_dim, eps));
    }

    /// Returns the sum of the squares of each row: `[rows, 1]`.
    pub fn squares(&self, x: &CpuTensor) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), 1);
        let (cols, x) = (x.cols(), x.as_slice());
        self.each_row(out.as_mut_slice(), 1, |t, to| to[0] = rows::squares(&x[t * cols..][..cols]));
        out
    }

    /// Normalises each row in place as if its sum of squares were that in `squares [rows, 1]`, over `count` elements.
    pub fn norm_by(&self, x: &mut CpuTensor, squares: &CpuTensor, count: usize, weight: &CpuWeight, eps: f32) {
        let weight = Floats::new(weight.tensor(), &self.pool);
        let (cols, weight, squares) = (x.cols(), weight.as_slice(), squares.as_slice());
        self.each_row(x.as_mut_slice(), cols, |t, row| {
            rows::norm_by(row, squares[t] / count as f32, weight, eps);
        });
    }

    /// Rotates the first `N` elements of each head of `x` in place by the angles of its token's position. Row `p` of
    /// `table [positions, N]` contains the `N/2` cosines of position `p`, then the `N/2` sines. Element `i` pairs with
    /// `i + N/2`, or `2i` with `2i + 1` if pairs are `adjacent`.
    pub fn rope(&self, x: &mut CpuTensor, head_dim: usize, table: &CpuWeight, adjacent: bool, positions: &[u32]) {
        let (cols, width) = (x.cols(), table.extents().1);
        let table = table.tensor().elements();
        self.each_row(x.as_mut_slice(), cols, |t, row| {
            rows::with_widened(table, positions[t] as usize * width, width, |angles| match adjacent {
                true => rows::rope_adjacent(row, head_dim, angles),
                false => rows::rope(row, head_dim, angles),
            });
        });
    }

    /// Multiplies `x` by a factor.
    pub fn scale(&self, x: &mut CpuTensor, factor: f32) {
        let cols = x.cols();
        self.each_row(x.as_mut_slice(), cols, |_, row| row.iter_mut().for_each(|x| *x *= factor));
    }

    /// Replaces each element `x` by `cap * tanh(x / cap)`.
    pub fn softcap(&self, x: &mut CpuTensor, cap: f32) {
        let cols = x.cols();
        self.each_row(x.as_mut_slice(), cols, |_, row| math::softcap(row, cap));
    }

    /// Adds `y`, which has the same shape, to `x`.
    pub fn add(&self, x: &mut CpuTensor, y: &CpuTensor) {
        let (cols, y) = (x.cols(), y.as_slice());
        self.each_row(x.as_mut_slice(), cols, |t, row| row.iter_mut().zip(&y[t * cols..]).for_each(|(x, y)| *x += y));
    }

    /// Multiplies `x` by the columns of `y` from column `first` on, or by their logistic functions.
    pub fn multiply_by(&self, x: &mut CpuTensor, y: &CpuTensor, first: usize, sigmoid: bool) {
        let (cols, width, y) = (x.cols(), y.cols(), y.as_slice());
        self.each_row(
            x.as_mut_slice(),
            cols,
            #[inline(always)]
            |t, row| {
                let factors = &y[t * width + first..][..cols];
                match sigmoid {
                    true => row.iter_mut().zip(factors).for_each(|(x, y)| *x *= math::sigmoid(*y)),
                    false => math::multiply(row, factors),
                }
            },
        );
    }

    /// Copies a matrix.
    pub fn copy(&self, x: &CpuTensor) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), x.cols());
        out.as_mut_slice().copy_from_slice(x.as_slice());
        out
    }

    /// Takes a weight of one or two dimensions and keeps its element type.
    ///
    /// # Errors
    /// If it has more dimensions, or the system has no memory for it.
    pub fn weight(&self, tensor: HostTensor) -> Result<CpuWeight> {
        match tensor.shape().len() {
            2 if tensor.quantised().is_some() => {
                let packed = PackedMatrix::new(&tensor, &self.threads, &self.pages)?;
                tensor.discard_pages();
                Ok(CpuWeight(WeightData::Quantised(Arc::new(packed))))
            }
            1 | 2 => Ok(CpuWeight(WeightData::Elements(Arc::new(tensor.into_elements())))),
            n => Err(Error::Unsupported(format!("a weight of {n} dimensions"))),
        }
    }

    /// Converts a weight into a projection's matrix. An embedding stays readable by rows.
    ///
    /// # Errors
    /// If the system has no memory for it.
    pub fn to_projection(&self, weight: CpuWeight, is_embedding: bool) -> Result<CpuWeight> {
        let WeightData::Elements(tensor) = weight.0 else { return Ok(weight) };
        let panels = Arc::new(Panels::new(&tensor, &self.threads, &self.pages)?);
        tensor.discard_pages();
        Ok(CpuWeight(WeightData::Panels(panels, is_embedding.then_some(tensor))))
    }

    /// Copies a matrix into the form that projections use.
    fn copied(&self, matrix: &HostTensor) -> Result<CpuWeight> {
        Ok(CpuWeight(match matrix.quantised() {
            Some(_) => WeightData::Quantised(Arc::new(PackedMatrix::new(matrix, &self.threads, &self.pages)?)),
            None => WeightData::Panels(Arc::new(Panels::new(matrix, &self.threads, &self.pages)?), None),
        }))
    }

    /// Returns rows `tokens` of the embedding `table`, which contains the tokens in `vocab`. Tokens outside `vocab`
    /// give zeros.
    pub fn embed(&self, table: &CpuWeight, vocab: Range<usize>, tokens: &[u32]) -> CpuTensor {
        let cols = table.extents().1;
        let mut out = self.pool.tensor(tokens.len(), cols);
        self.each_row(out.as_mut_slice(), cols, |t, row| match tokens[t] as usize {
            token if vocab.contains(&token) => table.read_row(token - vocab.start, row),
            _ => row.fill(0.0),
        });
        out
    }

    /// Adds row `position + offset` of `table` to each row of `x`.
    pub fn add_positions(&self, x: &mut CpuTensor, table: &CpuWeight, offset: usize, positions: &[u32]) {
        let cols = x.cols();
        let table = table.tensor().elements();
        self.each_row(x.as_mut_slice(), cols, |t, row| {
            rows::with_widened(table, (positions[t] as usize + offset) * cols, cols, |p| {
                row.iter_mut().zip(p).for_each(|(x, p)| *x += p);
            });
        });
    }

    /// Returns `act(x W^T + bias)`.
    pub fn linear(
        &self,
        x: &CpuTensor,
        weight: &CpuWeight,
        bias: Option<&CpuWeight>,
        act: Option<Activation>,
    ) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), weight.extents().0);
        self.project(&mut out, x, weight, bias, (act, false));
        out
    }

    /// Computes `residual += x W^T + bias`.
    pub fn linear_add(&self, residual: &mut CpuTensor, x: &CpuTensor, weight: &CpuWeight, bias: Option<&CpuWeight>) {
        self.project(residual, x, weight, bias, (None, true));
    }

    /// Returns `act(gate(x)) * up(x)`.
    pub fn gated(&self, x: &CpuTensor, [gate, up]: &[CpuProjection; 2], act: Activation) -> CpuTensor {
        self.multiply_gated(self.apply(gate, x), &self.apply(up, x), act)
    }

    /// Returns `act(gate) * up`.
    pub fn multiply_gated(&self, mut gate: CpuTensor, up: &CpuTensor, act: Activation) -> CpuTensor {
        let (cols, up) = (gate.cols(), up.as_slice());
        self.each_row(
            gate.as_mut_slice(),
            cols,
            #[inline(always)]
            |t, row| {
                math::activate(row, act);
                row.iter_mut().zip(&up[t * cols..]).for_each(|(g, u)| *g *= u);
            },
        );
        gate
    }

    /// Replaces each element by its activation.
    pub fn activate(&self, x: &mut CpuTensor, act: Activation) {
        let cols = x.cols();
        self.each_row(
            x.as_mut_slice(),
            cols,
            #[inline(always)]
            |_, row| math::activate(row, act),
        );
    }

    /// Normalises each row to mean 0 and variance 1, then applies `weight` and `bias` where given. `eps` is added to
    /// the variance.
    pub fn layer_norm(
        &self,
        x: &CpuTensor,
        weight: Option<&CpuWeight>,
        bias: Option<&CpuWeight>,
        eps: f32,
    ) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), x.cols());
        let (cols, x) = (x.cols(), x.as_slice());
        let [weight, bias] = [weight, bias].map(|w| w.map(|w| Floats::new(w.tensor(), &self.pool)));
        let [weight, bias] = [&weight, &bias].map(|w| w.as_ref().map(Floats::as_slice));
        self.each_row(out.as_mut_slice(), cols, |t, row| {
            rows::layer_norm(&x[t * cols..][..cols], weight, bias, eps, row);
        });
        out
    }

    /// Normalises each row by its root mean square. `eps` is added to the mean of squares. If `weight` is shorter than a
    /// row, each part of its length is normalised.
    pub fn rms_norm(&self, x: &CpuTensor, weight: &CpuWeight, eps: f32) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), x.cols());
        let x = x.as_slice();
        let weight = Floats::new(weight.tensor(), &self.pool);
        let weight = weight.as_slice();
        let cols = weight.len();
        self.each_row(
            out.as_mut_slice(),
            cols,
            #[inline(always)]
            |t, row| {
                rows::rms_norm(&x[t * cols..][..cols], weight, eps, row);
            },
        );
        out
    }

    /// Computes causal attention of `query [T, heads * D]` over one layer of a paged cache. The result has the values of
    /// each head.
    pub fn attention(&self, query: &CpuTensor, params: Attention<'_>) -> CpuTensor {
        let shape = params.shape;
        let group = query.cols() / (shape.heads * shape.head_dim);
        let mut out = self.pool.tensor(query.rows(), shape.heads * group * shape.value_dim());
        let tasks = (shape.heads * query.rows()).max(1);
        let parts = attention::parts(group, self.threads.count().div_ceil(tasks), shape.latent.is_some());
        let query = query.as_slice();
        with_stored!(shape.dtype, E => {
            let blocks = LayerBlocks::<E>::new(params.layer, shape);
            let job = attention::Job { query, blocks, params, group, parts };
            job.run(self.arch, &self.threads, out.as_mut_slice());
        });
        out
    }
}
