//! Kernels compiled by two versions of Triton.

use emulator::{PtxModule, Swizzle};
use half::f16;

use crate::problem::{Argument, Form, Memory, Problem, bytes, check, exactly, input, nearly, numbers, output, value};

pub const AMPERE: &str = include_str!("triton_sm_80.ptx");
pub const HOPPER: &str = include_str!("triton_sm_90a.ptx");
/// Compiled by a version that omits a fence.
const WITHOUT_FENCES: &str = include_str!("triton_3_4_sm_90a.ptx");

/// The pointers that Triton adds for global scratch memory and for profiling. These kernels use neither.
fn scratch() -> [Argument; 2] {
    [value(0u64), value(0u64)]
}

fn add(kernel: &'static str, block: usize, count: usize) -> Problem {
    let (x, y) = (numbers(count, 1 << 20), numbers(count, 1 << 19));
    let floats = |x: &[i32]| -> Vec<f32> { x.iter().map(|&x| x as f32 / 7.0).collect() };
    let (x, y) = (floats(&x), floats(&y));
    Problem {
        kernel,
        grid: [count.div_ceil(block) as u32, 1, 1],
        block: [128, 1, 1],
        judge: exactly(vec![x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<f32>>()]),
        arguments: [input(&x), input(&y), output::<f32>(count), value(count as i32)]
            .into_iter()
            .chain(scratch())
            .collect(),
        poison: false,
    }
}

fn softmax(kernel: &'static str, threads: u32, rows: usize, columns: usize, stride: usize) -> Problem {
    let x: Vec<f32> = numbers(rows * stride, 20_000).iter().map(|&x| x as f32 / 1000.0 - 10.0).collect();
    let mut expected = Vec::new();
    for row in x.chunks(stride) {
        let powers: Vec<f64> = row[..columns].iter().map(|&x| f64::from(x).exp()).collect();
        let sum: f64 = powers.iter().sum();
        expected.extend(powers.iter().map(|power| power / sum));
        // The gap between rows is unchanged.
        expected.extend((columns..stride).map(|_| -1.0));
    }
    Problem {
        kernel,
        grid: [rows as u32, 1, 1],
        block: [threads, 1, 1],
        arguments: [
            input(&x),
            Argument::Memory(Memory::Updated(bytes(&vec![-1f32; rows * stride])), Form::Pointer),
            value(columns as i32),
            value(stride as i32),
        ]
        .into_iter()
        .chain(scratch())
        .collect(),
        judge: nearly::<f32>(expected, |expected| 1e-5 * expected.abs()),
        poison: false,
    }
}

/// Two f16 matrices of small numbers, `m` by `k` and `k` by `n`, and their product.
fn matrices([m, n, k]: [usize; 3]) -> (Vec<f16>, Vec<f16>, Vec<f32>) {
    let small = |x: Vec<i32>, half: i32| -> Vec<f32> { x.iter().map(|x| (x - half) as f32).collect() };
    let (a, b) = (small(numbers(m * k, 9), 4), small(numbers(k * n, 7), 3));
    let product = |at: usize| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum();
    let product = (0..m * n).map(product).collect();
    let halves = |x: Vec<f32>| x.into_iter().map(f16::from_f32).collect();
    (halves(a), halves(b), product)
}

fn matmul(kernel: &'static str, threads: u32, tile: usize, shape: [usize; 3]) -> Problem {
    let [m, n, k] = shape;
    let (a, b, product) = matrices(shape);
    let sizes = [m, n, k, k, n, n].map(|size| value(size as i32));
    Problem {
        kernel,
        grid: [m.div_ceil(tile) as u32, n.div_ceil(tile) as u32, 1],
        block: [threads, 1, 1],
        arguments: [input(&a), input(&b), output::<f32>(m * n)].into_iter().chain(sizes).chain(scratch()).collect(),
        judge: exactly(vec![product]),
        poison: false,
    }
}

fn matmul_tensors(kernel: &'static str, threads: u32, tile: [u32; 3], swizzle: Swizzle, shape: [usize; 3]) -> Problem {
    let ([m, n, k], [tile_m, tile_n, tile_k]) = (shape, tile);
    let (a, b, product) = matrices(shape);
    let tensor = |memory: Memory, rows: usize, columns: usize, tile: [u32; 2], swizzle: Swizzle| {
        Argument::Memory(memory, Form::Tensor([rows as u64, columns as u64], tile, swizzle))
    };
    let wide = Swizzle::Bytes128;
    Problem {
        kernel,
        grid: [m.div_ceil(tile_m as usize) as u32, n.div_ceil(tile_n as usize) as u32, 1],
        block: [threads, 1, 1],
        // A tile of a map is at most 128 bytes wide.
        arguments: [
            tensor(Memory::Input(bytes(&a)), m, k, [tile_m, tile_k.min(64)], swizzle),
            tensor(Memory::Input(bytes(&b)), k, n, [tile_k, tile_n.min(64)], wide),
            tensor(Memory::Output(m * n * 2), m, n, [tile_m, tile_n.min(64)], wide),
            value(k as i32),
        ]
        .into_iter()
        .chain(scratch())
        .collect(),
        judge: exactly(vec![product.into_iter().map(f16::from_f32).collect::<Vec<f16>>()]),
        poison: false,
    }
}

