//! Random products, their truth, and their launches.

use emulator::{Fault, Report};
use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::{Epilogue, GATED_ROWS};
use kernels::gemm::plan::{Gpu as Limits, Kernel, Operands, Plan, Product};

use crate::frame::gpu::Gpu;
use crate::frame::number::{Random, Type, relative_error};

/// A product with data.
pub struct Problem {
    pub plan: Plan,
    ty: Type,
    x_stride: u32,
    out_stride: u32,
    /// Rows `x_stride` apart, with NaN between them.
    x: Vec<u16>,
    weight: Vec<u16>,
    bias: Option<Vec<u16>>,
    /// What the output holds before, in 16 bits; NaN where nothing is added to it, and between rows.
    before: Vec<u16>,
}

/// What there is to choose beside the product.
#[derive(Clone, Copy)]
pub struct Options {
    pub ty: Type,
    pub bias: bool,
    /// Elements between the end of a row and the next, of `x` and of the output.
    pub gaps: (u32, u32),
    pub seed: u64,
}

impl Options {
    pub fn new(ty: Type, seed: u64) -> Options {
        Options { ty, bias: true, gaps: (0, 0), seed }
    }
}

impl Problem {
    /// The product as it is planned for an H200.
    pub fn new(product: Product, options: Options) -> Problem {
        Problem::of(Plan::new(product, Limits::H200).unwrap(), options)
    }

    /// The product by a kernel and with splits that may not be the plan's.
    pub fn with(product: Product, kernel: Kernel, splits: u32, options: Options) -> Problem {
        Problem::of(Plan { product, kernel, splits }, options)
    }

    fn of(plan: Plan, options: Options) -> Problem {
        let Product { m, n, k, epilogue } = plan.product;
        let mut random = Random(options.seed);
        let ty = options.ty;
        let columns = epilogue.columns(n);
        let (x_stride, out_stride) = (k + options.gaps.0, columns + options.gaps.1);
        let rows = |count: u32, len: u32, stride: u32, scale: f64, random: &mut Random| {
            let mut rows = vec![ty.nan(); (count * stride) as usize];
            for row in rows.chunks_exact_mut(stride as usize) {
                row[..len as usize].fill_with(|| ty.bits(scale * random.unit()));
            }
            rows
        };
        let x = rows(m, k, x_stride, 1.0, &mut random);
        // Sums of a few units, where activations bend.
        let weight = rows(n, k, k, 6.0 / f64::from(k).sqrt(), &mut random);
        let bias = options.bias.then(|| rows(1, n, n, 2.0, &mut random));
        let added = if epilogue == Epilogue::Add { columns } else { 0 };
        let before = rows(m, added, out_stride, 2.0, &mut random);
        Problem { plan, ty, x_stride, out_stride, x, weight, bias, before }
    }

    /// Makes the bias all there is: the activations are zero from here on.
    pub fn set_bias(&mut self, bias: impl Iterator<Item = f64>) {
        self.x.fill(0);
        self.bias = Some(bias.map(|x| self.ty.bits(x)).collect());
    }

