//! Layers with experts: random routings and weights, and their reference results.

use cuda_std::launch::{DevicePtr, KernelCall, LaunchShape};
use cuda_std::vector::Vector;
use kernels::experts::plan::{
    ExpertsPlan, GroupedOperands, GroupedProduct, GroupedWeight, Groups, Router, RouterOperands, Unit,
};
use kernels::experts::route::NO_EXPERT;
use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::{Epilogue, gated_row};
use kernels::gemm::plan::Product;
use kernels::gemm::quantised::plan::QuantisedPlan;
use launch::Result;

use crate::case::exact;
use crate::gpu::{Buffer, Gpu, PROJECTION};
use crate::number::{ProblemRng, Type, relative_error};
use crate::product::{Data, activated};
use crate::quantised::QuantisedProblem;

/// A router with logits.
#[derive(Clone, Debug)]
pub struct RoutingProblem {
    /// The router.
    pub router: Router,
    /// Tokens.
    pub tokens: u32,
    /// `[tokens][stride]`
    pub logits: Vec<f32>,
    /// Numbers between rows of logits.
    pub stride: u32,
    /// The number of the last tokens that are padding.
    pub padding: u32,
    /// `[experts]`
    pub correction: Option<Vec<f32>>,
    /// `[experts]`
    pub scale: Option<Vec<f32>>,
}

/// A router's results.
#[derive(Clone, Debug)]
pub struct Routed {
    /// `[tokens][top_k]`
    pub chosen: Vec<u32>,
    /// `[tokens][uses]`
    pub factors: Vec<f64>,
}

impl RoutingProblem {
    /// Creates a problem with random logits. Every fourth one equals the one before, so that experts are tied.
    pub fn new(router: Router, tokens: u32, seed: u64) -> RoutingProblem {
        let mut random = ProblemRng(seed);
        let stride = router.experts + u32::from(router.shared == Some(true)) + 3;
        let mut logits: Vec<f32> = (0..tokens * stride).map(|_| 4.0 * random.unit() as f32).collect();
        (3..logits.len()).step_by(4).for_each(|i| logits[i] = logits[i - 1]);
        RoutingProblem { router, tokens, logits, stride, padding: 0, correction: None, scale: None }
    }

    /// Adds random corrections and factors of experts.
    pub fn corrected(mut self, seed: u64) -> RoutingProblem {
        let mut random = ProblemRng(seed);
        let mut numbers = || Some((0..self.router.experts).map(|_| random.unit() as f32).collect());
        (self.correction, self.scale) = (numbers(), numbers());
        self
    }

    /// Computes the reference.
    pub fn truth(&self) -> Routed {
        let (mut chosen, mut factors) = (Vec::new(), Vec::new());
        let (top_k, uses) = (self.router.top_k as usize, self.router.uses() as usize);
        for (token, logits) in (0..).zip(self.logits.chunks(self.stride as usize)) {
            if token < self.tokens - self.padding {
                self.route(logits, &mut chosen, &mut factors);
            } else {
                chosen.extend(vec![NO_EXPERT; top_k]);
                factors.extend(vec![0.0; uses]);
            }
        }
        Routed { chosen, factors }
    }

