//! Projections with random data, and their reference results.

use cuda_std::launch::{DevicePtr, KernelCall, LaunchShape};
use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::{Epilogue, GATED_ROWS};
use kernels::gemm::plan::{GemmKernel, GemmPlan, NormOperands, Operands, Product};
use launch::Result;

use crate::gpu::{Buffer, Gpu, PROJECTION};
use crate::number::{ProblemRng, Type, relative_error};

/// The data of a problem, apart from its plan.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    /// Type of activations, weight and bias, and of results that are not `f32`.
    pub ty: Type,
    /// Whether there is a bias.
    pub bias: bool,
    /// Elements between rows, first of the activations (a multiple of 8), then of the output.
    pub gaps: (u32, u32),
    /// One in this many tokens is compared with the reference, which is slow to compute.
    pub every: u32,
    /// Seed of the numbers.
    pub seed: u64,
}

impl Data {
    /// Returns data with a bias and without gaps. Every token is compared.
    pub fn new(ty: Type, seed: u64) -> Data {
        Data { ty, bias: true, gaps: (0, 0), every: 1, seed }
    }
}

/// A projection with data.
#[derive(Clone, Debug)]
pub struct ProductProblem {
    /// The plan of the launch.
    pub plan: GemmPlan,
    data: Data,
    /// Activations, with NaN between the rows.
    x: Vec<u16>,
    weight: Vec<u16>,
    bias: Option<Vec<u16>>,
    /// Initial contents of the output, in 16 bits. NaN between rows. Unless the product is added to the output, NaN
    /// everywhere.
    before: Vec<u16>,
}

impl ProductProblem {
    /// Creates a problem for any plan, whether it is the best one or not.
    pub fn new(plan: GemmPlan, data: Data) -> ProductProblem {
        let Product { m, n, k, epilogue } = plan.product;
        let mut random = ProblemRng(data.seed);
        let columns = epilogue.columns(n);
        let mut rows = |count: u32, len: u32, gap: u32, scale: f64| {
            let mut rows = Vec::with_capacity(count as usize * (len + gap) as usize);
            for _ in 0..count {
                rows.extend((0..len).map(|_| data.ty.bits(scale * random.unit())));
                rows.extend((0..gap).map(|_| data.ty.nan()));
            }
            rows
        };
        let x = rows(m, k, data.gaps.0, 1.0);
        // This scale makes sums a few units large, where activation functions are curved.
        let weight = rows(n, k, 0, 6.0 / f64::from(k).sqrt());
        let bias = data.bias.then(|| rows(1, n, 0, 2.0));
        let added = if epilogue == Epilogue::Add { columns } else { 0 };
        let before = rows(m, added, columns + data.gaps.1 - added, 2.0);
        ProductProblem { plan, data, x, weight, bias, before }
    }

    /// Sets the bias and zeroes the activations, so the result is the bias alone.
    pub fn set_bias(&mut self, bias: impl Iterator<Item = f64>) {
        self.x.fill(0);
        self.bias = Some(bias.map(|x| self.data.ty.bits(x)).collect());
    }

