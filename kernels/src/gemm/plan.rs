//! Which kernel multiplies, and how it is launched. Plans depend on shapes and the device alone, so that launches can be
//! captured in a graph.

use core::fmt;

use cuda_std::launch::{Entry, Family};

use super::{decode, epilogue::Epilogue, gemv, operand, prefill};
use crate::layout::Vector;

/// What all kernels of this folder take, see [`super`]; [`Operands::args`] puts them in order.
pub type Args = (*const u16, *const u16, *const u16, *mut u8, *mut Vector, *mut u32, u32, u32, u32, u32, u32, u32);

/// The shape of a product `x [m][k] . weight [n][k]`, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Tokens.
    pub m: u32,
    /// Rows of the weight; of both weights if the product is gated.
    pub n: u32,
    /// Length of the rows.
    pub k: u32,
    /// What is stored.
    pub epilogue: Epilogue,
}

/// Why there is no kernel for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// A dimension is zero.
    Empty,
    /// Rows are not whole vectors of 16 bytes: their length in elements.
    Ragged(u32),
    /// A gated weight is not whole groups of gate's and up's rows: its rows.
    Gated(u32),
    /// Shared memory that a block needs, in bytes, and the device does not have.
    Shared(u32),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a matrix without elements"),
            Self::Ragged(k) => write!(f, "rows of {k} elements, not a multiple of {}", crate::layout::VECTOR),
            Self::Gated(n) => write!(f, "a gated weight of {n} rows, not a multiple of 16"),
            Self::Shared(bytes) => write!(f, "a block needs {bytes} bytes of shared memory, more than the GPU has"),
        }
    }
}

impl core::error::Error for Unsupported {}

/// What a plan needs to know of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its multiprocessors (SMs).
    pub multiprocessors: u32,
    /// Shared memory that a block can have at most, in bytes.
    pub shared_bytes: u32,
}

impl Gpu {
    /// NVIDIA's H200.
    pub const H200: Gpu = Gpu { multiprocessors: 132, shared_bytes: 227 << 10 };

    /// Blocks that an SM can have at once, by shared memory; what a block can have at most is an SM's less 1 KiB, and that
    /// is also what every block costs beside its own.
    const fn blocks(self, shared_bytes: u32) -> u32 {
        (self.shared_bytes + 1024) / (shared_bytes + 1024)
    }
}

/// A kernel of this folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// [`gemv`](gemv::gemv()) for so many tokens.
    Gemv(u32),
    /// [`gemm_decode`](decode::gemm_decode()) for so many tokens.
    Decode(u32),
    /// [`gemm`](prefill::gemm()) with tiles of so many columns.
    Prefill(u32),
}

/// How a product is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What for.
    pub product: Product,
    /// What is launched.
    pub kernel: Kernel,
    /// Blocks that have a part of `k` each, for every tile.
    pub splits: u32,
}

impl Plan {
    /// The plan for a product.
    pub const fn new(product: Product, gpu: Gpu) -> Result<Plan, Unsupported> {
        let Product { m, n, k, epilogue } = product;
        if m == 0 || n == 0 || k == 0 {
            return Err(Unsupported::Empty);
        }
        if !k.is_multiple_of(crate::layout::VECTOR) {
            return Err(Unsupported::Ragged(k));
        }
        if matches!(epilogue, Epilogue::Gated(_)) && !n.is_multiple_of(16) {
            return Err(Unsupported::Gated(n));
        }
        let plan = match m {
            1..=2 => Plan { product, kernel: Kernel::Gemv(m), splits: 1 },
            3..=4 => Plan { product, kernel: Kernel::Gemv(4), splits: 1 },
            5..=8 => Plan::decode(product, 8, gpu),
            9..=16 => Plan::decode(product, 16, gpu),
            17..=32 => Plan::decode(product, 32, gpu),
            33..=64 => Plan::decode(product, 64, gpu),
            _ => Plan::prefill(product, gpu),
        };
        if plan.shared_bytes() > gpu.shared_bytes {
            return Err(Unsupported::Shared(plan.shared_bytes()));
        }
        Ok(plan)
    }