/// Causal attention with f16 heads of size 64.
fn attention(heads: usize, length: usize) -> Problem {
    const SIZE: usize = 64;
    let count = heads * length * SIZE;
    let random = |range: i32| -> Vec<f16> {
        numbers(count, range).iter().map(|&x| f16::from_f32(x as f32 * 2.0 / range as f32 - 1.0)).collect()
    };
    let (q, k, v) = (random(1999), random(1789), random(1597));
    let number = |x: &[f16], head: usize, row: usize, at: usize| f64::from(x[(head * length + row) * SIZE + at]);
    let mut expected = Vec::with_capacity(count);
    for (head, row) in (0..heads).flat_map(|head| (0..length).map(move |row| (head, row))) {
        let score = |key: usize| (0..SIZE).map(|at| number(&q, head, row, at) * number(&k, head, key, at)).sum::<f64>();
        let powers: Vec<f64> = (0..=row).map(|key| (score(key) * 0.125).exp()).collect();
        let total: f64 = powers.iter().sum();
        let mean =
            |at: usize| powers.iter().enumerate().map(|(key, power)| power * number(&v, head, key, at)).sum::<f64>();
        expected.extend((0..SIZE).map(|at| mean(at) / total));
    }
    Problem {
        kernel: "attention",
        grid: [length.div_ceil(64) as u32, heads as u32, 1],
        block: [128, 1, 1],
        arguments: [input(&q), input(&k), input(&v), output::<f16>(count), value(length as i32), value(0.125f32)]
            .into_iter()
            .chain(scratch())
            .collect(),
        // The softmax weights and the results are rounded to f16.
        judge: nearly::<f16>(expected, |expected| 0.001 + 0.0005 * expected.abs()),
        poison: false,
    }
}

fn general() -> Vec<Problem> {
    vec![
        add("add", 512, 1),
        add("add", 512, 1029),
        add("add_aligned", 1024, 1008),
        add("add_aligned", 1024, 3072),
        softmax("softmax", 128, 3, 1, 5),
        softmax("softmax", 128, 2, 201, 207),
        softmax("softmax", 128, 1, 256, 256),
        softmax("softmax_wide", 256, 2, 1999, 2000),
    ]
}

pub fn ampere_problems() -> Vec<Problem> {
    let mut problems = general();
    problems.extend([
        matmul("matmul", 128, 64, [64, 64, 32]),
        matmul("matmul", 128, 64, [65, 80, 176]),
        matmul("matmul", 128, 64, [7, 64, 16]),
        matmul("matmul_narrow", 64, 32, [33, 35, 51]),
        matmul("matmul_narrow", 64, 32, [1, 1, 1]),
        attention(2, 64),
        attention(1, 129),
        attention(3, 5),
    ]);
    problems
}

pub fn hopper_problems() -> Vec<Problem> {
    let mut problems = general();
    problems.extend([
        matmul("matmul", 128, 64, [64, 64, 64]),
        matmul("matmul", 128, 64, [65, 80, 336]),
        matmul("matmul", 128, 64, [7, 16, 16]),
        matmul_tensors("matmul_tensors", 128, [64, 64, 64], Swizzle::Bytes128, [64, 64, 64]),
        matmul_tensors("matmul_tensors", 128, [64, 64, 64], Swizzle::Bytes128, [70, 72, 328]),
        matmul_tensors("matmul_tensors_wide", 256, [128, 128, 32], Swizzle::Bytes64, [128, 136, 200]),
        attention(2, 64),
        attention(1, 193),
        attention(3, 5),
    ]);
    problems
}

#[test]
fn all_sm_80_results_are_correct() {
    check(AMPERE, ampere_problems());
}

#[test]
fn all_sm_90a_results_are_correct() {
    check(HOPPER, hopper_problems());
}

/// Triton 3.4 omits the proxy fence between thread copies and the product that reads them. With a fence before each
/// barrier, its kernels are correct.
#[test]
fn triton_3_4_omits_a_fence() {
    let fenced = WITHOUT_FENCES.replace("\tbar.sync \t0;", "\tfence.proxy.async.shared::cta;\n\tbar.sync \t0;");
    let [module, fenced_module] = [WITHOUT_FENCES, &fenced].map(|text| PtxModule::parse(text).unwrap());
    let launched = module.entries();
    for mut problem in
        hopper_problems().into_iter().filter(|problem| launched.iter().any(|it| it.name() == problem.kernel))
    {
        // This version does not add the pointer for profiling.
        problem.arguments.pop();
        problem.run_in_orders(&fenced, &fenced_module).unwrap();
        let found = problem.run_in_orders(WITHOUT_FENCES, &module);
        match problem.kernel {
            "matmul" | "attention" => assert!(found.unwrap_err().contains("MissingProxyFence"), "{}", problem.kernel),
            _ => found.unwrap(),
        }
    }
}
