//! Norms on the device under test, against plain f64.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod frame;

use std::ptr::null;

use cuda_std::launch::Family;
use emulator::Fault;
use frame::gpu::{Gpu, TARGETS};
use frame::mutate::without_each;
use frame::number::{Random, Type, relative_error};
use kernels::layout::Vector;
use kernels::norm::{HEAD_THREADS, Shape, floor_bytes, head_grid, head_norm, head_shape, layer_norm, rms_norm};

const EPS: f32 = 1e-5;

/// What rounding the result leaves of an error, and a little for the arithmetic in `f32`.
fn tolerance(ty: Type) -> f64 {
    match ty {
        Type::F16 => 2f64.powi(-11) + 5e-6,
        Type::Bf16 => 2f64.powi(-8) + 5e-6,
    }
}

fn numbers(ty: Type, bits: &[u16]) -> Vec<f64> {
    bits.iter().map(|&b| ty.number(b)).collect()
}

/// One launch of a norm over rows: `layer` or root mean square; with a residual sum, weight and bias or without.
#[derive(Clone, Debug)]
struct Case {
    ty: Type,
    layer: bool,
    width: usize,
    rows: usize,
    residual: bool,
    weight: bool,
    bias: bool,
    seed: u64,
}

struct Data {
    x: Vec<u16>,
    y: Vec<u16>,
    weight: Vec<u16>,
    bias: Vec<u16>,
}

impl Case {
    fn data(&self) -> Data {
        let mut random = Random(self.seed ^ 0xA5);
        // Far from zero, so that a variance from the mean of squares would lose its digits.
        let x = (0..self.rows * self.width).map(|_| self.ty.bits(20.0 + random.unit())).collect();
        let (y, weight) = (random.bits(self.ty, self.rows * self.width), random.bits(self.ty, self.width));
        Data { x, y, weight, bias: random.bits(self.ty, self.width) }
    }

    /// The residual stream after the sum, exactly; and the norm of it.
    fn reference(&self, data: &Data) -> (Vec<u16>, Vec<f64>) {
        let add = |(&x, &y): (&u16, &u16)| self.ty.bits(f64::from(self.ty.number(x) as f32 + self.ty.number(y) as f32));
        let sum = if self.residual { data.x.iter().zip(&data.y).map(add).collect() } else { data.x.clone() };
        let (weight, bias) = (numbers(self.ty, &data.weight), numbers(self.ty, &data.bias));
        let mut out = Vec::new();
        for row in sum.chunks_exact(self.width) {
            let row = numbers(self.ty, row);
            let mean = if self.layer { row.iter().sum::<f64>() / self.width as f64 } else { 0.0 };
            let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / self.width as f64;
            let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
            out.extend(row.iter().zip(&weight).zip(&bias).map(|((v, w), b)| {
                (v - mean) * scale * if self.weight { *w } else { 1.0 } + if self.bias { *b } else { 0.0 }
            }));
        }
        (sum, out)
    }

    /// Runs it, and says how far the result is off; infinitely if the residual stream is wrong.
    fn run(&self, gpu: &mut Gpu) -> Result<(f64, emulator::Report), Box<Fault>> {
        let data = self.data();
        let shape = Shape::of(self.width as u32).unwrap();
        gpu.seed(self.seed);
        let x = gpu.upload("x", &data.x);
        let y = if self.residual { gpu.upload("y", &data.y).ptr() } else { null::<Vector>() };
        let weight = if self.weight { gpu.upload("weight", &data.weight).ptr() } else { null() };
        let bias = if self.bias { gpu.upload("bias", &data.bias).ptr() } else { null() };
        let out = gpu.alloc::<u16>("out", data.x.len());
        let (grid, label) = ((self.rows as u32, 1, 1), [self.ty.label()]);
        let report = if self.layer {
            let args = (x.mut_ptr(), y, weight, bias, out.mut_ptr(), EPS, shape.vectors);
            gpu.try_launch(layer_norm::instance(&label).unwrap(), grid, shape.threads, 0, args)?
        } else {
            let args = (x.mut_ptr(), y, weight, out.mut_ptr(), EPS, shape.vectors);
            gpu.try_launch(rms_norm::instance(&label).unwrap(), grid, shape.threads, 0, args)?
        };
        let (sum, want) = self.reference(&data);
        let error = relative_error(numbers(self.ty, &gpu.download(out)), &want);
        Ok((if gpu.download(x) == sum { error } else { f64::INFINITY }, report))
    }
}

