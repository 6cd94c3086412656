//! Chooses the kernel that multiplies, and how it is launched. Plans depend only on shapes and the device, so launches
//! can be captured in a graph.

mod call;
mod product;
#[cfg(test)]
mod tests;

use cuda_std::launch::LaunchShape;

use super::epilogue::Epilogue;
use super::{decode, gemv, hopper, operand, prefill};
use crate::layout::VECTOR;
use crate::norm;

pub use product::{NormOperands, Operands, Product, UnsupportedProduct};

/// Properties of a GPU that plans depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuLimits {
    /// Number of multiprocessors (SMs).
    pub multiprocessors: u32,
    /// Maximum shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Products of at least this many tokens use [Hopper's kernel](hopper). So do experts that have [half as
    /// many](crate::experts::plan::ExpertsPlan::on_hopper) on average. `None` unless the compute capability is 9.0.
    pub hopper_from: Option<u32>,
    /// Products of at least this many tokens, but fewer than `hopper_from`, use [Hopper's decode
    /// kernel](hopper::decode) if the GPU has it.
    pub hopper_decode_from: u32,
}

/// Default of [`GpuLimits::hopper_from`]. With fewer tokens, reading the weight is the limit.
pub const HOPPER_FROM: u32 = 65;

/// Default of [`GpuLimits::hopper_decode_from`]. For fewer tokens, plans use [`gemv`](gemv::gemv()).
pub const HOPPER_DECODE_FROM: u32 = 5;

impl GpuLimits {
    /// NVIDIA's H200.
    pub const H200: GpuLimits = GpuLimits::new(132, 227 << 10, (9, 0));

    /// Returns the limits of a GPU with this compute capability.
    pub const fn new(multiprocessors: u32, shared_bytes: u32, capability: (u32, u32)) -> GpuLimits {
        let hopper_from = if matches!(capability, (9, 0)) { Some(HOPPER_FROM) } else { None };
        GpuLimits { multiprocessors, shared_bytes, hopper_from, hopper_decode_from: HOPPER_DECODE_FROM }
    }

    /// Returns whether the GPU can run Hopper's kernels.
    pub const fn has_hopper(self) -> bool {
        self.hopper_from.is_some()
    }

    /// Returns whether products of `tokens` tokens use Hopper's kernel.
    const fn has_hopper_for(self, tokens: u32) -> bool {
        match self.hopper_from {
            Some(least) => tokens >= least,
            None => false,
        }
    }

    /// Returns how many blocks with `shared_bytes` of shared memory an SM runs at once. A block can have at most the
    /// SM's shared memory less 1 KiB, and every block takes 1 KiB more than it asks for.
    const fn blocks(self, shared_bytes: u32) -> u32 {
        (self.shared_bytes + 1024) / (shared_bytes + 1024)
    }
}

/// A kernel of this folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmKernel {
    /// [`gemv`](gemv::gemv()) for up to this number of tokens.
    Gemv(u32),
    /// [`gemm_decode`](decode::gemm_decode()) for up to this number of tokens.
    Decode(u32),
    /// [`gemm`](prefill::gemm()) with tiles of this number of columns.
    Prefill(u32),
    /// [`gemm_hopper`](hopper::gemm_hopper()) with tiles of this number of columns.
    Hopper(u32),
    /// [`gemm_hopper`](hopper::gemm_hopper()) in clusters of two blocks, which fetch tiles of the weight together.
    HopperPairs(u32),
    /// [`gemm_hopper_decode`](hopper::decode::gemm_hopper_decode()) for up to this number of tokens.
    HopperDecode(u32),
}

/// Hopper's kernels for many tokens: in pairs, which fetch less, then alone.
const HOPPER: [GemmKernel; 4] =
    [GemmKernel::HopperPairs(128), GemmKernel::HopperPairs(256), GemmKernel::Hopper(128), GemmKernel::Hopper(256)];

impl GemmKernel {
    /// Returns whether the kernel can apply a [norm](Operands::norm) to the rows that it has stored.
    pub const fn normalises(self) -> bool {
        matches!(self, GemmKernel::Gemv(_) | GemmKernel::Decode(_) | GemmKernel::HopperDecode(_))
    }
}

/// How a product is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmPlan {
    /// The product that is computed.
    pub product: Product,
    /// The kernel that is launched.
    pub kernel: GemmKernel,
    /// Blocks for each tile. Each computes a part of `k`.
    pub splits: u32,
    /// Maximum number of blocks in a launch of Hopper's kernel, where each block computes several tiles. Unused by other
    /// kernels, which have one block for each tile and split.
    pub blocks: u32,
}