    /// Splits until there are two blocks an SM, unless parts of sums would be more than an eighth of the weight's bytes, or
    /// a block have fewer than four tiles.
    const fn decode(product: Product, tokens: u32, gpu: Gpu) -> Plan {
        let tiles = product.n.div_ceil(decode::rows(tokens));
        let depth = product.k.div_ceil(operand::DEPTH);
        let splits = least(2 * gpu.multiprocessors / tiles, least(product.k / (16 * tokens), depth / 4));
        Plan { product, kernel: Kernel::Decode(tokens), splits: if splits > 1 { splits } else { 1 } }
    }

    /// The tiles and splits that cost least, in hundredths of the time in which an SM multiplies a tile of 128 x 256 x 64.
    const fn prefill(product: Product, gpu: Gpu) -> Plan {
        let mut best = Plan { product, kernel: Kernel::Prefill(128), splits: 1 };
        let mut least_cost = u64::MAX;
        let widths = [128, 256];
        let mut i = 0;
        while i < widths.len() {
            let mut splits = 1;
            while splits <= 8 {
                let plan = Plan { product, kernel: Kernel::Prefill(widths[i]), splits };
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

    /// The cost of a plan for [`Kernel::Prefill`].
    const fn prefill_cost(self, gpu: Gpu) -> u64 {
        let Kernel::Prefill(width) = self.kernel else { return u64::MAX };
        let depth = self.product.k.div_ceil(operand::DEPTH);
        let by_registers = 256 / width;
        let together = least(by_registers, gpu.blocks(self.shared_bytes()));
        if together == 0 || (self.splits > 1 && depth / self.splits < 4) {
            return u64::MAX;
        }
        // Filling the ring and storing, and with splits handing in and adding up, in tiles' times.
        let overhead = if self.splits == 1 { 4 } else { 6 + self.splits };
        let steps = (depth.div_ceil(self.splits) + overhead) as u64;
        // Two narrow blocks take a little longer than a wide one; one alone does not fill the SM.
        let (full, alone) = if width == 256 { (100, 100) } else { (105, 60) };
        let (x, y, _) = self.grid();
        let (blocks, places) = (x as u64 * y as u64, (gpu.multiprocessors * together) as u64);
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
            Kernel::Gemv(_) => gemv::grid(n).0,
            Kernel::Decode(tokens) => n.div_ceil(decode::rows(tokens)),
            Kernel::Prefill(columns) => m.div_ceil(prefill::ROWS) * n.div_ceil(columns),
        }
    }

    /// Blocks.
    pub const fn grid(self) -> (u32, u32, u32) {
        (self.tiles(), self.splits, 1)
    }

    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        match self.kernel {
            Kernel::Gemv(_) => gemv::THREADS,
            Kernel::Decode(_) => decode::THREADS,
            Kernel::Prefill(columns) => columns,
        }
    }

    /// Dynamic shared memory of a block, in bytes.
    pub const fn shared_bytes(self) -> u32 {
        match self.kernel {
            Kernel::Gemv(_) => 0,
            Kernel::Decode(tokens) => decode::shared_bytes(tokens),
            Kernel::Prefill(columns) => prefill::shared_bytes(columns),
        }
    }

    /// Counters in the workspace, `u32` each: zero before the first launch, and again after every one. Launches that may
    /// overlap need counters and sums of their own.
    pub const fn counters(self) -> u32 {
        if self.splits == 1 { 0 } else { self.tiles() }
    }

    /// Bytes of the workspace for parts of sums, whatever they hold.
    pub const fn workspace_bytes(self) -> u64 {
        let sums = match self.kernel {
            Kernel::Decode(tokens) => decode::rows(tokens) * tokens,
            Kernel::Prefill(columns) => prefill::ROWS * columns,
            Kernel::Gemv(_) => 0,
        };
        self.counters() as u64 * self.splits as u64 * sums as u64 * 4
    }

    /// The entry to launch, for elements of a type by its label: `f16` or `bf16`.
    pub fn entry(self, element: &str) -> Option<Entry<Args>> {
        match self.kernel {
            Kernel::Gemv(1) => gemv::gemv::instance(&[element, "1"]),
            Kernel::Gemv(2) => gemv::gemv::instance(&[element, "2"]),
            Kernel::Gemv(_) => gemv::gemv::instance(&[element, "4"]),
            Kernel::Decode(8) => decode::gemm_decode::instance(&[element, "8"]),
            Kernel::Decode(16) => decode::gemm_decode::instance(&[element, "16"]),
            Kernel::Decode(32) => decode::gemm_decode::instance(&[element, "32"]),
            Kernel::Decode(_) => decode::gemm_decode::instance(&[element, "64"]),
            Kernel::Prefill(128) => prefill::gemm::instance(&[element, "128"]),
            Kernel::Prefill(_) => prefill::gemm::instance(&[element, "256"]),
        }
    }

    /// The arguments of the launch.
    pub const fn args(self, operands: Operands) -> Args {
        let Operands { x, x_stride, weight, bias, out, out_stride, workspace, counters } = operands;
        let Product { m, n, k, epilogue } = self.product;
        (x, weight, bias, out, workspace, counters, x_stride, out_stride, m, n, k, epilogue.bits())
    }
}

/// Where the matrices of a product are, on the device.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// `[m][k]`, rows of whole vectors.
    pub x: *const u16,
    /// Elements between rows of `x`, a multiple of 8.
    pub x_stride: u32,
    /// `[n][k]`, rows of whole vectors, one after the other.
    pub weight: *const u16,
    /// `[n]`, aligned to 8 bytes, or null.
    pub bias: *const u16,
    /// `[m][columns]`, see [`Epilogue::columns`], of 16 bits or `f32`; 16-byte aligned.
    pub out: *mut u8,
    /// Elements between rows of `out`; a multiple of 4 is stored faster.
    pub out_stride: u32,
    /// [`Plan::workspace_bytes`], 16-byte aligned.
    pub workspace: *mut Vector,
    /// [`Plan::counters`].
    pub counters: *mut u32,
}

