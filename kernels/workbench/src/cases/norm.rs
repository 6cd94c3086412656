//! Norms of rows.

use cuda_std::launch::{DevicePtr, LaunchShape};
use kernels::norm::{
    NormShape, floor_bytes, layer_norm, rms_norm, rms_norm_divided, rms_norm_gated, rms_norm_part, row_squares,
};
use kernels::with_element;
use launch::Result;

use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::gpu::Gpu;
use crate::number::{ProblemRng, Type, relative_error};

/// Added to variances.
pub const EPS: f32 = 1e-5;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let (rows, width) = match scale {
        Scale::Small => (12, 768),
        Scale::Full => (4096, 5120),
    };
    let problem = |(ty, layer)| NormProblem {
        ty,
        layer,
        rows,
        width,
        residual: true,
        weight: true,
        bias: layer,
        neutral: true,
        seed: 1,
    };
    let all = Type::ALL.into_iter().flat_map(|ty| [(ty, true), (ty, false)]);
    let parts = Type::ALL.map(|ty| part(ty, rows, width, 3));
    let divided =
        Type::ALL.into_iter().flat_map(|ty| [squares(ty, rows, width, width / 2), divided(ty, rows, width, 1)]);
    let gated = Type::ALL.into_iter().flat_map(|ty| [false, true].map(|gate_first| gated(ty, rows, width, gate_first)));
    all.map(|kind| problem(kind).case()).chain(parts).chain(divided).chain(gated).collect()
}

/// Rows of random numbers far from zero. A variance computed from the mean of squares would lose its digits on them.
#[derive(Clone, Copy, Debug)]
pub struct NormProblem {
    /// Type of the elements.
    pub ty: Type,
    /// Whether the kernel is `layer_norm` instead of `rms_norm`.
    pub layer: bool,
    /// Number of rows.
    pub rows: usize,
    /// Elements in a row.
    pub width: usize,
    /// Whether a residual sum comes first.
    pub residual: bool,
    /// Whether there are factors. `rms_norm` always has them.
    pub weight: bool,
    /// Whether there is a bias. `rms_norm` never has one.
    pub bias: bool,
    /// Whether the residual sum adds zero, so the launch can be repeated.
    pub neutral: bool,
    /// Seed of the numbers.
    pub seed: u64,
}

impl NormProblem {
    /// Makes a case of the problem. Results may be off by half a unit in the last place of the largest result, plus a
    /// little for arithmetic in `f32`. The residual stream must be bit-exact.
    pub fn case(self) -> Case {
        let NormProblem { ty, layer, rows, width, residual, .. } = self;
        Case {
            kernel: if layer { "layer_norm" } else { "rms_norm" },
            shape: format!("{}, {rows} rows of {width}{}", ty.label(), if residual { ", residual sum" } else { "" }),
            floor: Floor { bytes: floor_bytes(rows as u64, width as u64, residual), flops: 0 },
            prepare: Box::new(move |gpu| self.prepare(gpu)),
        }
    }

    /// Computes the norm of `row` in `f64`.
    pub fn reference(&self, row: &[u16], weight: &[u16], bias: &[u16]) -> Vec<f64> {
        let row: Vec<f64> = row.iter().map(|&v| self.ty.number(v)).collect();
        let count = row.len() as f64;
        let mean = if self.layer { row.iter().sum::<f64>() / count } else { 0.0 };
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / count;
        let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
        let affine = |((v, &w), &b): ((&f64, &u16), &u16)| {
            let factor = if self.weight { self.ty.number(w) } else { 1.0 };
            (v - mean) * scale * factor + if self.bias { self.ty.number(b) } else { 0.0 }
        };
        row.iter().zip(weight).zip(bias).map(affine).collect()
    }