impl GemmPlan {
    /// Returns the plan for a product.
    pub const fn new(product: Product, gpu: GpuLimits) -> Result<GemmPlan, UnsupportedProduct> {
        if let Err(why) = product.check() {
            return Err(why);
        }
        let plan = match product.m {
            // A pair's tile has twice as many tokens.
            m if gpu.has_hopper_for(m) && m > hopper::ROWS => GemmPlan::cheapest(product, &HOPPER, gpu),
            m if gpu.has_hopper_for(m) => GemmPlan::cheapest(product, HOPPER.split_at(2).1, gpu),
            m @ ..=64 if gpu.has_hopper() && m >= gpu.hopper_decode_from => {
                GemmPlan::decode(product, GemmKernel::HopperDecode(padded(m)), gpu)
            }
            m @ 1..=2 => GemmPlan { product, kernel: GemmKernel::Gemv(m), splits: 1, blocks: 0 },
            3..=4 => GemmPlan { product, kernel: GemmKernel::Gemv(4), splits: 1, blocks: 0 },
            m @ 5..=64 => GemmPlan::decode(product, GemmKernel::Decode(padded(m)), gpu),
            _ => GemmPlan::cheapest(product, &[GemmKernel::Prefill(128), GemmKernel::Prefill(256)], gpu),
        };
        if plan.shared_bytes() > gpu.shared_bytes {
            return Err(UnsupportedProduct::Shared(plan.shared_bytes()));
        }
        Ok(plan)
    }

    /// Splits `k` until there are two blocks for each SM. But partial sums take at most an eighth of the weight's
    /// bytes, and a block of a split product has at least four tiles.
    const fn decode(product: Product, kernel: GemmKernel, gpu: GpuLimits) -> GemmPlan {
        let one = GemmPlan { product, kernel, splits: 1, blocks: 0 };
        let depth = product.k.div_ceil(operand::DEPTH);
        let most = least(product.k / (16 * padded(product.m)), depth / 4);
        let splits = least(2 * gpu.multiprocessors / one.tiles(), most);
        if splits > 1 { GemmPlan { splits, ..one } } else { one }
    }

    /// Returns the kernel and the splits that cost least, or the first of several that do.
    const fn cheapest(product: Product, kernels: &[GemmKernel], gpu: GpuLimits) -> GemmPlan {
        let mut best = GemmPlan { product, kernel: kernels[0], splits: 1, blocks: gpu.multiprocessors };
        let mut least_cost = u64::MAX;
        let mut i = 0;
        while i < kernels.len() {
            let mut splits = 1;
            while splits <= 8 {
                let plan = GemmPlan { kernel: kernels[i], splits, ..best };
                let cost = plan.cost(gpu);
                if cost < least_cost {
                    (best, least_cost) = (plan, cost);
                }
                splits += 1;
            }
            i += 1;
        }
        best
    }

    /// Returns the cost of a plan for [`GemmKernel::Prefill`], [`GemmKernel::Hopper`] or [`GemmKernel::HopperPairs`].
    ///
    /// The unit is a hundredth of an SM's time for a tile of 128 x 256 x 64.
    const fn cost(self, gpu: GpuLimits) -> u64 {
        let depth = self.product.k.div_ceil(operand::DEPTH);
        let (width, together) = match self.kernel {
            GemmKernel::Prefill(width) => (width, least(256 / width, gpu.blocks(self.shared_bytes()))),
            GemmKernel::Hopper(width) | GemmKernel::HopperPairs(width) => (width, gpu.blocks(self.shared_bytes())),
            _ => return u64::MAX,
        };
        // With four tiles or more, every block has a step even if steps are 128 elements deep.
        if together == 0 || (self.splits > 1 && depth / self.splits < 4) {
            return u64::MAX;
        }
        // Time to fill the ring and to store, in units of a tile's time. Splits also store parts and add them up.
        let overhead = if self.splits == 1 { 4 } else { 6 + self.splits };
        let steps = (depth.div_ceil(self.splits) + overhead) as u64;
        let (blocks, places) = (self.tiles() as u64 * self.splits as u64, (gpu.multiprocessors * together) as u64);
        if let GemmKernel::Hopper(_) | GemmKernel::HopperPairs(_) = self.kernel {
            // A narrow tile takes a little more than half the time of a wide one.
            let rounds = self.tiles().div_ceil(self.at_once(gpu.multiprocessors)) as u64;
            return steps * rounds * if width == 256 { 100 } else { 55 };
        }
        // Two narrow blocks take a little longer than a wide one. One narrow block alone does not fill the SM.
        let (full, alone) = if width == 256 { (100, 100) } else { (105, 60) };
        let rest = match blocks % places {
            0 => 0,
            rest if rest <= gpu.multiprocessors as u64 => alone,
            _ => full,
        };
        steps * (blocks / places * if together == 256 / width { full } else { alone } + rest)
    }

