//! Products that are added to rows, with the norm of these rows in the same launch.

use cuda_std::launch::DevicePtr;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GemmKernel, GemmPlan, GpuLimits, NormOperands, Operands, Product};
use kernels::norm::{SumNorm, floor_bytes};
use launch::Result;

use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::cases::norm::{EPS, NormProblem, rounding};
use crate::gpu::{Buffer, Gpu};
use crate::number::{ProblemRng, Type, relative_error};
use crate::product::{Data, PlacedProduct, ProductProblem};

/// A product followed by a norm.
#[derive(Clone, Copy, Debug)]
pub struct NormedProduct {
    /// The product's kernel.
    pub kernel: GemmKernel,
    /// Tokens, rows of the weight, and their length.
    pub sizes: (u32, u32, u32),
    /// Number of parts that `k` is split into.
    pub splits: u32,
    /// Type of the elements.
    pub ty: Type,
    /// The norm.
    pub norm: SumNorm,
    /// Whether the norm has factors and a bias. An RMS norm always has factors and never has a bias.
    pub affine: (bool, bool),
    /// Whether the product is zero, so the launch can be repeated.
    pub neutral: bool,
    /// Seed of the numbers.
    pub seed: u64,
}

/// Weights of OPT-13B and LLaMA-3-8B with added products: rows, row length, and the norm that follows.
const WEIGHTS: [(u32, u32, SumNorm); 4] = [
    (5120, 5120, SumNorm::Layer),
    (5120, 20480, SumNorm::Layer),
    (4096, 4096, SumNorm::Rms),
    (4096, 14336, SumNorm::Rms),
];

/// At full scale, each case is paired with the same product without a norm.
pub(super) fn cases(scale: Scale, target: &str) -> Vec<Case> {
    let gpu = if target == "sm_90a" { GpuLimits::H200 } else { GpuLimits { hopper_from: None, ..GpuLimits::H200 } };
    let problem = |m: u32, (n, k, norm): (u32, u32, SumNorm)| {
        let plan = GemmPlan::new(Product { m, n, k, epilogue: Epilogue::Add }, gpu).ok()?;
        let (GemmPlan { kernel, splits, .. }, affine) = (plan, (true, norm == SumNorm::Layer));
        Some(NormedProduct { kernel, sizes: (m, n, k), splits, ty: Type::F16, norm, affine, neutral: true, seed: 1 })
    };
    match scale {
        Scale::Small => [1, 3, 20]
            .into_iter()
            .filter_map(|m| problem(m, (264, 512, SumNorm::Layer)))
            .map(NormedProduct::case)
            .collect(),
        Scale::Full => {
            let problems = WEIGHTS.into_iter().flat_map(|weight| [1, 4, 16, 64].map(|m| problem(m, weight)));
            let both =
                |problem: NormedProduct| [SumNorm::None, problem.norm].map(|norm| NormedProduct { norm, ..problem });
            problems.flatten().flat_map(both).map(NormedProduct::case).collect()
        }
    }
}

/// A normed product on a device.
pub struct PlacedNormedProduct {
    problem: ProductProblem,
    product: PlacedProduct,
    /// The 16-bit rows to which the product is added, in place.
    pub x: Buffer<u16>,
    /// The normalised rows.
    pub out: Buffer<u16>,
    /// Factors and bias of the norm. The launch does not use both in every problem.
    pub affine: [Buffer<u16>; 2],
}

impl NormedProduct {
    /// Returns the plan of the launch.
    pub fn plan(self) -> GemmPlan {
        let (m, n, k) = self.sizes;
        let product = Product { m, n, k, epilogue: Epilogue::Add };
        GemmPlan { product, kernel: self.kernel, splits: self.splits, blocks: 0 }
    }

    /// Returns the operands for factors and bias, or null pointers if the norm does not use them.
    pub fn used(self, affine: [Buffer<u16>; 2]) -> [DevicePtr<cuda_std::vector::Vector>; 2] {
        let operand = |is_used: bool, buffer: Buffer<u16>| if is_used { buffer.ptr() } else { DevicePtr::NULL };
        [operand(self.affine.0, affine[0]), operand(self.affine.1, affine[1])]
    }