    fn prepare(self, gpu: &mut Gpu) -> Result<Prepared> {
        let NormProblem { ty, layer, rows, width, residual, neutral, seed, .. } = self;
        let mut random = ProblemRng(seed);
        let size = rows * width;
        let stream: Vec<u16> = (0..size).map(|_| ty.bits(20.0 + random.unit())).collect();
        let added = if neutral { vec![0; size] } else { random.bits(ty, size) };
        let (weight, bias) = (random.bits(ty, width), random.bits(ty, width));
        let sum = |(&a, &b): (&u16, &u16)| ty.bits(f64::from((ty.number(a) + ty.number(b)) as f32));
        let summed = if residual { stream.iter().zip(&added).map(sum).collect() } else { stream.clone() };
        let truth: Vec<f64> = summed.chunks_exact(width).flat_map(|row| self.reference(row, &weight, &bias)).collect();

        let x = gpu.upload("x", &stream)?;
        let y = if residual { gpu.upload("y", &added)?.ptr() } else { DevicePtr::NULL };
        let weight = if self.weight { gpu.upload("weight", &weight)?.ptr() } else { DevicePtr::NULL };
        let bias = if self.bias { gpu.upload("bias", &bias)?.ptr() } else { DevicePtr::NULL };
        let out = gpu.alloc::<u16>("out", size)?;
        let shape = NormShape::of(width as u32).unwrap_or_else(|error| panic!("{error}"));
        let (launch, vectors) = (LaunchShape::linear(rows as u32, shape.threads), shape.vectors);
        let call = if layer {
            let args = layer_norm { x: x.mut_ptr(), y, weight, bias, out: out.mut_ptr(), eps: EPS, vectors };
            with_element!(ty.element(), T => args.instance::<T>())
        } else {
            let args = rms_norm { x: x.mut_ptr(), y, weight, out: out.mut_ptr(), eps: EPS, vectors };
            with_element!(ty.element(), T => args.instance::<T>())
        };
        Ok(Prepared {
            // SAFETY: each block has a row of the shape's width.
            launch: Box::new(move |gpu| unsafe { gpu.launch(launch, call) }),
            error: Box::new(move |gpu| {
                let numbers = gpu.download(out)?.into_iter().map(|v| ty.number(v));
                let right = gpu.download(x)? == summed;
                Ok(if right { relative_error(numbers, &truth) / rounding(ty) } else { f64::INFINITY })
            }),
        })
    }
}

/// Returns half a unit in the last place, relative to the number, plus a little for arithmetic in `f32`.
pub fn rounding(ty: Type) -> f64 {
    let digits = match ty {
        Type::F16 => 11,
        Type::Bf16 => 8,
    };
    2f64.powi(-digits) + 5e-6
}

/// Norms of the queries of fused rows, `parts` times as long as the queries.
pub fn part(ty: Type, rows: usize, width: usize, parts: usize) -> Case {
    let stride = parts * width;
    Case {
        kernel: "rms_norm_part",
        shape: format!("{}, {rows} rows, {width} of {stride}", ty.label()),
        floor: Floor { bytes: floor_bytes(rows as u64, width as u64, false), flops: 0 },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(5);
            let (before, weight) = (random.bits(ty, rows * stride), random.bits(ty, width));
            let problem = NormProblem {
                ty,
                layer: false,
                rows,
                width,
                residual: false,
                weight: true,
                bias: false,
                neutral: false,
                seed: 0,
            };
            let mut truth: Vec<f64> = before.iter().map(|&v| ty.number(v)).collect();
            for (row, truth) in before.chunks(stride).zip(truth.chunks_mut(stride)) {
                truth[..width].copy_from_slice(&problem.reference(&row[..width], &weight, &weight));
            }
            let shape = NormShape::of(width as u32).unwrap_or_else(|error| panic!("{error}"));
            let out = gpu.upload("out", &before)?;
            let args = rms_norm_part {
                x: gpu.upload("x", &before)?.ptr(),
                weight: gpu.upload("weight", &weight)?.ptr(),
                out: out.mut_ptr(),
                eps: EPS,
                vectors: shape.vectors,
                stride: stride as u32 / 8,
            };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            let launch = LaunchShape::linear(rows as u32, shape.threads);
            Ok(Prepared {
                // SAFETY: each block has a row of the shape's width.
                launch: Box::new(move |gpu| unsafe { gpu.launch(launch, call) }),
                error: Box::new(move |gpu| {
                    let numbers = gpu.download(out)?.into_iter().map(|v| ty.number(v));
                    Ok(relative_error(numbers, &truth) / rounding(ty))
                }),
            })
        }),
    }
}