    /// Uploads the problem to a device.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn place(&self, gpu: &mut Gpu) -> Result<PlacedProduct> {
        let weight = self.place_weight(gpu)?.ptr();
        let (plan, element) = (self.plan, self.data.ty.element());
        let call = |operands| plan.call(element, Operands { weight, ..operands });
        self.place_launch(gpu, plan.shape(), (plan.workspace_bytes(), plan.counters()), call)
    }

    /// Uploads the weight to a device.
    pub(crate) fn place_weight(&self, gpu: &mut Gpu) -> Result<Buffer<u16>> {
        gpu.upload(PROJECTION, &self.weight)
    }

    /// Uploads everything except the weight, for a launch with this many bytes of workspace and counters. The caller
    /// uploads the weight.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub(crate) fn place_launch(
        &self,
        gpu: &mut Gpu,
        shape: LaunchShape,
        (workspace_bytes, counters): (u64, u32),
        call: impl FnOnce(Operands) -> KernelCall,
    ) -> Result<PlacedProduct> {
        let plan = self.plan;
        let x = gpu.upload("x", &self.x)?;
        let bias = match &self.bias {
            Some(bias) => gpu.upload("bias", bias)?.ptr(),
            None => DevicePtr::NULL,
        };
        let out = if plan.product.epilogue == Epilogue::Float {
            Out::Float(gpu.upload("out", &self.before.iter().map(|&bits| bits.into()).collect::<Vec<u32>>())?)
        } else {
            Out::Half(gpu.upload("out", &self.before)?)
        };
        let workspace = gpu.alloc::<u8>("workspace", workspace_bytes as usize)?;
        let counters = gpu.upload("counters", &vec![0u32; counters as usize])?;
        let operands = Operands {
            x: x.ptr(),
            x_stride: plan.product.k + self.data.gaps.0,
            weight: DevicePtr::NULL,
            bias,
            out: match out {
                Out::Float(out) => out.mut_ptr(),
                Out::Half(out) => out.mut_ptr(),
            },
            out_stride: self.out_stride(),
            workspace: workspace.mut_ptr(),
            counters: counters.mut_ptr(),
            norm: NormOperands::NONE,
        };
        Ok(PlacedProduct { shape, call: call(operands), out, counters })
    }

    fn out_stride(&self) -> u32 {
        self.plan.product.epilogue.columns(self.plan.product.n) + self.data.gaps.1
    }

    /// Returns the kernel's results for the compared tokens: `[m][columns]`. All are NaN if the kernel wrote between
    /// the rows, or left a counter that is not zero for the next launch.
    ///
    /// # Errors
    /// [`launch::Error`], also if a kernel faults.
    pub fn results(&self, placed: &PlacedProduct, gpu: &Gpu) -> Result<Vec<f64>> {
        let stored: Vec<u32> = match placed.out {
            Out::Float(out) => gpu.download(out)?,
            Out::Half(out) => gpu.download(out)?.into_iter().map(u32::from).collect(),
        };
        let (stride, columns) = (self.out_stride() as usize, self.plan.product.epilogue.columns(self.plan.product.n));
        let mut is_clean = gpu.download(placed.counters)?.iter().all(|&count| count == 0);
        let mut results = Vec::new();
        for row in 0..self.plan.product.m as usize {
            let all = row * stride..(row + 1) * stride;
            let (values, gap) = stored[all.clone()].split_at(columns as usize);
            is_clean &= gap.iter().zip(&self.before[all][columns as usize..]).all(|(after, &was)| *after == was.into());
            if row % self.data.every as usize == 0 {
                results.extend(values.iter().map(|&bits| match placed.out {
                    Out::Float(_) => f32::from_bits(bits).into(),
                    Out::Half(_) => self.data.ty.number(bits as u16),
                }));
            }
        }
        if !is_clean {
            results.fill(f64::NAN);
        }
        Ok(results)
    }

    /// Computes the reference for the compared tokens.
    pub fn truth(&self) -> Vec<f64> {
        self.truth_of(&self.weight.iter().map(|&bits| self.data.ty.number(bits)).collect::<Vec<_>>())
    }

    /// Computes the reference with these elements of the weight.
    pub(crate) fn truth_of(&self, weight: &[f64]) -> Vec<f64> {
        let Product { m, n, k, epilogue } = self.plan.product;
        let (k, number) = (k as usize, |bits: &u16| self.data.ty.number(*bits));
        let mut truth = Vec::new();
        for row in (0..m as usize).step_by(self.data.every as usize) {
            let x: Vec<f64> = self.x[row * (k + self.data.gaps.0 as usize)..][..k].iter().map(number).collect();
            let sum = |column: usize| {
                let products = weight[column * k..][..k].iter().zip(&x).map(|(w, x)| w * x);
                products.sum::<f64>() + self.bias.as_ref().map_or(0.0, |bias| number(&bias[column]))
            };
            let sums: Vec<f64> = (0..n as usize).map(sum).collect();
            match epilogue {
                Epilogue::Half(None) | Epilogue::Float => truth.extend(sums),
                Epilogue::Half(Some(act)) => truth.extend(sums.into_iter().map(|x| activated(act, x))),
                Epilogue::Gated(act) => {
                    // Eight rows of the gate, then the same eight rows of the up projection.
                    for groups in sums.chunks_exact(2 * GATED_ROWS as usize) {
                        let (gate, up) = groups.split_at(GATED_ROWS as usize);
                        truth.extend(gate.iter().zip(up).map(|(&gate, up)| activated(act, gate) * up));
                    }
                }
                Epilogue::Add => {
                    let before = &self.before[row * self.out_stride() as usize..];
                    truth.extend(sums.iter().zip(before).map(|(sum, bits)| sum + number(bits)));
                }
            }
        }
        truth
    }

    /// Returns the error of results, relative to the allowed error for rounding and for the order of sums.
    pub fn error(&self, results: Vec<f64>, truth: &[f64]) -> f64 {
        let allowed = match (self.plan.product.epilogue, self.data.ty) {
            (Epilogue::Float, _) => 1e-5,
            (_, Type::F16) => 6e-4,
            (_, Type::Bf16) => 4.5e-3,
        };
        relative_error(results, truth) / allowed
    }
}

