//! Kernels compiled from C++ by NVIDIA's compiler.

use emulator::{LaunchOptions, PtxModule};
use half::f16;

use crate::problem::{Argument, Number, Problem, check, exactly, input, numbers, output, value};

pub const PTX: &str = include_str!("kernels.ptx");

fn calls() -> Vec<Problem> {
    let line = [2f32.bytes(), 1f32.bytes(), 10i32.bytes(), 20i32.bytes(), 30i32.bytes()].concat();
    let line = Argument::Value(emulator::Arg::Bytes(line));
    let by_value: Vec<f32> = (0..100).map(|i| (2 * i + 1 + (i % 3 + 1) * 10) as f32).collect();
    let which = numbers(64, 3);
    let call = |(i, which): (i32, &i32)| [2 * i, i * i, i - 1][*which as usize];
    let called: Vec<i32> = (0..).zip(&which).map(call).collect();
    let ackermann = |m: i32, n: i32| [n + 1, n + 2, 2 * n + 3][m as usize];
    let recursive: Vec<i32> = (0..32).map(|i| ackermann(i % 3, i % 5)).collect();
    vec![
        Problem::line("by_value", 4, 32, vec![line, output::<f32>(100), value(100i32)], exactly(vec![by_value])),
        Problem::line("through_pointers", 1, 64, vec![input(&which), output::<i32>(64)], exactly(vec![called])),
        Problem::line("recursive", 1, 32, vec![output::<i32>(32)], exactly(vec![recursive])),
    ]
}

fn products() -> Vec<Problem> {
    let (a, b) = (numbers(256, 9), numbers(512, 7).split_off(256));
    let halves = |x: &[i32]| input(&x.iter().map(|&x| f16::from_f32(x as f32 - 4.0)).collect::<Vec<f16>>());
    let small = |x: &[i32]| input(&x.iter().map(|&x| (x - 4) as i8).collect::<Vec<i8>>());
    let exact = |index: usize, column_major: bool| {
        let (row, column) = (index / 16, index % 16);
        let b_at = |k: usize| if column_major { b[column * 16 + k] } else { b[k * 16 + column] };
        (0..16).map(|k| (a[row * 16 + k] - 4) * (b_at(k) - 4)).sum::<i32>()
    };
    let of_halves: Vec<f32> = (0..256).map(|i| (exact(i, true) + 1) as f32 * 0.5).collect();
    let of_bytes: Vec<i32> = (0..256).map(|i| exact(i, false)).collect();
    vec![
        Problem::line(
            "fragments",
            1,
            32,
            vec![halves(&a), halves(&b), output::<f32>(256), value(0.5f32)],
            exactly(vec![of_halves]),
        ),
        Problem::line("byte_fragments", 1, 32, vec![small(&a), small(&b), output::<i32>(256)], exactly(vec![of_bytes])),
    ]
}

fn narrow() -> Vec<Problem> {
    let x: Vec<f32> = numbers(64, 100_000).iter().map(|&x| (x as f32 - 50_000.0) / 37.0).collect();
    let narrowed = [(3, 448.0), (2, 57344.0)].map(|(fraction, greatest)| {
        let nearest = |number: &f32| {
            let step = 2f32.powi(number.abs().log2().floor() as i32 - fraction);
            ((number / step).round_ties_even() * step).clamp(-greatest, greatest)
        };
        x.iter().map(nearest).collect::<Vec<f32>>()
    });
    let halves: Vec<f16> = numbers(128, 5).iter().map(|&x| f16::from_f32(x as f32)).collect();
    let (a, b) = halves.split_at(64);
    let greater = |(a, b): (&f16, &f16)| if a > b { f16::ONE } else { f16::ZERO };
    let greater: Vec<f16> = a.iter().zip(b).map(greater).collect();
    let eight_bits = vec![input(&x), output::<f32>(64), output::<f32>(64)];
    vec![
        Problem::line("eight_bits", 1, 32, eight_bits, exactly(narrowed.to_vec())),
        Problem::line("compare_pairs", 1, 32, vec![input(a), input(b), output::<f16>(64)], exactly(vec![greater])),
    ]
}

fn clusters_and_copies() -> Vec<Problem> {
    let x = numbers(8 * 64, 1000);
    let sums: Vec<i32> = x.chunks(4 * 64).map(|part| part.iter().sum()).collect();
    let sums: Vec<i32> = (0..8).map(|block| sums[block / 4]).collect();
    let count = |bin: i32| x.iter().filter(|&&x| x & 63 == bin).count() as i32;
    let bins: Vec<i32> = (0..64).map(count).collect();
    let tile = numbers(256, 1000);
    let turned: Vec<i32> = tile.chunks(4).rev().flatten().copied().collect();
    vec![
        Problem::line("cluster_sum", 8, 64, vec![input(&x), output::<i32>(8)], exactly(vec![sums])),
        Problem::line(
            "cluster_histogram",
            2,
            64,
            vec![input(&x), output::<i32>(64), value(512i32)],
            exactly(vec![bins]),
        ),
        Problem::line("async_copies", 1, 64, vec![input(&tile), output::<i32>(256)], exactly(vec![turned])),
    ]
}

pub fn problems() -> Vec<Problem> {
    [calls(), products(), narrow(), clusters_and_copies()].into_iter().flatten().collect()
}

/// A sum whose kernel reads uninitialised memory and discards it by a selection.
fn masked_sum() -> Problem {
    let x: Vec<f32> = numbers(64, 100).iter().map(|&x| x as f32).collect();
    let sums = vec![x[..32].iter().sum::<f32>(), x[32..40].iter().sum()];
    Problem::line("masked_sum", 1, 64, vec![input(&x), output::<f32>(2), value(40i32)], exactly(vec![sums]))
}

#[test]
fn all_results_are_correct() {
    check(PTX, problems());
}

#[test]
fn discarded_reads_need_poison() {
    let module = PtxModule::parse(PTX).unwrap();
    let run = |poison| masked_sum().run(PTX, &module, &LaunchOptions { poison, ..LaunchOptions::default() });
    assert!(run(false).unwrap_err().starts_with("Uninitialised"));
    run(true).unwrap();
}

#[test]
fn every_kernel_is_supported() {
    let module = PtxModule::parse(PTX).unwrap();
    assert_eq!(module.entries().len(), 11);
    module.check().unwrap_or_else(|error| panic!("{error}"));
}