    /// Runs it on a device. The result is `[m][columns]`; what is between the rows was left as it was.
    pub fn run(&self, gpu: &mut Gpu) -> Result<(Vec<f64>, Report), Box<Fault>> {
        let Product { m, n, epilogue, .. } = self.plan.product;
        let is_float = epilogue == Epilogue::Float;
        let x = gpu.upload("x", &self.x);
        let weight = gpu.upload("weight", &self.weight);
        let bias = self.bias.as_ref().map(|bias| gpu.upload("bias", bias));
        let before: Vec<u32> = self.before.iter().map(|&bits| u32::from(bits)).collect();
        let half = gpu.upload("out", &self.before);
        let float = gpu.upload("out in f32", &before);
        let workspace = gpu.alloc::<u8>("workspace", self.plan.workspace_bytes() as usize);
        let counters = gpu.upload("counters", &vec![0u32; self.plan.counters() as usize]);
        let args = self.plan.args(Operands {
            x: x.ptr(),
            x_stride: self.x_stride,
            weight: weight.ptr(),
            bias: bias.map_or(std::ptr::null(), |bias| bias.ptr()),
            out: if is_float { float.mut_ptr() } else { half.mut_ptr() },
            out_stride: self.out_stride,
            workspace: workspace.mut_ptr(),
            counters: counters.mut_ptr(),
        });
        let entry = self.plan.entry(self.ty.label()).unwrap();
        let report = gpu.try_launch(entry, self.plan.grid(), self.plan.threads(), self.plan.shared_bytes(), args)?;
        assert!(gpu.download(counters).iter().all(|&count| count == 0), "counters are ready for the next launch");

        let columns = epilogue.columns(n) as usize;
        let mut results = Vec::new();
        let (half, float) = (gpu.download(half), gpu.download(float));
        for row in 0..m as usize {
            for column in 0..self.out_stride as usize {
                let at = row * self.out_stride as usize + column;
                if column >= columns {
                    assert_eq!((half[at], float[at]), (self.before[at], before[at]), "between rows nothing is stored");
                } else if is_float {
                    results.push(f32::from_bits(float[at]).into());
                } else {
                    results.push(self.ty.number(half[at]));
                }
            }
        }
        Ok((results, report))
    }

    /// What the result should be.
    pub fn truth(&self) -> Vec<f64> {
        let Product { m, n, k, epilogue } = self.plan.product;
        let (k, number) = (k as usize, |bits: &u16| self.ty.number(*bits));
        let weight: Vec<f64> = self.weight.iter().map(number).collect();
        let mut truth = Vec::new();
        for row in 0..m as usize {
            let x: Vec<f64> = self.x[row * self.x_stride as usize..][..k].iter().map(number).collect();
            let sum = |column: usize| {
                let products = weight[column * k..][..k].iter().zip(&x).map(|(w, x)| w * x);
                products.sum::<f64>() + self.bias.as_ref().map_or(0.0, |bias| number(&bias[column]))
            };
            let sums: Vec<f64> = (0..n as usize).map(sum).collect();
            match epilogue {
                Epilogue::Half(None) | Epilogue::Float => truth.extend(sums),
                Epilogue::Half(Some(act)) => truth.extend(sums.into_iter().map(|x| activated(act, x))),
                Epilogue::Gated(act) => {
                    // Eight rows of the gate, then the same eight of up.
                    for groups in sums.chunks_exact(2 * GATED_ROWS as usize) {
                        let (gate, up) = groups.split_at(GATED_ROWS as usize);
                        truth.extend(gate.iter().zip(up).map(|(&gate, up)| activated(act, gate) * up));
                    }
                }
                Epilogue::Add => {
                    let before = &self.before[row * self.out_stride as usize..];
                    truth.extend(sums.iter().zip(before).map(|(sum, bits)| sum + number(bits)));
                }
            }
        }
        truth
    }

    /// How far from the truth results may be: what rounding them costs, and a little for the order of sums.
    pub fn tolerance(&self) -> f64 {
        match (self.plan.product.epilogue, self.ty) {
            (Epilogue::Float, _) => 1e-5,
            (_, Type::F16) => 6e-4,
            (_, Type::Bf16) => 4.5e-3,
        }
    }

    /// Runs it, and holds the result against the truth.
    pub fn check(&self, gpu: &mut Gpu) -> Report {
        let (results, report) = self.run(gpu).unwrap_or_else(|fault| panic!("{:?}: {fault}", self.plan));
        let error = relative_error(results, &self.truth());
        assert!(error <= self.tolerance(), "{:?} of {:?}: off by {error:e}", self.plan, self.ty);
        report
    }
}

/// An activation, in `f64`.
fn activated(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Relu => x.max(0.0),
        Activation::Gelu => 0.5 * x * erfc(-x / 2f64.sqrt()),
        // (1 + tanh u) / 2 as the logistic function of 2u, which does not cancel.
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// `1 - erf(x)`: by the series of `erf` near zero, else by the continued fraction, which keeps precision in the tail.
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