/// A projection on a device.
#[derive(Clone, Copy)]
pub struct PlacedProduct {
    shape: LaunchShape,
    call: KernelCall,
    out: Out,
    counters: Buffer<u32>,
}

#[derive(Clone, Copy)]
enum Out {
    Half(Buffer<u16>),
    Float(Buffer<u32>),
}

impl PlacedProduct {
    /// Queues the launch.
    ///
    /// # Errors
    /// [`launch::Error`] if the kernel and the device do not match.
    pub fn launch(&self, gpu: &mut Gpu) -> Result<()> {
        // SAFETY: the matrices have the plan's shapes, and the workspace has its size.
        unsafe { gpu.launch(self.shape, self.call) }
    }
}

impl PlacedProduct {
    /// Returns the output if it has 16-bit elements.
    pub(crate) fn halves(&self) -> Option<Buffer<u16>> {
        if let Out::Half(out) = self.out { Some(out) } else { None }
    }
}

/// Returns the kernels of a target, each with the maximum number of tokens that it supports.
pub fn kernels(target: &str) -> impl Iterator<Item = (GemmKernel, u32)> {
    let is_hopper = target == "sm_90a";
    KERNELS.into_iter().filter(move |(kernel, _)| is_hopper || !is_for_hopper(*kernel))
}

/// Returns whether the kernel needs Hopper.
pub fn is_for_hopper(kernel: GemmKernel) -> bool {
    matches!(kernel, GemmKernel::Hopper(_) | GemmKernel::HopperPairs(_) | GemmKernel::HopperDecode(_))
}

/// All kernels, each with its maximum number of tokens.
const KERNELS: [(GemmKernel, u32); 17] = [
    (GemmKernel::Gemv(1), 1),
    (GemmKernel::Gemv(2), 2),
    (GemmKernel::Gemv(4), 4),
    (GemmKernel::Decode(8), 8),
    (GemmKernel::Decode(16), 16),
    (GemmKernel::Decode(32), 32),
    (GemmKernel::Decode(64), 64),
    (GemmKernel::Prefill(128), u32::MAX),
    (GemmKernel::Prefill(256), u32::MAX),
    (GemmKernel::Hopper(128), u32::MAX),
    (GemmKernel::Hopper(256), u32::MAX),
    (GemmKernel::HopperPairs(128), u32::MAX),
    (GemmKernel::HopperPairs(256), u32::MAX),
    (GemmKernel::HopperDecode(8), 8),
    (GemmKernel::HopperDecode(16), 16),
    (GemmKernel::HopperDecode(32), 32),
    (GemmKernel::HopperDecode(64), 64),
];

/// Applies an activation in `f64`.
pub(crate) fn activated(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Relu => x.max(0.0),
        Activation::Gelu => 0.5 * x * erfc(-x / 2f64.sqrt()),
        // Computes (1 + tanh u) / 2 as the logistic function of 2u, which avoids cancellation.
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// Computes `1 - erf(x)`. Uses the series of `erf` near zero, and elsewhere the continued fraction, which stays precise
/// in the tail.
fn erfc(x: f64) -> f64 {
    let root = std::f64::consts::PI.sqrt();
    if x < -2.0 {
        return 2.0 - erfc(-x);
    }
    if x > 2.0 {
        let fraction = (1..100).rev().fold(0.0, |fraction, n| f64::from(n) / 2.0 / (x + fraction));
        return (-x * x).exp() / root / (x + fraction);
    }
    let (mut term, mut sum, mut i) = (x, x, 0.0);
    while term.abs() > 1e-17 {
        i += 1.0;
        term *= -x * x / i;
        sum += term / (2.0 * i + 1.0);
    }
    1.0 - 2.0 / root * sum
}