/// What a product costs at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// Bytes between memory and SMs, each once.
    pub bytes: u64,
    /// Multiplications and additions on the tensor cores.
    pub flops: u64,
}

impl Product {
    /// The least that the product costs, whatever the kernel.
    pub const fn floor(self) -> Floor {
        let (m, n, k) = (self.m as u64, self.n as u64, self.k as u64);
        let stored = m * self.epilogue.columns(self.n) as u64 * self.epilogue.size() as u64;
        let loaded = if matches!(self.epilogue, Epilogue::Add) { stored } else { 0 };
        Floor { bytes: 2 * (m * k + n * k) + stored + loaded, flops: 2 * m * n * k }
    }
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    extern crate std;

    use super::*;
    use crate::gemm::activation::Activation;
    use std::string::ToString;

    /// Rows and their length of the weights of OPT-13B and LLaMA-3-8B.
    const WEIGHTS: [(u32, u32); 10] = [
        (15360, 5120),
        (5120, 5120),
        (20480, 5120),
        (5120, 20480),
        (50272, 5120),
        (6144, 4096),
        (4096, 4096),
        (28672, 4096),
        (4096, 14336),
        (128_256, 4096),
    ];

    const A100: Gpu = Gpu { multiprocessors: 108, shared_bytes: 163 << 10 };
    const A10: Gpu = Gpu { multiprocessors: 72, shared_bytes: 99 << 10 };

    fn product(m: u32, n: u32, k: u32) -> Product {
        Product { m, n, k, epilogue: Epilogue::Half(None) }
    }

    #[test]
    fn kernels_go_by_the_number_of_tokens() {
        let kernel = |m| Plan::new(product(m, 4096, 4096), Gpu::H200).unwrap().kernel;
        assert_eq!([1, 2, 3, 4].map(kernel), [1, 2, 4, 4].map(Kernel::Gemv));
        assert_eq!([5, 8, 9, 16, 17, 33, 64].map(kernel), [8, 8, 16, 16, 32, 64, 64].map(Kernel::Decode));
        assert!(matches!(kernel(65), Kernel::Prefill(_)));
        assert_eq!(kernel(4096), Kernel::Prefill(256));
    }

