//! Experts: gated units. Each token uses a few of them.
//!
//! Tokens are grouped by expert. A step therefore reads the weights of each expert at most once. The products of several
//! experts run at the same time, in tiles of similar size. A token's result is the sum of its experts' results in order of
//! their numbers. It does not depend on other tokens.
//!
//! If the weights do not fit in memory, experts stay in their file. The system reads them when tokens use them, and keeps
//! as many as fit in the page cache.

use std::ops::Range;

use checkpoint::Result;
use checkpoint::config::{Activation, Clamp};
use checkpoint::tensor::HostTensor;

use super::math::{activate, clamped_gate, compiled, multiply};
use super::projection::CpuProjection;
use super::routing::{Choice, Router, Scratch, gaps};
use super::{Cpu, CpuTensor, CpuWeight};

/// Rows of activations that are computed at a time, unless one expert has more. It bounds the memory for them.
const ROWS: usize = 2048;
/// Experts that are copied from their file at a time.
const COPIED: usize = 8;

/// The experts of a layer.
pub struct CpuExperts {
    /// Chooses experts for each token.
    pub router: Router,
    /// How experts combine gate and up.
    pub unit: GatedUnit,
    /// The number of experts that tokens are routed to.
    pub count: usize,
    /// The numbers of this worker's experts among them. Tokens of other experts add zero.
    pub own: Range<usize>,
    /// The worker's experts. A shared expert is the last one.
    pub experts: Vec<CpuExpert>,
}

/// The gate, up and down projections of an expert.
pub enum CpuExpert {
    /// Projections in memory.
    Loaded([CpuProjection; 3]),
    /// Projections in their file. Each use copies them.
    Stored([StoredProjection; 3]),
}

/// A projection that stays in its file: its weight and its optional bias.
pub struct StoredProjection {
    weight: HostTensor,
    bias: Option<CpuWeight>,
}

impl CpuExperts {
    /// Returns an expert's place among the worker's, or `None` if another worker has it.
    fn place(&self, expert: u32) -> Option<usize> {
        let expert = expert as usize;
        if expert == self.count {
            return Some(self.own.len()); // the shared expert
        }
        self.own.contains(&expert).then(|| expert - self.own.start)
    }
}

/// The combination of a gate and an up projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedUnit {
    /// `act(gate) * up`
    Plain(Activation),
    /// `gate * sigmoid(alpha * gate) * (up + 1)`, where `gate` and `up` are clamped.
    Clamped(Clamp),
}

/// The choices of all tokens, and the tokens of each expert.
struct Plan {
    /// `[T, uses]`: in each row in order of experts.
    choices: Vec<Choice>,
    /// `[T, uses]`: the index of the token in the expert's list of tokens. Unused for experts of other workers.
    positions: Vec<u32>,
    uses: usize,
    /// The tokens of each of the worker's experts, in order.
    tokens: Vec<Vec<u32>>,
}

/// Activations of the tokens of one expert.
struct Rows {
    expert: usize,
    /// The inputs. `None` if they are the inputs of all tokens.
    inputs: Option<CpuTensor>,
}

impl Cpu {
    /// Routes each row of `x` to experts by its row of `logits`, and returns the weighted sum of their results.
    pub fn experts(&self, x: &CpuTensor, logits: &CpuTensor, weight: &CpuExperts) -> CpuTensor {
        let mut out = self.pool.tensor(x.rows(), x.cols());
        out.as_mut_slice().fill(0.0);
        if x.rows() > 0 {
            let plan = self.plan(logits, weight);
            for experts in plan.batches(|expert| matches!(weight.experts[expert], CpuExpert::Stored(_))) {
                self.add_experts(&mut out, x, weight, &plan, experts);
            }
        }
        out
    }

    /// Takes the matrices of a projection that stays in its file.
    ///
    /// # Errors
    /// If the system has no memory for the bias.
    pub fn stored_projection(&self, weight: HostTensor, bias: Option<HostTensor>) -> Result<StoredProjection> {
        Ok(StoredProjection { weight, bias: bias.map(|bias| self.weight(bias)).transpose()? })
    }

    /// Copies the projections of an expert from their file. Returns `None` if they are in memory.
    ///
    /// # Panics
    /// If the system has no memory for them.
    fn copied_expert(&self, expert: &CpuExpert) -> Option<[CpuProjection; 3]> {
        let CpuExpert::Stored(stored) = expert else { return None };
        Some(stored.each_ref().map(|StoredProjection { weight, bias }| {
            let weight = self.copied(weight).unwrap_or_else(|error| panic!("an expert cannot be read: {error}"));
            CpuProjection { weight, bias: bias.clone() }
        }))
    }

    fn plan(&self, logits: &CpuTensor, weight: &CpuExperts) -> Plan {
        let (uses, cols) = (weight.router.uses(), logits.cols());
        let mut choices = vec![Choice::default(); logits.rows() * uses];
        let parts = self.threads.parts(logits.as_slice().len() * 8, logits.rows());
        let chunk = logits.rows().div_ceil(parts);
        let tasks = choices.chunks_mut(chunk * uses).zip(logits.as_slice().chunks(chunk * cols));
        self.threads.each(tasks, |(choices, logits)| {
            let mut scratch = Scratch::default();
            for (to, logits) in choices.chunks_mut(uses).zip(logits.chunks(cols)) {
                weight.router.choose(logits, to, &mut scratch);
            }
        });
        gaps::record(&weight.router, logits.as_slice(), cols);
        let mut tokens = vec![Vec::new(); weight.experts.len()];
        let positions = choices.iter().enumerate().map(|(i, choice)| {
            let Some(place) = weight.place(choice.expert) else { return 0 };
            let tokens: &mut Vec<u32> = &mut tokens[place];
            tokens.push((i / uses) as u32);
            tokens.len() as u32 - 1
        });
        Plan { positions: positions.collect(), choices, uses, tokens }
    }

