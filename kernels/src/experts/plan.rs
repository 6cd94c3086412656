//! How the experts of a layer are launched.

use core::ops::Range;

use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall, LaunchShape, TensorTile, TileDimension};
use cuda_std::ptx::pattern::TilePattern;
use cuda_std::vector::Vector;

use super::coded::grouped_quantised;
use super::group::{self, group_by_expert};
use super::hopper::{self, grouped_hopper};
use super::product::{self, ROW_MULTIPLE, grouped_product};
use crate::element::ElementType;
use crate::floor::Floor;
use crate::gemm::activation::Activation;
use crate::gemm::operand;
use crate::gemm::plan::GpuLimits;
use crate::gemm::quantised::layout::{CodeForm, PackedShape};
use crate::gemm::quantised::{self, plan::PackedOperand};
use crate::with_element;

pub use super::router::{Groups, Router, RouterOperands, UnsupportedRouter};

/// The slots of a step, and the experts that this worker has. A plan depends only on shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsPlan {
    /// Tokens of the step.
    pub tokens: u32,
    /// Experts that a token uses.
    pub top_k: u32,
    /// The worker's first expert.
    pub first: u32,
    /// The number of the worker's experts.
    pub count: u32,
    /// Slots of a tile: a number from [`product::TOKENS`], or [`hopper::TOKENS`] for Hopper's kernel.
    pub tile: u32,
    /// Maximum number of blocks in a launch of Hopper's kernel, where each block computes several tiles. Unused by other
    /// kernels.
    pub blocks: u32,
}

impl ExpertsPlan {
    /// Returns the plan for a step of `tokens` tokens, with the worker's `own` of the layer's `experts` experts.
    pub const fn new(tokens: u32, top_k: u32, experts: u32, own: Range<u32>) -> Self {
        let (first, count) = (own.start, own.end - own.start);
        let [small, large] = product::TOKENS;
        // An expert has at most as many slots as there are tokens. A small tile suffices for nearly all experts if they
        // have half as many on average.
        let is_small = tokens <= small || tokens as u64 * top_k as u64 * 2 <= small as u64 * experts as u64;
        ExpertsPlan { tokens, top_k, first, count, tile: if is_small { small } else { large }, blocks: 0 }
    }

    /// Returns the plan with Hopper's kernel if the GPU has it and the layer's `experts` experts have many slots on
    /// average: half of [`GpuLimits::hopper_from`]. Weights must have 16-bit elements.
    ///
    /// A tile then has at least a quarter of its rows. With fewer, we expect `mma.sync` to be as fast.
    /// Reading the weights still takes longer.
    pub const fn on_hopper(self, experts: u32, gpu: GpuLimits) -> Self {
        match gpu.hopper_from {
            Some(least) if 2 * self.slots() as u64 >= least as u64 * experts as u64 => {
                ExpertsPlan { tile: hopper::TOKENS, blocks: gpu.multiprocessors, ..self }
            }
            _ => self,
        }
    }

    /// Whether products use Hopper's kernel.
    pub const fn is_for_hopper(self) -> bool {
        self.tile == hopper::TOKENS
    }

    /// Pairs of a token and one of its experts.
    pub const fn slots(self) -> u32 {
        self.tokens * self.top_k
    }

    /// The most tiles that the slots can have.
    pub const fn tiles(self) -> u32 {
        // Each expert with slots may have one tile that is not full.
        let partial = least(self.slots(), self.count);
        least(partial + (self.slots() - partial) / self.tile, self.count * self.tokens.div_ceil(self.tile))
    }

    /// The shape of [`group_by_expert()`]'s launch.
    pub const fn shape(self) -> LaunchShape {
        LaunchShape::linear(self.count, group::THREADS).with_shared(4 * self.count)
    }