    #[test]
    fn decode_has_blocks_for_every_sm_and_few_parts_of_sums() {
        for (n, k) in WEIGHTS {
            for m in [8, 16, 32, 64] {
                let plan = Plan::new(product(m, n, k), Gpu::H200).unwrap();
                let (x, y, _) = plan.grid();
                assert_eq!((y, plan.counters()), (plan.splits, if plan.splits == 1 { 0 } else { x }));
                assert!(plan.splits == 1 || x * y <= 2 * 132, "{plan:?}: all run at once");
                assert!(x * y >= 120, "{plan:?}: most SMs have a block");
                assert!(k.div_ceil(operand::DEPTH) / plan.splits >= 4, "{plan:?}");
                assert!(plan.workspace_bytes() <= u64::from(n + 127) * u64::from(k) * 2 / 8, "{plan:?}");
            }
        }
    }

    #[test]
    fn prefill_splits_where_tiles_are_few() {
        let plan = |m, n, k| Plan::new(product(m, n, k), Gpu::H200).unwrap();
        assert!(plan(128, 4096, 4096).splits > 1);
        assert_eq!(plan(4096, 4096, 4096).splits, 1);
        for (n, k) in WEIGHTS {
            for m in [65, 128, 256, 1024, 4096] {
                let plan = plan(m, n, k);
                let (x, y, _) = plan.grid();
                assert!(x * y >= 96, "{plan:?}: most SMs have a block");
                assert!(k.div_ceil(operand::DEPTH) / plan.splits >= 4, "{plan:?}");
            }
        }
    }

    #[test]
    fn other_gpus_have_plans() {
        for gpu in [A100, A10] {
            for (n, k) in WEIGHTS {
                for m in [1, 4, 16, 64, 256, 4096] {
                    let plan = Plan::new(product(m, n, k), gpu).unwrap();
                    assert!(plan.shared_bytes() <= gpu.shared_bytes, "{plan:?}");
                }
            }
        }
    }

    #[test]
    fn every_plan_has_an_entry() {
        for m in 1..200 {
            let plan = Plan::new(product(m, 512, 512), Gpu::H200).unwrap();
            for element in ["f16", "bf16"] {
                let entry = plan.entry(element).unwrap();
                assert!(entry.descriptor().bounds.max_threads >= Some(plan.threads()));
                assert!(entry.descriptor().name.contains(element));
            }
        }
    }

    #[test]
    fn what_no_kernel_takes_is_refused() {
        let refused = |product| Plan::new(product, Gpu::H200).unwrap_err();
        assert_eq!(refused(product(0, 8, 8)), Unsupported::Empty);
        assert_eq!(refused(product(1, 8, 12)), Unsupported::Ragged(12));
        let gated = Product { epilogue: Epilogue::Gated(Activation::Silu), ..product(1, 24, 8) };
        assert_eq!(refused(gated), Unsupported::Gated(24));
        let small = Gpu { shared_bytes: 48 << 10, ..Gpu::H200 };
        let error = Plan::new(product(128, 128, 128), small).unwrap_err();
        assert_eq!(error.to_string(), "a block needs 98304 bytes of shared memory, more than the GPU has");
    }

    #[test]
    fn floors_count_each_byte_once() {
        let floor = product(2, 3, 8).floor();
        assert_eq!(floor, Floor { bytes: 2 * (16 + 24 + 6), flops: 96 });
        let added = Product { epilogue: Epilogue::Add, ..product(2, 3, 8) };
        assert_eq!(added.floor().bytes, 2 * (16 + 24 + 6 + 6));
        let gated = Product { epilogue: Epilogue::Gated(Activation::Silu), ..product(2, 16, 8) };
        assert_eq!(gated.floor().bytes, 2 * (16 + 128 + 16));
    }
}
