//! Experts: routing, the slots of each expert, two grouped products and a weighted sum. A shared expert is a dense unit.

use std::ops::Range;

use cuda_std::launch::{DevicePtr, DevicePtrMut};
use cuda_std::vector::Vector;
use kernels::experts::combine::{self, combine_experts};
use kernels::experts::plan::{
    ExpertsPlan, GroupedOperands, GroupedProduct, GroupedWeight, Groups, Router, RouterOperands, Unit,
};
use kernels::floor::Floor;
use kernels::layout::VECTOR;
use kernels::with_element;

use crate::backend::cuda::memory::tensor::{CudaProjection, CudaTensor, CudaWeight};
use crate::backend::cuda::memory::weights;
use crate::backend::cuda::step::queue::LaunchCost;
use crate::backend::cuda::{CudaBackend, Lease, StepInputs};
use crate::backend::{Activation, Backend, Clamp, HostExpert, HostExperts, HostLinear, Routing};
use crate::config::RouterScores;
use crate::error::{Error, Result};
use crate::tensor::{DType, HostTensor};

/// The experts of a layer.
pub struct CudaExperts {
    router: Router,
    /// The numbers of this worker's experts.
    own: Range<u32>,
    correction: Option<CudaWeight>,
    scale: Option<CudaWeight>,
    /// The gate and up projections of all experts, one expert after the other.
    gate_up: CudaProjection,
    down: CudaProjection,
    unit: Unit,
    /// Elements of an expert's gate.
    inner: u32,
    /// The gate and up projections of the shared expert, and its down projection.
    shared: Option<[CudaProjection; 2]>,
    activation: Activation,
}

/// The choices of a step's tokens on the device.
struct Choices {
    plan: ExpertsPlan,
    /// `[tokens][top_k]`: the experts.
    chosen: Lease,
    /// `[tokens][uses]`: the factors.
    factors: Lease,
    /// The slots in order of their experts.
    order: Lease,
    /// The tiles of all experts.
    tiles: Lease,
}

impl Choices {
    fn order(&self) -> DevicePtr<u32> {
        DevicePtr::from_address(self.order.address())
    }

    fn tiles(&self) -> DevicePtr<Vector> {
        DevicePtr::from_address(self.tiles.address())
    }

    /// The number of experts with tokens if routers choose all of them equally often. Costs are based on it.
    fn expected_experts(&self, all: u32) -> u32 {
        let ExpertsPlan { tokens, top_k, count, .. } = self.plan;
        let unused = (1.0 - f64::from(top_k) / f64::from(all)).powi(tokens as i32);
        (f64::from(count) * (1.0 - unused)).round() as u32
    }
}

impl CudaBackend {
    /// Copies the experts of a layer to the device.
    pub(in crate::backend::cuda) fn load_experts(
        &self,
        settings: HostExperts,
        experts: &mut dyn Iterator<Item = Result<HostExpert>>,
    ) -> Result<CudaExperts> {
        let HostExperts { count, own, routing, correction, scale, activation, clamp, shared } = settings;
        let router = router(count, routing, shared.map(|shared| shared.gated));
        router.check().map_err(|error| Error::Unsupported(format!("on the GPU: {error}")))?;
        let mut experts = experts.collect::<Result<Vec<HostExpert>>>()?;
        let shared = shared.and_then(|_| experts.pop()).map(|expert| self.load_shared(expert)).transpose()?;
        let inner = experts.first().map_or(0, |expert| expert.gate_up[0].weight.shape()[0]);
        if inner == 0 || !inner.is_multiple_of(VECTOR as usize) {
            return Err(Error::Unsupported(format!("experts of {inner} elements on the GPU, not a multiple of 8")));
        }
        let unit = match clamp {
            Some(Clamp { alpha, limit }) => Some(Unit::Clamped { alpha, limit }),
            None => Unit::gated(activation),
        };
        let unit = unit.ok_or_else(|| Error::Unsupported("experts on the GPU with this activation".into()))?;
        let (mut gates_ups, mut downs) = (Vec::new(), Vec::new());
        for HostExpert { gate_up, down } in experts {
            gates_ups.extend(gate_up.map(|linear| self.with_own_bias(linear)));
            downs.push(self.with_own_bias(down));
        }
        let numbers =
            |tensor: Option<HostTensor>| tensor.map(|tensor| self.load(&tensor.to_dtype(DType::F32))).transpose();
        Ok(CudaExperts {
            router,
            own: own.start as u32..own.end as u32,
            correction: numbers(correction)?,
            scale: numbers(scale)?,
            gate_up: self.fuse_experts(gates_ups, weights::interleaved)?,
            down: self.fuse_experts(downs, weights::padded_each)?,
            unit,
            inner: inner as u32,
            shared,
            activation,
        })
    }