    fn route(&self, row: &[f32], chosen: &mut Vec<u32>, factors: &mut Vec<f64>) {
        let Router { experts, top_k, is_sigmoid, is_renormalised, scale, groups, shared } = self.router;
        let logits: Vec<f64> = row[..experts as usize].iter().map(|&x| x.into()).collect();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let greatest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|x| (x - greatest).exp()).sum();
        let scores = logits.iter().map(|&x| if is_sigmoid { sigmoid(x) } else { (x - greatest).exp() / sum });
        let scores: Vec<f64> = scores.collect();
        let keys: Vec<f64> = match &self.correction {
            Some(correction) => scores.iter().zip(correction).map(|(x, &c)| x + f64::from(c)).collect(),
            None => logits,
        };
        let Groups { count, top_k: top_groups, best } = groups.unwrap_or(Groups { count: 1, top_k: 1, best: 1 });
        let size = (experts / count) as usize;
        let group_keys: Vec<f64> = (0..count as usize)
            .map(|g| best_of(&keys, g * size..(g + 1) * size, best).into_iter().map(|e| keys[e]).sum())
            .collect();
        let used = best_of(&group_keys, 0..count as usize, top_groups);
        let candidates = (0..experts as usize).filter(|e| used.contains(&(e / size)));
        let mut own = best_of(&keys, candidates, top_k);
        let divisor = if is_renormalised { own.iter().map(|&e| scores[e]).sum::<f64>() + 1e-20 } else { 1.0 };
        own.sort_unstable();
        for e in own {
            chosen.push(e as u32);
            let of_expert = self.scale.as_ref().map_or(1.0, |scale| scale[e].into());
            factors.push(scores[e] / divisor * f64::from(scale) * of_expert);
        }
        match shared {
            Some(true) => factors.push(sigmoid(row[experts as usize].into())),
            Some(false) => factors.push(1.0),
            None => {}
        }
    }

    /// Uploads the problem to a device.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn place(&self, gpu: &mut Gpu) -> Result<PlacedRouting> {
        let Router { top_k, .. } = self.router;
        let mut numbers = |name: &str, numbers: &Option<Vec<f32>>| -> Result<DevicePtr<f32>> {
            numbers.as_ref().map_or(Ok(DevicePtr::NULL), |numbers| Ok(gpu.upload(name, numbers)?.ptr()))
        };
        let (correction, scale) = (numbers("correction", &self.correction)?, numbers("scale", &self.scale)?);
        let logits = gpu.upload("logits", &self.logits)?;
        let chosen = gpu.alloc("chosen", (self.tokens * top_k) as usize)?;
        let factors = gpu.alloc("factors", (self.tokens * self.router.uses()) as usize)?;
        let slots: Vec<i32> =
            (0..self.tokens).map(|token| if token < self.tokens - self.padding { 7 } else { -1 }).collect();
        let operands = RouterOperands {
            logits: logits.ptr(),
            stride: self.stride,
            kv_slots: gpu.upload("KV slots", &slots)?.ptr(),
            correction,
            scale,
            chosen: chosen.mut_ptr(),
            factors: factors.mut_ptr(),
        };
        let call = self.router.call(self.tokens, operands);
        Ok(PlacedRouting { shape: self.router.shape(self.tokens), call, chosen, factors })
    }

    /// Returns the error of results, relative to the allowed error. It is infinite if a token has other experts.
    ///
    /// # Errors
    /// [`launch::Error`], also if a kernel faults.
    pub fn error(&self, placed: &PlacedRouting, gpu: &Gpu) -> Result<f64> {
        let truth = self.truth();
        let mut error = exact(&gpu.download(placed.chosen)?, &truth.chosen);
        for (got, want) in gpu.download(placed.factors)?.into_iter().zip(truth.factors) {
            let off = (f64::from(got) - want).abs() / (1e-6 * (want.abs() + 1e-6));
            let is_defined = got.is_nan() == want.is_nan();
            error = f64::max(
                error,
                if !is_defined {
                    f64::INFINITY
                } else if want.is_nan() {
                    0.0
                } else {
                    off
                },
            );
        }
        Ok(error)
    }
}

/// Returns the candidates with the highest keys, best first. NaN is above all numbers.
fn best_of(keys: &[f64], candidates: impl Iterator<Item = usize>, count: u32) -> Vec<usize> {
    let mut all: Vec<usize> = candidates.collect();
    all.sort_by(|&a, &b| {
        let by_key = keys[b].partial_cmp(&keys[a]).unwrap_or_else(|| keys[b].is_nan().cmp(&keys[a].is_nan()));
        by_key.then(a.cmp(&b))
    });
    all.truncate(count as usize);
    all
}

/// A routing problem on a device.
#[derive(Clone, Copy)]
pub struct PlacedRouting {
    shape: LaunchShape,
    call: KernelCall,
    chosen: Buffer<u32>,
    factors: Buffer<f32>,
}

impl PlacedRouting {
    /// Queues the launch.
    ///
    /// # Errors
    /// [`launch::Error`] if the kernel and the device do not match.
    pub fn launch(&self, gpu: &mut Gpu) -> Result<()> {
        // SAFETY: the arrays have the router's sizes.
        unsafe { gpu.launch(self.shape, self.call) }
    }
}

