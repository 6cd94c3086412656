//! Layers that keep a state: a causal convolution, and heads that update a matrix with each token.
//!
//! The tokens of a sequence pass one after the other, in prompts as in answers, so a state does not depend on how the
//! sequence was divided into steps. Each column of a head's matrix is a recurrence of its own. A tile of columns passes
//! through all new tokens of a sequence while it is in the first-level cache.
//!
//! A state in memory: the last inputs of the convolution, `[kernel - 1][channels]`, with the input of position `p` in
//! row `p % (kernel - 1)`. Then a matrix for each head, `[heads][tiles][key_dim][tile]`.

mod convolution;
mod states;
mod tile;

use checkpoint::config::{Recurrent, RecurrentKind};
use pulp::Arch;

pub use states::{NO_BLOCK, States};

use self::states::SpanStates;
use self::tile::{Columns, Run, Width};
use super::math::{sigmoid, softplus};
use super::{Cpu, CpuTensor, math};

/// Added to the sum of squares of a key or query.
const EPS: f32 = 1e-6;

/// The weights of a layer that keeps a state, besides its projections.
pub struct CpuRecurrent {
    /// The layer's sizes.
    pub shape: Recurrent,
    /// `[kernel][channels]`
    pub kernel: Vec<f32>,
    /// `[channels]`
    pub bias: Option<Vec<f32>>,
    /// `[heads]`: the negative factor on steps that gives the logarithm of a decay.
    pub decay: Vec<f32>,
    /// `[heads]`: added to steps.
    pub step_bias: Vec<f32>,
    /// `[heads]`: the factor on a value that is added to the head's result.
    pub skip: Option<Vec<f32>>,
}

/// The inputs that all tiles of a call share.
struct Job<'a> {
    weight: &'a CpuRecurrent,
    /// Columns of a head's matrix in a tile.
    tile: usize,
    /// `[T, channels]`: the convolution's results.
    mixed: &'a [f32],
    /// `[T, 2 * heads]`: the decay of each head's state, then the factor on the addend.
    rates: &'a [f32],
}

impl Cpu {
    /// Convolves each sequence of `x [T, channels]` with its state, and applies the recurrence of heads. `steps` has a
    /// column for each head, in a delta net after a column for the head's rate of change. Stores the new states and returns
    /// `[T, heads * value_dim]`.
    pub fn recurrent(
        &self,
        x: &CpuTensor,
        steps: Option<&CpuTensor>,
        weight: &CpuRecurrent,
        states: States<'_>,
    ) -> CpuTensor {
        let states = states.claim(weight.shape.state());
        let mixed = self.convolve(x, weight, &states);
        let matrices = self.store_inputs(x, weight, states);
        let Some(steps) = steps else { return mixed };
        let rates = self.rates(steps, weight);
        let tile = self.arch.dispatch(Width { value_dim: weight.shape.value_dim });
        self.recur(&Job { weight, tile, mixed: mixed.as_slice(), rates: rates.as_slice() }, matrices)
    }

    /// Multiplies `x` by the SiLU of `gate`.
    pub fn gate(&self, x: &mut CpuTensor, gate: &CpuTensor) {
        let (cols, gate) = (x.cols(), gate.as_slice());
        self.each_row(
            x.as_mut_slice(),
            cols,
            #[inline(always)]
            |t, row| math::silu_gate(row, &gate[t * cols..][..cols]),
        );
    }

    /// Computes each head's decay and the factor on its addend.
    fn rates(&self, steps: &CpuTensor, weight: &CpuRecurrent) -> CpuTensor {
        let (heads, width) = (weight.shape.heads, steps.cols());
        let is_delta = weight.shape.kind == RecurrentKind::DeltaNet;
        let mut out = self.pool.tensor(steps.rows(), 2 * heads);
        let steps = steps.as_slice();
        self.each_row(out.as_mut_slice(), 2 * heads, |t, row| {
            let own = &steps[t * width..][..width];
            let (decays, factors) = row.split_at_mut(heads);
            for head in 0..heads {
                let step = softplus(own[width - heads + head] + weight.step_bias[head]);
                decays[head] = (weight.decay[head] * step).exp();
                factors[head] = if is_delta { sigmoid(own[head]) } else { step };
            }
        });
        out
    }

    /// Takes the tokens of each sequence through the matrices of the heads.
    fn recur(&self, job: &Job<'_>, sequences: Vec<SpanStates<'_>>) -> CpuTensor {
        let Recurrent { heads, key_dim, value_dim, .. } = job.weight.shape;
        let rows = job.rates.len() / (2 * heads);
        // A task computes whole heads, or tiles if the threads outnumber the heads.
        let width = if heads * sequences.len() < self.threads.count() { job.tile } else { value_dim };
        let mut results = self.pool.tensor(rows, heads * value_dim);
        let mut tasks: Vec<Columns<'_>> = Vec::new();
        let mut left = results.as_mut_slice().chunks_mut(heads * value_dim);
        for SpanStates { span, stops } in sequences {
            let begin = tasks.len();
            let (first_row, tokens) = (span.start, span.len);
            tasks.extend((0..heads * value_dim).step_by(width).map(|first| {
                let (out, states) = (Vec::with_capacity(tokens), Vec::with_capacity(stops.len()));
                Columns { first_row, first, out, states }
            }));
            for row in left.by_ref().take(tokens) {
                row.chunks_mut(width).zip(&mut tasks[begin..]).for_each(|(part, task)| task.out.push(part));
            }
            for (end, state) in stops {
                let parts = state.chunks_mut(key_dim * width).zip(&mut tasks[begin..]);
                parts.for_each(|(part, task)| task.states.push((end, part)));
            }
        }
        let parts = self.threads.parts(2 * rows * heads * value_dim * key_dim, tasks.len());
        let chunk = tasks.len().div_ceil(parts).max(1);
        let arch: Arch = self.arch;
        self.threads.each(tasks.chunks_mut(chunk), |tasks| {
            tasks.iter_mut().for_each(|columns| arch.dispatch(Run { job, columns }));
        });
        drop(tasks);
        results
    }
}

impl Job<'_> {
    /// The first columns of a head's query and key, and of all values, among the channels.
    #[inline(always)]
    fn columns(&self, head: usize) -> [usize; 3] {
        let Recurrent { kind, key_heads, heads, key_dim, tiled, .. } = self.weight.shape;
        let (keys, values) = (key_heads * key_dim, self.weight.shape.inner());
        let at = key_dim * if tiled { head % key_heads } else { head / (heads / key_heads) };
        match kind {
            RecurrentKind::Mamba => [values + keys + at, values + at, 0],
            RecurrentKind::DeltaNet | RecurrentKind::Convolution => [at, keys + at, 2 * keys],
        }
    }
}