    /// Returns whether the launch can also [normalise](Operands::norm) the rows that it has added to. This needs at
    /// most 64 tokens, and more multiprocessors than blocks that wait for each other's rows.
    pub const fn can_normalise(self, gpu: GpuLimits) -> bool {
        let Product { m, n, epilogue, .. } = self.product;
        let is_sum = matches!(epilogue, Epilogue::Add);
        let is_row = n.is_multiple_of(VECTOR) && n <= norm::MAX_FOLLOWING_WIDTH;
        self.kernel.normalises() && is_sum && is_row && least(m, self.tiles()) < gpu.multiprocessors
    }

    /// Tiles of the product. With pairs the number is even.
    const fn tiles(self) -> u32 {
        let Product { m, n, .. } = self.product;
        match self.kernel {
            GemmKernel::Gemv(_) => gemv::blocks(n),
            GemmKernel::Decode(tokens) => n.div_ceil(decode::rows(tokens)),
            GemmKernel::Prefill(columns) => m.div_ceil(prefill::ROWS) * n.div_ceil(columns),
            GemmKernel::Hopper(columns) => m.div_ceil(hopper::ROWS) * n.div_ceil(columns),
            GemmKernel::HopperPairs(columns) => 2 * m.div_ceil(2 * hopper::ROWS) * n.div_ceil(columns),
            GemmKernel::HopperDecode(_) => n.div_ceil(hopper::decode::ROWS),
        }
    }

    /// The shape of the kernel's launch.
    pub const fn shape(self) -> LaunchShape {
        let threads = match self.kernel {
            GemmKernel::Gemv(_) => gemv::THREADS,
            GemmKernel::Decode(_) => decode::THREADS,
            GemmKernel::Prefill(columns) => columns,
            GemmKernel::Hopper(_) | GemmKernel::HopperPairs(_) => hopper::THREADS,
            GemmKernel::HopperDecode(_) => hopper::decode::THREADS,
        };
        let grid = match self.kernel {
            GemmKernel::Hopper(_) | GemmKernel::HopperPairs(_) => {
                [least(self.tiles(), self.at_once(self.blocks)), self.splits, 1]
            }
            _ => [self.tiles(), self.splits, 1],
        };
        LaunchShape::new(grid, threads).with_shared(self.shared_bytes()).with_clusters([self.together(), 1, 1])
    }

    /// Blocks of a cluster.
    const fn together(self) -> u32 {
        if let GemmKernel::HopperPairs(_) = self.kernel { 2 } else { 1 }
    }

    /// Returns how many tiles of the product `blocks` blocks compute at once: a whole number of clusters, at least one.
    const fn at_once(self, blocks: u32) -> u32 {
        let clusters = blocks / self.splits / self.together();
        if clusters == 0 { self.together() } else { clusters * self.together() }
    }

    /// Dynamic shared memory of a block, in bytes.
    pub const fn shared_bytes(self) -> u32 {
        match self.kernel {
            GemmKernel::Gemv(_) => gemv::SHARED_BYTES,
            GemmKernel::Decode(tokens) => decode::shared_bytes(tokens),
            GemmKernel::Prefill(columns) => prefill::shared_bytes(columns),
            GemmKernel::Hopper(columns) | GemmKernel::HopperPairs(columns) => hopper::shared_bytes(columns),
            GemmKernel::HopperDecode(tokens) => hopper::decode::shared_bytes(tokens),
        }
    }

    /// Counters in the workspace, `u32` each. They are zero before the first launch, and again after every launch.
    /// Launches that may overlap need separate counters and sums.
    pub const fn counters(self) -> u32 {
        match self.kernel {
            _ if self.splits == 1 => 0,
            // Both warp groups of a block have separate sums.
            GemmKernel::Hopper(_) | GemmKernel::HopperPairs(_) => 2 * self.tiles(),
            _ => self.tiles(),
        }
    }

    /// Bytes of the workspace for partial sums. It need not be initialised.
    pub const fn workspace_bytes(self) -> u64 {
        let sums = match self.kernel {
            GemmKernel::Decode(tokens) => decode::rows(tokens) * tokens,
            GemmKernel::Prefill(columns) => prefill::ROWS * columns,
            GemmKernel::Hopper(columns) | GemmKernel::HopperPairs(columns) => hopper::GROUP_ROWS * columns,
            GemmKernel::HopperDecode(tokens) => hopper::decode::ROWS * tokens,
            GemmKernel::Gemv(_) => 0,
        };
        self.counters() as u64 * self.splits as u64 * sums as u64 * 4
    }
}

/// Rounds `tokens`, at most 64, up to a number that has a decode kernel.
const fn padded(tokens: u32) -> u32 {
    match tokens {
        ..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        _ => 64,
    }
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}