    /// Returns [`group_by_expert()`] with its arguments. `order` has [`slots`](Self::slots) numbers, and `tiles` as many
    /// vectors as there are [`tiles`](Self::tiles).
    pub fn call(self, chosen: DevicePtr<u32>, order: DevicePtrMut<u32>, tiles: DevicePtrMut<Vector>) -> KernelCall {
        let (slots, first, tile, most) = (self.slots(), self.first, self.tile, self.tiles());
        group_by_expert { chosen, order, tiles, slots, first, tile, most }.into()
    }
}

/// How the rows of an expert's weight become columns of the output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Each row is a column.
    Plain,
    /// `silu(gate) * up`. Rows are in the order of [`gated_row`](crate::gemm::epilogue::gated_row).
    Silu,
    /// `gelu(gate) * up`, through the tanh approximation. Rows are in the same order.
    GeluTanh,
    /// `gate * sigmoid(alpha * gate) * (up + 1)`. Gates are at most `limit`, and ups between `-limit` and `limit`. Rows
    /// are in the same order.
    Clamped {
        /// The factor in the logistic function.
        alpha: f32,
        /// The limit.
        limit: f32,
    },
}

impl Unit {
    /// Returns the unit with an activation, or `None` if it has no kernel.
    pub const fn gated(act: Activation) -> Option<Unit> {
        match act {
            Activation::Silu => Some(Unit::Silu),
            Activation::GeluTanh => Some(Unit::GeluTanh),
            Activation::Relu | Activation::Gelu => None,
        }
    }

    /// The kernel's arguments `slope`, `cubic`, `limit` and `shift`.
    const fn numbers(self) -> [f32; 4] {
        match self {
            Unit::Plain => [0.0; 4],
            Unit::Silu => [1.0, 0.0, f32::INFINITY, 0.0],
            // (1 + tanh u) / 2 is the logistic function of 2u, and 1.595... is twice the square root of 2 / pi.
            Unit::GeluTanh => [1.595_769, 0.044_715, f32::INFINITY, 0.0],
            Unit::Clamped { alpha, limit } => [alpha, 0.0, limit, 1.0],
        }
    }
}

/// A projection of all experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedProduct {
    /// The slots and experts.
    pub plan: ExpertsPlan,
    /// Rows of an expert's weight that are used, a multiple of 8, or of 16 unless the unit is plain. They are padded to
    /// [`ROW_MULTIPLE`] in memory.
    pub n: u32,
    /// Length of the rows, a multiple of 8.
    pub k: u32,
    /// What is stored.
    pub unit: Unit,
    /// With `Some`, how the weights are coded, and the columns of their groups. With `None` they have 16-bit elements.
    pub coded: Option<(CodeForm, u32)>,
}

/// Device addresses of the weights of all experts.
#[derive(Clone, Copy, Debug)]
pub enum GroupedWeight {
    /// `[experts][rows][k]`, aligned to 16 bytes.
    Half(DevicePtr<u16>),
    /// A packed matrix `[experts * rows][k]`.
    Coded(PackedOperand),
}

/// Device addresses and strides of a grouped product.
#[derive(Clone, Copy, Debug)]
pub struct GroupedOperands {
    /// Rows of `k` elements, aligned to 16 bytes.
    pub x: DevicePtr<u16>,
    /// Elements between rows of `x`, a multiple of 8.
    pub x_stride: u32,
    /// `[experts][rows]`, aligned to 16 bytes, or null.
    pub bias: DevicePtr<u16>,
    /// Rows of [`columns`](GroupedProduct::columns) elements, aligned to 16 bytes.
    pub out: DevicePtrMut<u16>,
    /// Elements between rows of `out`, a multiple of 4, or of 8 for Hopper's kernel.
    pub out_stride: u32,
    /// The result of [`group_by_expert()`].
    pub order: DevicePtr<u32>,
    /// The result of [`group_by_expert()`].
    pub tiles: DevicePtr<Vector>,
}