    /// Copies a shared expert to the device.
    fn load_shared(&self, HostExpert { gate_up, down }: HostExpert) -> Result<[CudaProjection; 2]> {
        // Shared experts have no biases.
        let down = CudaProjection { weight: self.load_projection(down.weight)?, bias: None };
        Ok([self.gated_weight(gate_up)?, down])
    }

    /// Converts a bias to the type of activations.
    fn with_own_bias(&self, HostLinear { weight, bias, .. }: HostLinear) -> HostLinear {
        HostLinear::fixed(weight, bias.map(|bias| bias.to_dtype(self.dtype)))
    }

    /// Routes each row of `x` to experts by its row of `logits`, and returns the weighted sum of their results.
    pub(in crate::backend::cuda) fn apply_experts(
        &self,
        x: &CudaTensor,
        logits: &CudaTensor,
        weight: &CudaExperts,
        inputs: &StepInputs,
    ) -> CudaTensor {
        debug_assert!(logits.is_float && logits.rows == x.rows);
        let choices = self.choose(logits, weight, inputs);
        let slots = choices.plan.slots();
        let inner = self.tensor(slots, weight.inner);
        self.project_groups(x, &weight.gate_up, (weight, &choices), weight.unit, &inner);
        let results = self.tensor(slots, x.cols);
        self.project_groups(&inner, &weight.down, (weight, &choices), Unit::Plain, &results);
        drop(inner);
        let shared = weight.shared.as_ref().map(|[gate_up, down]| {
            let inner = self.gated(x, gate_up, weight.activation);
            self.linear(&inner, &down.weight, down.bias.as_ref(), None)
        });
        self.combine(&choices, &results, shared.as_ref())
    }

    /// Chooses experts for each row of `logits`, and collects the slots of each expert. Padding uses no experts, so their
    /// weights are not read for it.
    fn choose(&self, logits: &CudaTensor, weight: &CudaExperts, inputs: &StepInputs) -> Choices {
        let (router, tokens) = (weight.router, logits.rows);
        let mut plan = ExpertsPlan::new(tokens, router.top_k, router.experts, weight.own.clone());
        if [&weight.gate_up, &weight.down].iter().all(|projection| projection.weight.coded.is_none()) {
            plan = plan.on_hopper(router.experts, self.queue.limits());
        }
        let words = |count: u32| self.lease(4 * count as usize);
        let [chosen, order] = [plan.slots(); 2].map(words);
        let (factors, tiles) = (words(tokens * router.uses()), words(4 * plan.tiles()));
        let numbers = |weight: &Option<CudaWeight>| weight.as_ref().map_or(DevicePtr::NULL, CudaWeight::ptr);
        let chosen_at = DevicePtrMut::from_address(chosen.address());
        let operands = RouterOperands {
            logits: logits.ptr().cast_const(),
            stride: logits.stride,
            kv_slots: inputs.bucket.map_or(DevicePtr::NULL, |_| inputs.slots(0).cast_const()),
            correction: numbers(&weight.correction),
            scale: numbers(&weight.scale),
            chosen: chosen_at,
            factors: DevicePtrMut::from_address(factors.address()),
        };
        let moved = |words: u32| move || Floor { bytes: 4 * u64::from(words), flops: 0 };
        let read = moved(tokens * router.experts + 2 * plan.slots());
        let sorted = moved(2 * plan.slots());
        let (order_at, tiles_at) =
            (DevicePtrMut::from_address(order.address()), DevicePtrMut::from_address(tiles.address()));
        // SAFETY: the arrays have the plan's sizes, and the router was checked when it was loaded.
        unsafe {
            self.queue.launch(router.shape(tokens), router.call(tokens, operands), read);
            self.queue.launch(plan.shape(), plan.call(chosen_at.cast_const(), order_at, tiles_at), sorted);
        }
        Choices { plan, chosen, factors, order, tiles }
    }