/// Ranks that a row is divided among, and the rank whose part is computed.
const RANKS: u32 = 3;
const RANK: u32 = 1;

/// The elements that represent a sum of squares in `row_squares`: its four bytes.
fn bytes_of(ty: Type, sum: f32) -> [u16; 4] {
    sum.to_le_bytes().map(|byte| ty.bits(byte.into()))
}

/// Sums of squares of `queries` and `keys` elements of fused rows, which also have as many values as keys.
pub fn squares(ty: Type, rows: usize, queries: usize, keys: usize) -> Case {
    let stride = queries + 2 * keys;
    let vectors = |elements: usize| (elements / 8) as u32;
    Case {
        kernel: "row_squares",
        shape: format!("{}, {rows} rows of {queries} and {keys}", ty.label()),
        floor: Floor { bytes: 2 * (rows * (queries + keys + 8 * RANKS as usize)) as u64, flops: 0 },
        prepare: Box::new(move |gpu| {
            let x = ProblemRng(8).bits(ty, rows * stride);
            let out = gpu.alloc::<u16>("out", rows * 8 * RANKS as usize)?;
            let args = row_squares {
                x: gpu.upload("x", &x)?.ptr(),
                out: out.mut_ptr(),
                queries: vectors(queries),
                keys: vectors(keys),
                stride: vectors(stride),
                rank: RANK,
                ranks: RANKS,
            };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            Ok(Prepared {
                // SAFETY: each block has a row, and whole warps.
                launch: Box::new(move |gpu| unsafe { gpu.launch(LaunchShape::linear(rows as u32, 256), call) }),
                error: Box::new(move |gpu| {
                    let sum = |row: &[u16]| row.iter().map(|&v| ty.number(v).powi(2)).sum::<f64>();
                    let truth: Vec<f64> =
                        x.chunks(stride).flat_map(|row| [sum(&row[..queries]), sum(&row[queries..][..keys])]).collect();
                    let mut sums = Vec::new();
                    for (at, vector) in gpu.download(out)?.chunks(8).enumerate() {
                        if at as u32 % RANKS == RANK {
                            let word = |half: &[u16]| std::array::from_fn(|e| ty.number(half[e]) as u8);
                            sums.extend(vector.chunks(4).map(|half| f64::from(f32::from_le_bytes(word(half)))));
                        } else if vector.iter().any(|&v| v != 0) {
                            return Ok(f64::INFINITY);
                        }
                    }
                    Ok(relative_error(sums, &truth) / 1e-5)
                }),
            })
        }),
    }
}