    /// Uploads the problem to a device. Blocks count in `arrivals` to find out when all of them have stored.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn place(self, gpu: &mut Gpu, arrivals: Buffer<u32>) -> Result<PlacedNormedProduct> {
        let (plan, element) = (self.plan(), self.ty.element());
        // For a large problem, the reference is computed for only a few tokens.
        let every = if self.neutral { plan.product.m.div_ceil(8) } else { 1 };
        let mut problem = ProductProblem::new(plan, Data { every, ..Data::new(self.ty, self.seed) });
        if self.neutral {
            problem.set_bias(std::iter::repeat_n(0.0, plan.product.n as usize));
        }
        let (m, n, _) = self.sizes;
        let mut random = ProblemRng(self.seed + 1);
        let weight = gpu.upload("the norm's factors", &random.bits(self.ty, n as usize))?;
        let bias = gpu.upload("the norm's bias", &random.bits(self.ty, n as usize))?;
        let out = gpu.alloc::<u16>("normalised", (m * n) as usize)?;
        let [norm_weight, norm_bias] = self.used([weight, bias]);
        let norm = NormOperands {
            norm: self.norm,
            weight: norm_weight,
            bias: norm_bias,
            out: out.mut_ptr(),
            eps: EPS,
            arrivals: arrivals.mut_ptr(),
        };
        let matrix = problem.place_weight(gpu)?;
        let call = |operands| plan.call(element, Operands { weight: matrix.ptr(), norm, ..operands });
        let product = problem.place_launch(gpu, plan.shape(), (plan.workspace_bytes(), plan.counters()), call)?;
        let x = product.halves().unwrap_or_else(|| unreachable!("a product is added to 16-bit rows"));
        Ok(PlacedNormedProduct { problem, product, x, out, affine: [weight, bias] })
    }

    /// Returns the larger error of both results, relative to the allowed error. The sums are compared with the
    /// product's reference, and the normalised rows with the norm of the sums as stored.
    ///
    /// # Errors
    /// [`launch::Error`], also if a kernel faults.
    pub fn error(self, placed: &PlacedNormedProduct, gpu: &Gpu) -> Result<f64> {
        let (m, n, _) = self.sizes;
        let sums = placed.problem.error(placed.problem.results(&placed.product, gpu)?, &placed.problem.truth());
        if self.norm == SumNorm::None {
            return Ok(sums);
        }
        let norm = NormProblem {
            ty: self.ty,
            layer: self.norm == SumNorm::Layer,
            rows: m as usize,
            width: n as usize,
            residual: false,
            weight: self.affine.0,
            bias: self.affine.1,
            neutral: true,
            seed: 0,
        };
        let [weight, bias] = [gpu.download(placed.affine[0])?, gpu.download(placed.affine[1])?];
        let x = gpu.download(placed.x)?;
        let truth: Vec<f64> = x.chunks_exact(n as usize).flat_map(|row| norm.reference(row, &weight, &bias)).collect();
        let normed = gpu.download(placed.out)?.into_iter().map(|bits| self.ty.number(bits));
        Ok(sums.max(relative_error(normed, &truth) / rounding(self.ty)))
    }

    /// Makes a case of the problem. If it is not neutral, it can only be launched once, since the launch changes the
    /// rows.
    pub fn case(self) -> Case {
        let (m, n, k) = self.sizes;
        let floor = self.plan().product.floor();
        Case {
            kernel: self.plan().call(self.ty.element(), Operands::NULL).descriptor().name,
            shape: format!("{m} x {n} x {k}, added, {:?} norm, {} splits", self.norm, self.splits),
            floor: Floor { bytes: floor.bytes + floor_bytes(m.into(), n.into(), false) / 2, ..floor },
            prepare: Box::new(move |gpu| {
                let arrivals = gpu.upload("arrivals", &[0u32])?;
                let placed = std::rc::Rc::new(self.place(gpu, arrivals)?);
                let launched = std::rc::Rc::clone(&placed);
                Ok(Prepared {
                    launch: Box::new(move |gpu| launched.launch(gpu)),
                    error: Box::new(move |gpu| self.error(&placed, gpu)),
                })
            }),
        }
    }
}

impl PlacedNormedProduct {
    /// Queues the launch.
    ///
    /// # Errors
    /// [`launch::Error`] if the kernel and the device do not match.
    pub fn launch(&self, gpu: &mut Gpu) -> Result<()> {
        self.product.launch(gpu)
    }
}