impl GroupedProduct {
    /// Whether rows of tokens become sorted rows. Otherwise sorted rows become rows of slots.
    pub const fn gathers(self) -> bool {
        !matches!(self.unit, Unit::Plain)
    }

    /// Rows of an expert's weight in memory.
    pub const fn rows(self) -> u32 {
        self.n.next_multiple_of(ROW_MULTIPLE)
    }

    /// Columns of the output.
    pub const fn columns(self) -> u32 {
        if let Unit::Plain = self.unit { self.n } else { self.n / 2 }
    }

    /// The shape of the launch.
    pub const fn shape(self) -> LaunchShape {
        let tile = self.plan.tile;
        if self.plan.is_for_hopper() {
            let tiles = self.plan.tiles() * self.n.div_ceil(hopper::COLUMNS);
            return LaunchShape::linear(least(tiles, self.plan.blocks), hopper::THREADS)
                .with_shared(hopper::SHARED_BYTES);
        }
        let blocks = self.plan.tiles() * self.n.div_ceil(product::rows(tile));
        let shared = match self.coded {
            None => product::shared_bytes(tile),
            Some((form, _)) => quantised::shared_bytes(form, tile),
        };
        LaunchShape::linear(blocks, product::THREADS).with_shared(shared)
    }

    /// Describes the used rows of all experts' weights to Hopper's kernel.
    const fn tensor(self, weight: DevicePtr<u16>) -> TensorTile {
        let row_bytes = 2 * self.k as u64;
        let along = TileDimension { size: self.k as u64, stride: 2, tile: operand::DEPTH };
        let rows = TileDimension { size: self.n as u64, stride: row_bytes, tile: hopper::COLUMNS };
        let experts = TileDimension { size: self.plan.count as u64, stride: row_bytes * self.rows() as u64, tile: 1 };
        TensorTile::new(weight.address(), 2, TilePattern::Bytes128, [along, rows, experts])
    }

    /// Bytes of an expert's weight.
    pub const fn expert_bytes(self) -> u64 {
        match self.coded {
            None => 2 * self.n as u64 * self.k as u64,
            Some((form, group)) => PackedShape { form, n: self.n, k: self.k, group }.bytes(),
        }
    }

    /// The least that the product costs if its slots use `experts` experts.
    pub const fn floor(self, experts: u32) -> Floor {
        let (slots, columns) = (self.plan.slots() as u64, self.columns() as u64);
        let read = if self.gathers() { self.plan.tokens as u64 } else { slots };
        let moved = 2 * (read * self.k as u64 + slots * columns);
        Floor { bytes: moved + experts as u64 * self.expert_bytes(), flops: 2 * slots * self.n as u64 * self.k as u64 }
    }