/// The experts of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Random experts.
    Random,
    /// All tokens use the same experts, the last ones.
    Same,
    /// Each token uses the experts after those of the previous token.
    Turns,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 3] = [Pattern::Random, Pattern::Same, Pattern::Turns];

    /// Returns the experts of each token in order, `[tokens][top_k]`.
    pub fn chosen(self, tokens: u32, top_k: u32, experts: u32, seed: u64) -> Vec<u32> {
        let mut random = ProblemRng(seed);
        let mut all: Vec<u32> = (0..experts).collect();
        let mut chosen = Vec::new();
        for token in 0..tokens {
            match self {
                Pattern::Random => random.shuffle(&mut all),
                Pattern::Same => all.rotate_left(if token == 0 { (experts - top_k) as usize } else { 0 }),
                Pattern::Turns => all.rotate_left(if token == 0 { 0 } else { top_k as usize }),
            }
            let mut own = all[..top_k as usize].to_vec();
            own.sort_unstable();
            chosen.extend(own);
        }
        chosen
    }
}

/// Returns the slots of a worker's experts in order of experts, and the tiles of these slots.
pub fn grouped(plan: ExpertsPlan, chosen: &[u32]) -> (Vec<u32>, Vec<[u32; 4]>) {
    let (mut order, mut tiles) = (Vec::new(), Vec::new());
    for expert in 0..plan.count {
        let own = (0..).zip(chosen).filter(|(_, other)| **other == plan.first + expert).map(|(slot, _)| slot);
        let own: Vec<u32> = own.collect();
        for tile in own.chunks(plan.tile as usize) {
            tiles.push([expert, order.len() as u32, tile.len() as u32, 0]);
            order.extend(tile);
        }
    }
    assert!(tiles.len() <= plan.tiles() as usize, "{plan:?} has too few tiles");
    tiles.resize(plan.tiles() as usize, [0; 4]);
    (order, tiles)
}

/// A projection of all experts with data.
#[derive(Clone, Debug)]
pub struct GroupedProblem {
    /// The product.
    pub product: GroupedProduct,
    data: Data,
    chosen: Vec<u32>,
    /// Activations, with NaN between the rows.
    x: Vec<u16>,
    /// The elements of the weight unless it is coded.
    weight: Vec<u16>,
    coded: Option<QuantisedProblem>,
    bias: Option<Vec<u16>>,
}

impl GroupedProblem {
    /// Creates a problem for the experts of each token.
    pub fn new(product: GroupedProduct, chosen: Vec<u32>, data: Data) -> GroupedProblem {
        let plan = product.plan;
        // Fewer tokens leave the weights as they are.
        let (mut of_x, mut of_weight) = (ProblemRng(data.seed), ProblemRng(!data.seed));
        let tokens = if product.gathers() { plan.tokens } else { plan.slots() };
        let x = data.rows(&mut of_x, [tokens, product.k, data.gaps.0], 1.0);
        let all_rows = plan.count * product.rows();
        let coded = product.coded.map(|(form, group)| {
            let all = Product { m: 1, n: all_rows, k: product.k, epilogue: Epilogue::Half(None) };
            QuantisedProblem::new(QuantisedPlan { product: all, form, group, tokens: 8, splits: 1 }, data)
        });
        let weight = match &coded {
            Some(_) => Vec::new(),
            None => data.rows(&mut of_weight, [all_rows, product.k, 0], 6.0 / f64::from(product.k).sqrt()),
        };
        let bias = data.bias.then(|| data.rows(&mut of_weight, [1, all_rows, 0], 2.0));
        GroupedProblem { product, data, chosen, x, weight, coded, bias }
    }

    fn stride(&self) -> u32 {
        self.product.columns() + 4 * self.data.gaps.1
    }