    /// Computes a projection of all experts. The first one gathers rows of tokens, and the second one, whose unit is
    /// plain, returns rows of slots.
    fn project_groups(
        &self,
        x: &CudaTensor,
        projection: &CudaProjection,
        (experts, choices): (&CudaExperts, &Choices),
        unit: Unit,
        out: &CudaTensor,
    ) {
        let weight = &projection.weight;
        let n = if unit == Unit::Plain { out.cols } else { 2 * out.cols };
        let coded = weight.coded.map(|coded| (coded.shape.form, coded.shape.group));
        let product = GroupedProduct { plan: choices.plan, n, k: weight.cols, unit, coded };
        debug_assert!(weight.rows == product.plan.count * product.rows() && x.cols == weight.cols);
        let operands = GroupedOperands {
            x: x.ptr().cast_const(),
            x_stride: x.stride,
            bias: projection.bias.as_ref().map_or(DevicePtr::NULL, CudaWeight::ptr),
            out: out.ptr(),
            out_stride: out.stride,
            order: choices.order(),
            tiles: choices.tiles(),
        };
        let address = match weight.coded {
            Some(coded) => GroupedWeight::Coded(weight.operand(coded)),
            None => GroupedWeight::Half(weight.ptr()),
        };
        let cost = || {
            let used = choices.expected_experts(experts.router.experts);
            let weights = u64::from(used) * product.expert_bytes();
            LaunchCost { floor: product.floor(used), weights, ..LaunchCost::default() }
        };
        // SAFETY: the weights of all experts have the product's rows, and `out` has a row for each slot. Rows are aligned
        // to 16 bytes. The list of tiles was made for this plan.
        unsafe { self.queue.launch(product.shape(), product.call(self.element, operands, address), cost) };
    }

    /// Returns the weighted sum of the results of each token's experts.
    fn combine(&self, choices: &Choices, results: &CudaTensor, shared: Option<&CudaTensor>) -> CudaTensor {
        let ExpertsPlan { tokens, top_k, first, count, .. } = choices.plan;
        let out = self.tensor(tokens, results.cols);
        let vectors = self.vectors(out.cols);
        let args = combine_experts {
            results: results.ptr().cast_const(),
            chosen: DevicePtr::from_address(choices.chosen.address()),
            factors: DevicePtr::from_address(choices.factors.address()),
            shared: shared.map_or(DevicePtr::NULL, |shared| shared.ptr().cast_const()),
            out: out.ptr(),
            tokens,
            vectors,
            top_k,
            first,
            count,
        };
        let rows = u64::from(choices.plan.slots() + tokens * (1 + u32::from(shared.is_some())));
        let floor = || Floor { bytes: 2 * rows * u64::from(out.cols), flops: 0 };
        let call = with_element!(self.element, T => args.instance::<T>());
        // SAFETY: there is a result for each slot, and rows consist of whole vectors.
        unsafe { self.queue.launch(combine::shape(tokens, vectors), call, floor) };
        out
    }
}

/// Describes a router for the kernels.
fn router(count: usize, routing: Routing, shared: Option<bool>) -> Router {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Router {
        experts: number(count),
        top_k: number(routing.top_k),
        is_sigmoid: routing.scores == RouterScores::Sigmoid,
        is_renormalised: routing.renormalised,
        scale: routing.scale,
        groups: routing.groups.map(|groups| Groups {
            count: number(groups.count),
            top_k: number(groups.top_k),
            best: number(groups.best),
        }),
        shared,
    }
}