fn cases(ty: Type) -> Vec<Case> {
    let case = |layer, width, rows, parts: u32, seed| {
        let [residual, weight, bias] = [1, 2, 4].map(|bit| parts & bit != 0);
        Case { ty, layer, width, rows, residual, weight: weight || !layer, bias: bias && layer, seed }
    };
    let widths = [(8, 1), (64, 3), (264, 2), (768, 3), (4104, 2), (16384, 1)];
    let of = |layer| move |(i, (width, rows))| (0..3).map(move |j| (layer, width, rows, 3 * i + 5 * j, i + j));
    let all = [false, true].into_iter().flat_map(|layer| (0..).zip(widths).flat_map(of(layer)));
    all.map(|(layer, width, rows, parts, seed)| case(layer, width, rows, parts as u32, seed as u64)).collect()
}

#[test]
fn rows_are_normalised() {
    for case in Type::ALL.into_iter().flat_map(cases) {
        for (target, _) in TARGETS {
            let (error, report) = case.run(&mut Gpu::new(target)).unwrap_or_else(|fault| panic!("{fault}"));
            assert!(error <= tolerance(case.ty), "{error} in {case:?}");
            assert_eq!(report.total.bank_conflicts(), 0);
            if case.width.is_multiple_of(16) {
                assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
                let weights = 2 * (u64::from(case.weight) + u64::from(case.bias)) * (case.rows * case.width) as u64;
                let floor = floor_bytes(case.rows as u64, case.width as u64, case.residual) + weights;
                assert_eq!(report.total.sectors * 32, floor, "{case:?}");
            }
        }
    }
}

#[test]
fn a_missing_barrier_is_noticed() {
    for (layer, entry, barriers) in [(true, "layer_norm_f16", 2), (false, "rms_norm_f16", 1)] {
        let case =
            Case { ty: Type::F16, layer, width: 768, rows: 2, residual: true, weight: true, bias: layer, seed: 0 };
        let mutants = without_each(TARGETS[0].1, entry, &["bar.sync", "barrier.sync"]);
        assert_eq!(mutants.len(), barriers);
        for mutant in mutants {
            let survives = |seed| {
                let case = Case { seed, ..case.clone() };
                case.run(&mut Gpu::with_ptx(&mutant.ptx)).is_ok_and(|(error, _)| error <= tolerance(case.ty))
            };
            assert!(!(0..4).all(survives), "{entry} without {}", mutant.removed);
        }
    }
}

fn check_heads(ty: Type, head_size: usize, heads: usize, rows: usize, padding: usize, seed: u64) {
    let mut random = Random(seed);
    let stride = heads * head_size + padding;
    let (x, weight) = (random.bits(ty, rows * stride), random.bits(ty, head_size));
    let chunks = head_shape(head_size as u32).unwrap();
    let mut want = numbers(ty, &x);
    for row in want.chunks_exact_mut(stride) {
        for head in row[..heads * head_size].chunks_exact_mut(head_size) {
            let mean = head.iter().map(|v| v * v).sum::<f64>() / head_size as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            head.iter_mut().zip(&weight).for_each(|(v, &w)| *v *= scale * ty.number(w));
        }
    }
    for (target, _) in TARGETS {
        let mut gpu = Gpu::new(target);
        gpu.seed(seed);
        let (data, weight) = (gpu.upload("x", &x), gpu.upload("weight", &weight));
        let stride = stride as u32 / 8;
        let args = (data.mut_ptr(), weight.ptr(), EPS, rows as u32, heads as u32, chunks, stride);
        let grid = head_grid(rows as u32, heads as u32, chunks);
        let report = gpu.launch(head_norm::instance(&[ty.label()]).unwrap(), grid, HEAD_THREADS, 0, args);
        let error = relative_error(numbers(ty, &gpu.download(data)), &want);
        assert!(error <= tolerance(ty), "{error}: {head_size} {heads}");
        assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
    }
}

#[test]
fn heads_are_normalised_and_nothing_between_rows() {
    let sizes = [(32, 5), (64, 3), (80, 4), (96, 1), (128, 2), (256, 3)];
    for (i, (head_size, heads)) in sizes.into_iter().enumerate() {
        check_heads(Type::ALL[i % 2], head_size, heads, 1 + i, 16 * (i % 3), i as u64);
    }
}