    /// Returns the kernel with its arguments.
    pub fn call(self, element: ElementType, operands: GroupedOperands, weight: GroupedWeight) -> KernelCall {
        let GroupedOperands { x, x_stride, bias, out, out_stride, order, tiles } = operands;
        let (n, all_rows, k) = (self.n, self.rows(), self.k);
        let (uses, [slope, cubic, limit, shift]) =
            (if self.gathers() { self.plan.top_k } else { 0 }, self.unit.numbers());
        let (form, group) = self.coded.unwrap_or((CodeForm::Int4, 1));
        let PackedOperand { codes, scales, factor } = match weight {
            GroupedWeight::Half(weight) if self.plan.is_for_hopper() => {
                debug_assert!(out_stride.is_multiple_of(8));
                let (weight, most) = (self.tensor(weight), self.plan.tiles());
                #[rustfmt::skip]
                let args = grouped_hopper {
                    weight, x, bias, out, order, tiles, most, x_stride, out_stride, n, all_rows, k, uses, slope, cubic,
                    limit, shift,
                };
                return with_element!(element, T => args.instance::<T>());
            }
            GroupedWeight::Half(weight) => {
                #[rustfmt::skip]
                let args = grouped_product {
                    x, weight, bias, out, order, tiles, x_stride, out_stride, n, all_rows, k, uses, slope, cubic, limit,
                    shift,
                };
                return with_element!(element, T => match self.plan.tile {
                    16 => args.instance::<T, 16>(),
                    _ => args.instance::<T, 64>(),
                });
            }
            GroupedWeight::Coded(operand) => operand,
        };
        let group_shift = group.trailing_zeros();
        with_element!(element, T => {
            let factor = factor * form.factor::<T>();
            #[rustfmt::skip]
            let args = grouped_quantised {
                x, codes, scales, bias, out, order, tiles, x_stride, out_stride, n, all_rows, k, group_shift, factor,
                uses, slope, cubic, limit, shift,
            };
            match (form, self.plan.tile) {
                (CodeForm::Int4, 16) => args.instance::<T, 0, 16>(),
                (CodeForm::Int4, _) => args.instance::<T, 0, 64>(),
                (CodeForm::Int8, 16) => args.instance::<T, 1, 16>(),
                (CodeForm::Int8, _) => args.instance::<T, 1, 64>(),
                (CodeForm::Fp8, _) => unreachable!("FP8 has no grouped kernel"),
                (CodeForm::Fp4, 16) => args.instance::<T, 3, 16>(),
                (CodeForm::Fp4, _) => args.instance::<T, 3, 64>(),
            }
        })
    }
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// The slots with the most tiles: each expert has one slot more than whole tiles, as long as slots last.
    fn worst(plan: ExpertsPlan) -> u32 {
        let (mut left, mut tiles) = (plan.slots(), 0);
        let mut counts = std::vec![0; plan.count as usize];
        for count in &mut counts {
            *count = left.min(1);
            left -= *count;
        }
        for count in &mut counts {
            let more = (left / plan.tile * plan.tile).min((plan.tokens - *count) / plan.tile * plan.tile);
            *count += more;
            left -= more;
            tiles += count.div_ceil(plan.tile);
        }
        tiles
    }

    #[test]
    fn there_are_enough_tiles_for_any_routing_and_few_more() {
        for (tokens, top_k, experts) in [(1, 8, 128), (16, 4, 32), (17, 2, 8), (64, 8, 64), (100, 2, 4), (4096, 8, 128)]
        {
            let plan = ExpertsPlan::new(tokens, top_k, experts, 0..experts);
            assert!((worst(plan)..=worst(plan) + 2 * plan.count).contains(&plan.tiles()), "{plan:?}: {}", plan.tiles());
        }
        assert_eq!(ExpertsPlan::new(1, 8, 128, 0..128).tiles(), 8);
        assert_eq!(ExpertsPlan::new(8, 2, 8, 0..8).tiles(), 8);
    }

    #[test]
    fn tiles_are_large_if_experts_have_many_tokens() {
        let tile = |tokens, top_k, experts| ExpertsPlan::new(tokens, top_k, experts, 0..experts).tile;
        assert_eq!([tile(16, 2, 2), tile(64, 8, 128), tile(32, 2, 8)], [16; 3]);
        assert_eq!([tile(64, 2, 8), tile(512, 8, 128), tile(17, 2, 2)], [64; 3]);
    }

    #[test]
    fn hopper_has_its_own_tiles_if_experts_have_many_slots() {
        let tile = |tokens, gpu| ExpertsPlan::new(tokens, 8, 128, 0..128).on_hopper(128, gpu).tile;
        assert_eq!([tile(519, GpuLimits::H200), tile(520, GpuLimits::H200)], [64, 128]);
        let always = GpuLimits { hopper_from: Some(1), ..GpuLimits::H200 };
        assert_eq!([tile(8, always), tile(8, GpuLimits::H200)], [128, 16]);
        assert_eq!(tile(4096, GpuLimits::new(108, 163 << 10, (8, 0))), 64);
    }
}