    /// Uploads the problem to a device.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn place(&self, gpu: &mut Gpu) -> Result<PlacedGroups> {
        let (order, tiles) = grouped(self.product.plan, &self.chosen);
        let weight = match &self.coded {
            Some(coded) => GroupedWeight::Coded(coded.place_weight(gpu)?),
            None => GroupedWeight::Half(gpu.upload(PROJECTION, &self.weight)?.ptr()),
        };
        let out = vec![self.data.ty.nan(); (self.product.plan.slots() * self.stride()) as usize];
        let out = gpu.upload("out", &out)?;
        let bias = match &self.bias {
            Some(bias) => gpu.upload("bias", bias)?.ptr(),
            None => DevicePtr::NULL,
        };
        let operands = GroupedOperands {
            x: gpu.upload("x", &self.x)?.ptr(),
            x_stride: self.product.k + self.data.gaps.0,
            bias,
            out: out.mut_ptr(),
            out_stride: self.stride(),
            order: gpu.upload("order", &order)?.ptr(),
            tiles: gpu.upload("tiles", &tiles.concat())?.ptr::<Vector>(),
        };
        let call = self.product.call(self.data.ty.element(), operands, weight);
        Ok(PlacedGroups { shape: self.product.shape(), call, out })
    }

    /// Returns the bits of the result of each slot of the worker's experts, in order of slots, or an empty list if the
    /// kernel wrote anything else.
    ///
    /// # Errors
    /// [`launch::Error`], also if a kernel faults.
    pub fn results(&self, placed: &PlacedGroups, gpu: &Gpu) -> Result<Vec<(u32, Vec<u16>)>> {
        let (order, _) = grouped(self.product.plan, &self.chosen);
        let (columns, nan) = (self.product.columns() as usize, self.data.ty.nan());
        let mut results = Vec::new();
        let mut is_clean = true;
        let stored = gpu.download(placed.out)?;
        for (row, all) in (0..).zip(stored.chunks(self.stride() as usize)) {
            let (values, gap) = all.split_at(columns);
            is_clean &= gap.iter().all(|&bits| bits == nan);
            let slot = if self.product.gathers() {
                order.get(row as usize).copied()
            } else {
                order.contains(&row).then_some(row)
            };
            match slot {
                Some(slot) => results.push((slot, values.to_vec())),
                None => is_clean &= values.iter().all(|&bits| bits == nan),
            }
        }
        results.sort();
        Ok(if is_clean { results } else { Vec::new() })
    }

    /// Returns the error of results, relative to the allowed error. It is infinite if rows are missing.
    pub fn error(&self, results: &[(u32, Vec<u16>)]) -> f64 {
        let (order, _) = grouped(self.product.plan, &self.chosen);
        if results.len() != order.len() {
            return f64::INFINITY;
        }
        let allowed = if self.data.ty == Type::F16 { 6e-4 } else { 4.5e-3 };
        let (mut got, mut want) = (Vec::new(), Vec::new());
        for (i, (slot, values)) in results.iter().enumerate() {
            if i % self.data.every as usize == 0 {
                got.extend(values.iter().map(|&bits| self.data.ty.number(bits)));
                let place = order.iter().position(|other| other == slot).unwrap_or(0);
                want.extend(self.truth(*slot as usize, place));
            }
        }
        relative_error(got, &want) / allowed
    }

    /// Computes the reference of a slot, which is at `place` in order of experts.
    fn truth(&self, slot: usize, place: usize) -> Vec<f64> {
        let GroupedProduct { plan, n, k, unit, .. } = self.product;
        let (k, ty) = (k as usize, self.data.ty);
        let row = if self.product.gathers() { slot / plan.top_k as usize } else { place };
        let x = &self.x[row * (k + self.data.gaps.0 as usize)..][..k];
        let first = (self.chosen[slot] - plan.first) * self.product.rows();
        let element = |at: usize| match &self.coded {
            Some(coded) => coded.elements[at],
            None => ty.number(self.weight[at]),
        };
        let sum = |row: u32| -> f64 {
            let at = (first + row) as usize;
            let products = x.iter().zip(at * k..).map(|(&x, i)| element(i) * ty.number(x));
            products.sum::<f64>() + self.bias.as_ref().map_or(0.0, |bias| ty.number(bias[at]))
        };
        let both = |column: u32| [false, true].map(|up| sum(gated_row(column, up)));
        match unit {
            Unit::Plain => (0..n).map(sum).collect(),
            Unit::Silu | Unit::GeluTanh => {
                let act = if unit == Unit::Silu { Activation::Silu } else { Activation::GeluTanh };
                (0..n / 2).map(both).map(|[gate, up]| activated(act, gate) * up).collect()
            }
            Unit::Clamped { alpha, limit } => {
                let (alpha, limit) = (f64::from(alpha), f64::from(limit));
                let one = |[gate, up]: [f64; 2]| {
                    let gate = gate.min(limit);
                    gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
                };
                (0..n / 2).map(both).map(one).collect()
            }
        }
    }
}

/// A grouped product on a device.
#[derive(Clone, Copy)]
pub struct PlacedGroups {
    shape: LaunchShape,
    call: KernelCall,
    out: Buffer<u16>,
}

impl PlacedGroups {
    /// Queues the launch.
    ///
    /// # Errors
    /// [`launch::Error`] if the kernel and the device do not match.
    pub fn launch(&self, gpu: &mut Gpu) -> Result<()> {
        // SAFETY: the matrices have the product's shapes, and the tiles are the plan's.
        unsafe { gpu.launch(self.shape, self.call) }
    }
}
