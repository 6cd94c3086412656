//! Kernels compiled by Numba.

use crate::problem::{Argument, Form, Memory, Number, Problem, bytes, check, exactly, numbers, value};

pub const PTX: &str = include_str!("numba_sm_80.ptx");

fn array<T: Number>(numbers: &[T], shape: &[usize]) -> Argument {
    Argument::Memory(Memory::Input(bytes(numbers)), form::<T>(shape))
}

fn room<T: Number>(shape: &[usize]) -> Argument {
    Argument::Memory(Memory::Output(shape.iter().product::<usize>() * size_of::<T>()), form::<T>(shape))
}

fn form<T>(shape: &[usize]) -> Form {
    Form::Array(size_of::<T>() as u64, shape.iter().map(|&size| size as u64).collect())
}

fn sum_of_squares(count: usize, blocks: u32) -> Problem {
    let x: Vec<i32> = numbers(count, 9).iter().map(|x| x - 4).collect();
    let floats: Vec<f32> = x.iter().map(|&x| x as f32).collect();
    let start = 3f32;
    let sum = Argument::Memory(Memory::Updated(bytes(&[start])), form::<f32>(&[1]));
    Problem {
        kernel: "sum_of_squares",
        grid: [blocks, 1, 1],
        block: [128, 1, 1],
        arguments: vec![array(&floats, &[count]), sum],
        judge: exactly(vec![vec![start + x.iter().map(|x| x * x).sum::<i32>() as f32]]),
        poison: false,
    }
}

fn product(m: usize, n: usize, k: usize) -> Problem {
    let (a, b) = (numbers(m * k, 9), numbers(k * n, 7));
    let floats = |x: &[i32]| -> Vec<f32> { x.iter().map(|&x| (x - 3) as f32).collect() };
    let (a, b) = (floats(&a), floats(&b));
    let exact = |at: usize| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum::<f32>();
    Problem {
        kernel: "product",
        grid: [n.div_ceil(8) as u32, m.div_ceil(8) as u32, 1],
        block: [8, 8, 1],
        arguments: vec![array(&a, &[m, k]), array(&b, &[k, n]), room::<f32>(&[m, n])],
        judge: exactly(vec![(0..m * n).map(exact).collect::<Vec<f32>>()]),
        poison: false,
    }
}

fn mandelbrot(rows: usize, columns: usize) -> Problem {
    let (left, top, pitch, most) = (-2.0, -1.0, 2.7 / columns as f64, 40);
    // Uses fused multiply-add exactly where the compiler does.
    let steps = |at: usize| {
        let x0 = ((at % columns) as f64).mul_add(pitch, left);
        let y0 = ((at / columns) as f64).mul_add(pitch, top);
        let (mut x, mut y, mut count) = (0f64, 0f64, 0);
        while count < most && x.mul_add(x, y * y) <= 4.0 {
            (x, y) = (x0 + (x * x - y * y), y.mul_add(x + x, y0));
            count += 1;
        }
        count
    };
    Problem {
        kernel: "mandelbrot",
        grid: [columns.div_ceil(16) as u32, rows.div_ceil(4) as u32, 1],
        block: [16, 4, 1],
        arguments: vec![room::<i32>(&[rows, columns]), value(left), value(top), value(pitch), value(most)],
        judge: exactly(vec![(0..rows * columns).map(steps).collect::<Vec<i32>>()]),
        poison: false,
    }
}

fn warps(blocks: usize) -> Problem {
    let count = blocks * 64;
    let x = numbers(count, 7);
    let warp = |at: usize| &x[at / 32 * 32..at / 32 * 32 + 32];
    let sums = |at: usize| warp(at)[..=at % 32].iter().sum();
    let is_even = |x: &&i32| **x % 2 == 0;
    let place =
        |at: usize| if is_even(&&x[at]) { warp(at)[..at % 32].iter().filter(is_even).count() as i32 } else { -1 };
    let peers = |at: usize| (0..32).filter(|&lane| warp(at)[lane] == x[at]).fold(0, |set, lane| set | 1 << lane);
    let all: [Vec<i32>; 3] =
        [(0..count).map(sums).collect(), (0..count).map(place).collect(), (0..count).map(peers).collect()];
    Problem {
        kernel: "warps",
        grid: [blocks as u32, 1, 1],
        block: [64, 1, 1],
        arguments: [array(&x, &[count])].into_iter().chain((0..3).map(|_| room::<i32>(&[count]))).collect(),
        judge: exactly(all.to_vec()),
        poison: false,
    }
}

pub fn problems() -> Vec<Problem> {
    vec![
        sum_of_squares(1, 1),
        sum_of_squares(1000, 3),
        product(9, 7, 5),
        product(16, 24, 17),
        product(1, 30, 8),
        mandelbrot(21, 35),
        warps(3),
    ]
}

#[test]
fn all_results_are_correct() {
    check(PTX, problems());
}
