//! Which kernel multiplies, and how it is launched. Plans depend on shapes and the device alone, so that launches can
//! be captured in a graph.

mod product;
#[cfg(test)]
mod tests;

use cuda_std::launch::{KernelCall, LaunchShape};

use super::{decode, epilogue::Epilogue, gemv, operand, prefill};
use crate::element::ElementType;
use crate::layout::VECTOR;
use crate::with_element;

pub use product::{Operands, Product, UnsupportedProduct};

/// What a plan needs to know of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuLimits {
    /// Its multiprocessors (SMs).
    pub multiprocessors: u32,
    /// Shared memory that a block can have at most, in bytes.
    pub shared_bytes: u32,
}

impl GpuLimits {
    /// NVIDIA's H200.
    pub const H200: GpuLimits = GpuLimits { multiprocessors: 132, shared_bytes: 227 << 10 };

    /// Blocks that an SM can have at once, by shared memory; a block can have at most that of an SM less 1 KiB, and
    /// every block takes 1 KiB beside its own.
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
}

/// How a product is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmPlan {
    /// The product that is computed.
    pub product: Product,
    /// The kernel that is launched.
    pub kernel: GemmKernel,
    /// Blocks for each tile, every one with a part of `k`.
    pub splits: u32,
}

impl GemmPlan {
    /// The plan for a product.
    pub const fn new(product: Product, gpu: GpuLimits) -> Result<GemmPlan, UnsupportedProduct> {
        let Product { m, n, k, epilogue } = product;
        if m == 0 || n == 0 || k == 0 {
            return Err(UnsupportedProduct::Empty);
        }
        if !k.is_multiple_of(VECTOR) {
            return Err(UnsupportedProduct::Ragged(k));
        }
        if matches!(epilogue, Epilogue::Gated(_)) && !n.is_multiple_of(16) {
            return Err(UnsupportedProduct::Gated(n));
        }
        let plan = match m {
            1..=2 => GemmPlan { product, kernel: GemmKernel::Gemv(m), splits: 1 },
            3..=4 => GemmPlan { product, kernel: GemmKernel::Gemv(4), splits: 1 },
            5..=8 => GemmPlan::decode(product, 8, gpu),
            9..=16 => GemmPlan::decode(product, 16, gpu),
            17..=32 => GemmPlan::decode(product, 32, gpu),
            33..=64 => GemmPlan::decode(product, 64, gpu),
            _ => GemmPlan::prefill(product, gpu),
        };
        if plan.shared_bytes() > gpu.shared_bytes {
            return Err(UnsupportedProduct::Shared(plan.shared_bytes()));
        }
        Ok(plan)
    }

    /// Splits until there are two blocks an SM, unless parts of sums would be more than an eighth of the weight's
    /// bytes, or a block have fewer than four tiles.
    const fn decode(product: Product, tokens: u32, gpu: GpuLimits) -> GemmPlan {
        let tiles = product.n.div_ceil(decode::rows(tokens));
        let depth = product.k.div_ceil(operand::DEPTH);
        let splits = least(2 * gpu.multiprocessors / tiles, least(product.k / (16 * tokens), depth / 4));
        GemmPlan { product, kernel: GemmKernel::Decode(tokens), splits: if splits > 1 { splits } else { 1 } }
    }

    /// The tiles and splits that cost least, in hundredths of the time in which an SM multiplies a tile of 128 x 256 x
    /// 64.
    const fn prefill(product: Product, gpu: GpuLimits) -> GemmPlan {
        let mut best = GemmPlan { product, kernel: GemmKernel::Prefill(128), splits: 1 };
        let mut least_cost = u64::MAX;
        let widths = [128, 256];
        let mut i = 0;
        while i < widths.len() {
            let mut splits = 1;
            while splits <= 8 {
                let plan = GemmPlan { product, kernel: GemmKernel::Prefill(widths[i]), splits };
                let cost = plan.prefill_cost(gpu);
                if cost < least_cost {
                    (best, least_cost) = (plan, cost);
                }
                splits += 1;
            }
            i += 1;
        }
        best
    }