/// Norms of the own part of rows that are divided among ranks. `part` is 0 for queries and 1 for keys.
pub fn divided(ty: Type, rows: usize, width: usize, part: u32) -> Case {
    let stride = width + 16;
    Case {
        kernel: "rms_norm_divided",
        shape: format!("{}, {rows} rows of {width}, part {part}", ty.label()),
        floor: Floor { bytes: floor_bytes(rows as u64, width as u64, false), flops: 0 },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(9);
            let (before, weight) = (random.bits(ty, rows * stride), random.bits(ty, width));
            let sums: Vec<f32> = (0..2 * rows * RANKS as usize).map(|_| 100.0 + random.unit() as f32).collect();
            let squares: Vec<u16> = sums.iter().flat_map(|&sum| bytes_of(ty, sum)).collect();
            let (count, out) = (RANKS * width as u32, gpu.upload("out", &before)?);
            let args = rms_norm_divided {
                x: gpu.upload("x", &before)?.ptr(),
                weight: gpu.upload("weight", &weight)?.ptr(),
                out: out.mut_ptr(),
                squares: gpu.upload("squares", &squares)?.ptr(),
                part,
                width: count,
                eps: EPS,
                vectors: width as u32 / 8,
                stride: stride as u32 / 8,
                ranks: RANKS,
            };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            Ok(Prepared {
                // SAFETY: each block has a row.
                launch: Box::new(move |gpu| unsafe { gpu.launch(LaunchShape::linear(rows as u32, 256), call) }),
                error: Box::new(move |gpu| {
                    let mut truth: Vec<f64> = before.iter().map(|&v| ty.number(v)).collect();
                    let of_row = sums.chunks(2 * RANKS as usize);
                    for (row, sums) in truth.chunks_mut(stride).zip(of_row) {
                        let total: f64 = sums.iter().skip(part as usize).step_by(2).map(|&sum| f64::from(sum)).sum();
                        let scale = 1.0 / (total / f64::from(count) + f64::from(EPS)).sqrt();
                        row.iter_mut().zip(&weight).for_each(|(v, &w)| *v *= scale * ty.number(w));
                    }
                    let numbers = gpu.download(out)?.into_iter().map(|v| ty.number(v));
                    Ok(relative_error(numbers, &truth) / rounding(ty))
                }),
            })
        }),
    }
}

/// Norms of rows with gates, which are applied after the norm or before it.
pub fn gated(ty: Type, rows: usize, width: usize, gate_first: bool) -> Case {
    Case {
        kernel: "rms_norm_gated",
        shape: format!("{}, {rows} rows of {width}, gate {}", ty.label(), if gate_first { "first" } else { "last" }),
        floor: Floor { bytes: 6 * (rows * width) as u64, flops: 0 },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(11);
            let [x, gate, weight] = [rows * width, rows * width, width].map(|count| random.bits(ty, count));
            let out = gpu.alloc::<u16>("out", x.len())?;
            let shape = NormShape::of(width as u32).unwrap_or_else(|error| panic!("{error}"));
            let args = rms_norm_gated {
                x: gpu.upload("x", &x)?.ptr(),
                gate: gpu.upload("gate", &gate)?.ptr(),
                weight: gpu.upload("weight", &weight)?.ptr(),
                out: out.mut_ptr(),
                eps: EPS,
                vectors: shape.vectors,
                gate_first: u32::from(gate_first),
            };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            let launch = LaunchShape::linear(rows as u32, shape.threads);
            Ok(Prepared {
                // SAFETY: each block has a row of the shape's width.
                launch: Box::new(move |gpu| unsafe { gpu.launch(launch, call) }),
                error: Box::new(move |gpu| {
                    let silu = |gate: f64| gate / (1.0 + (-gate).exp());
                    let mut truth = Vec::new();
                    for (row, gates) in x.chunks(width).zip(gate.chunks(width)) {
                        let factor = |gate: u16, applies: bool| if applies { silu(ty.number(gate)) } else { 1.0 };
                        let values: Vec<f64> =
                            row.iter().zip(gates).map(|(&x, &gate)| ty.number(x) * factor(gate, gate_first)).collect();
                        let squares = values.iter().map(|v| v * v).sum::<f64>() / width as f64;
                        let scale = 1.0 / (squares + f64::from(EPS)).sqrt();
                        let rest =
                            gates.iter().zip(&weight).map(|(&gate, &w)| factor(gate, !gate_first) * ty.number(w));
                        truth.extend(values.iter().zip(rest).map(|(v, by)| v * scale * by));
                    }
                    let numbers = gpu.download(out)?.into_iter().map(|v| ty.number(v));
                    // A gated value is rounded before its norm.
                    Ok(relative_error(numbers, &truth) / (2.0 * rounding(ty)))
                }),
            })
        }),
    }
}