    /// Adds the weighted results of some experts to `out`.
    fn add_experts(&self, out: &mut CpuTensor, x: &CpuTensor, weight: &CpuExperts, plan: &Plan, experts: Range<usize>) {
        let rows: Vec<Rows> = experts
            .filter(|expert| !plan.tokens[*expert].is_empty())
            .map(|expert| {
                let tokens = &plan.tokens[expert];
                Rows { expert, inputs: (tokens.len() < x.rows()).then(|| self.gather(x, tokens)) }
            })
            .collect();
        let inputs: Vec<&CpuTensor> = rows.iter().map(|rows| rows.inputs.as_ref().unwrap_or(x)).collect();
        let copied: Vec<_> = rows.iter().map(|rows| self.copied_expert(&weight.experts[rows.expert])).collect();
        let project = |inputs: &[&CpuTensor], parts: &[usize]| -> Vec<CpuTensor> {
            let mut all = Vec::new();
            for ((rows, copied), x) in rows.iter().zip(&copied).zip(inputs) {
                let ((CpuExpert::Loaded(own), _) | (_, Some(own))) = (&weight.experts[rows.expert], copied) else {
                    unreachable!("an expert is in memory or was copied")
                };
                all.extend(parts.iter().map(|part| (&own[*part], *x)));
            }
            self.apply_all(&all)
        };
        let mut gates = project(&inputs, &[0, 1]);
        self.gate_all(&mut gates, weight.unit);
        let inner: Vec<&CpuTensor> = gates.iter().step_by(2).collect();
        let results = project(&inner, &[2]);
        let mut of_expert = vec![None; weight.experts.len()];
        rows.iter().zip(&results).for_each(|(rows, result)| of_expert[rows.expert] = Some(result.as_slice()));
        let cols = out.cols();
        self.each_row(
            out.as_mut_slice(),
            cols,
            #[inline(always)]
            |t, row| {
                let own = t * plan.uses..(t + 1) * plan.uses;
                for (choice, &position) in plan.choices[own.clone()].iter().zip(&plan.positions[own]) {
                    if let Some(result) = weight.place(choice.expert).and_then(|place| of_expert[place]) {
                        let result = &result[position as usize * cols..][..cols];
                        row.iter_mut().zip(result).for_each(|(y, x)| *y += choice.factor * x);
                    }
                }
            },
        );
    }

    /// Computes several projections at the same time.
    pub(super) fn apply_all(&self, all: &[(&CpuProjection, &CpuTensor)]) -> Vec<CpuTensor> {
        let (mut projected, mut out) = (Vec::new(), Vec::new());
        for (projection, x) in all {
            out.push(self.pool.tensor(x.rows(), projection.weight.extents().0));
            projected.push(self.prepare(x, &projection.weight, projection.bias.as_ref(), (None, false)));
        }
        self.project_all(&projected, out.iter_mut());
        out
    }

    /// Combines gates and ups, which alternate in `all`. The results replace the gates.
    fn gate_all(&self, all: &mut [CpuTensor], unit: GatedUnit) {
        let total: usize = all.iter().step_by(2).map(|gate| gate.as_slice().len()).sum();
        // An element takes about as long as eight multiply-adds of a projection.
        let chunk = total.div_ceil(self.threads.parts(total * 8, total)).max(1);
        let mut tasks = Vec::new();
        for pair in all.chunks_exact_mut(2) {
            let [gate, up] = pair else { unreachable!("pairs have two matrices") };
            tasks.extend(gate.as_mut_slice().chunks_mut(chunk).zip(up.as_slice().chunks(chunk)));
        }
        self.threads.each(tasks.into_iter(), |(gate, up)| {
            compiled(
                self.arch,
                #[inline(always)]
                || unit.apply(gate, up),
            );
        });
    }
}

impl GatedUnit {
    /// Replaces gates by the results.
    #[inline(always)]
    fn apply(self, gate: &mut [f32], up: &[f32]) {
        match self {
            GatedUnit::Plain(act) => {
                activate(gate, act);
                multiply(gate, up);
            }
            GatedUnit::Clamped(Clamp { alpha, limit }) => clamped_gate(gate, up, alpha, limit),
        }
    }
}

impl Plan {
    /// Divides the experts into ranges with a limited number of rows, and of used experts that are in their file. An expert
    /// with more rows has a range of its own.
    fn batches(&self, is_stored: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
        let (mut batches, mut start, mut rows, mut copied) = (Vec::new(), 0, 0, 0);
        for (expert, tokens) in self.tokens.iter().enumerate() {
            if rows > 0 && (rows + tokens.len() > ROWS || copied == COPIED) {
                batches.push(start..expert);
                (start, rows, copied) = (expert, 0, 0);
            }
            rows += tokens.len();
            copied += usize::from(!tokens.is_empty() && is_stored(expert));
        }
        batches.push(start..self.tokens.len());
        batches
    }
}