    /// The cost of a plan for [`GemmKernel::Prefill`].
    const fn prefill_cost(self, gpu: GpuLimits) -> u64 {
        let GemmKernel::Prefill(width) = self.kernel else { return u64::MAX };
        let depth = self.product.k.div_ceil(operand::DEPTH);
        let by_registers = 256 / width;
        let together = least(by_registers, gpu.blocks(self.shared_bytes()));
        if together == 0 || (self.splits > 1 && depth / self.splits < 4) {
            return u64::MAX;
        }
        // The time to fill the ring and to store, and with splits to store parts and add them up, in units of a tile's
        // time.
        let overhead = if self.splits == 1 { 4 } else { 6 + self.splits };
        let steps = (depth.div_ceil(self.splits) + overhead) as u64;
        // Two narrow blocks take a little longer than a wide one; one alone does not fill the SM.
        let (full, alone) = if width == 256 { (100, 100) } else { (105, 60) };
        let (blocks, places) = (self.tiles() as u64 * self.splits as u64, (gpu.multiprocessors * together) as u64);
        let rest = match blocks % places {
            0 => 0,
            rest if rest <= gpu.multiprocessors as u64 => alone,
            _ => full,
        };
        steps * (blocks / places * if together == by_registers { full } else { alone } + rest)
    }

    /// Tiles of the product.
    const fn tiles(self) -> u32 {
        let Product { m, n, .. } = self.product;
        match self.kernel {
            GemmKernel::Gemv(_) => gemv::blocks(n),
            GemmKernel::Decode(tokens) => n.div_ceil(decode::rows(tokens)),
            GemmKernel::Prefill(columns) => m.div_ceil(prefill::ROWS) * n.div_ceil(columns),
        }
    }

    /// The shape of the kernel's launch.
    pub const fn shape(self) -> LaunchShape {
        let threads = match self.kernel {
            GemmKernel::Gemv(_) => gemv::THREADS,
            GemmKernel::Decode(_) => decode::THREADS,
            GemmKernel::Prefill(columns) => columns,
        };
        LaunchShape::new([self.tiles(), self.splits, 1], threads).with_shared(self.shared_bytes())
    }

    /// Dynamic shared memory of a block, in bytes.
    pub const fn shared_bytes(self) -> u32 {
        match self.kernel {
            GemmKernel::Gemv(_) => gemv::SHARED_BYTES,
            GemmKernel::Decode(tokens) => decode::shared_bytes(tokens),
            GemmKernel::Prefill(columns) => prefill::shared_bytes(columns),
        }
    }

    /// Counters in the workspace, `u32` each: zero before the first launch, and again after every one. Launches that
    /// may overlap need counters and sums of their own.
    pub const fn counters(self) -> u32 {
        if self.splits == 1 { 0 } else { self.tiles() }
    }

    /// Bytes of the workspace for parts of sums, which need not be initialised.
    pub const fn workspace_bytes(self) -> u64 {
        let sums = match self.kernel {
            GemmKernel::Decode(tokens) => decode::rows(tokens) * tokens,
            GemmKernel::Prefill(columns) => prefill::ROWS * columns,
            GemmKernel::Gemv(_) => 0,
        };
        self.counters() as u64 * self.splits as u64 * sums as u64 * 4
    }

    /// The kernel with its arguments, for elements of a type.
    pub fn call(self, element: ElementType, operands: Operands) -> KernelCall {
        let Operands { x, x_stride, weight, bias, out, out_stride, workspace, counters } = operands;
        let Product { m, n, k, epilogue } = self.product;
        let epilogue = epilogue.bits();
        // All three kernels have the same parameters.
        macro_rules! call {
            ($kernel:path, $T:ident, $N:literal) => {{
                use $kernel as Args;
                Args { x, weight, bias, out, workspace, counters, x_stride, out_stride, m, n, k, epilogue }
                    .instance::<$T, $N>()
            }};
        }
        with_element!(element, T => match self.kernel {
            GemmKernel::Gemv(1) => call!(gemv::gemv, T, 1),
            GemmKernel::Gemv(2) => call!(gemv::gemv, T, 2),
            GemmKernel::Gemv(_) => call!(gemv::gemv, T, 4),
            GemmKernel::Decode(8) => call!(decode::gemm_decode, T, 8),
            GemmKernel::Decode(16) => call!(decode::gemm_decode, T, 16),
            GemmKernel::Decode(32) => call!(decode::gemm_decode, T, 32),
            GemmKernel::Decode(_) => call!(decode::gemm_decode, T, 64),
            GemmKernel::Prefill(128) => call!(prefill::gemm, T, 128),
            GemmKernel::Prefill(_) => call!(prefill::gemm, T, 256),
        })
    }
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}
