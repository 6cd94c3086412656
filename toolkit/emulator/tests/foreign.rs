//! Kernels as NVIDIA's compiler writes them (`foreign/`), in any order of blocks and warps, against what they should compute.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule};
use half::f16;

const PTX: &str = include_str!("foreign/kernels.ptx");

/// A number of an input or an output.
trait Number: Copy {
    fn bytes(self) -> Vec<u8>;
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}
number!(i8, i32, f32, f16);

fn bytes<T: Number>(numbers: &[T]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.bytes()).collect()
}

/// A launch: its kernel, blocks and threads, inputs, arguments that follow the pointers, and how many outputs there are.
struct Run<'a> {
    kernel: &'a str,
    shape: [u32; 2],
    inputs: &'a [Vec<u8>],
    outputs: usize,
    more: &'a [Arg],
    options: LaunchOptions,
}

impl Run<'_> {
    fn outputs<T: Number>(&self, count: usize) -> Result<Vec<Vec<T>>, Box<Fault>> {
        let module = PtxModule::parse(PTX).unwrap();
        let mut device = EmulatedDevice::new();
        let size = size_of::<T>();
        let mut arguments: Vec<Arg> =
            self.inputs.iter().map(|input| Arg::Ptr(device.alloc_from("input", input))).collect();
        let outputs: Vec<u64> = (0..self.outputs).map(|_| device.alloc_named("output", count * size)).collect();
        arguments.extend(outputs.iter().map(|&output| Arg::Ptr(output)));
        arguments.extend(self.more.iter().cloned());
        let [blocks, threads] = self.shape;
        device.launch_with(&self.options, &module, self.kernel, [blocks, 1, 1], [threads, 1, 1], 0, &arguments)?;
        let read = |&output: &u64| device.read(output, count * size).unwrap().chunks_exact(size).map(T::read).collect();
        Ok(outputs.iter().map(read).collect())
    }
}

/// The outputs of a kernel in several orders, which must be the same.
fn run<T: Number + PartialEq + std::fmt::Debug>(
    kernel: &str,
    shape: [u32; 2],
    inputs: &[Vec<u8>],
    (outputs, count): (usize, usize),
    more: &[Arg],
) -> Vec<Vec<T>> {
    let in_order = |seed: u64| {
        let options = LaunchOptions { seed, ..LaunchOptions::default() };
        let run = Run { kernel, shape, inputs, outputs, more, options };
        run.outputs(count).unwrap_or_else(|fault| panic!("{fault}"))
    };
    let first = in_order(0);
    (1..5).for_each(|seed| assert_eq!(in_order(seed), first, "seed {seed}"));
    first
}

/// Small numbers that repeat themselves late.
fn numbers(count: usize, range: i32) -> Vec<i32> {
    let mut state = 12345u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as i32 % range
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn every_kernel_is_known() {
    let module = PtxModule::parse(PTX).unwrap();
    assert_eq!(module.entries().len(), 11);
    module.check().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn calls_by_value_through_pointers_and_recursive() {
    let line = [2f32.to_le_bytes(), 1f32.to_le_bytes(), 10i32.to_le_bytes(), 20i32.to_le_bytes(), 30i32.to_le_bytes()];
    let module = PtxModule::parse(PTX).unwrap();
    let mut device = EmulatedDevice::new();
    let out = device.alloc(400);
    let arguments = [Arg::Bytes(line.concat()), Arg::Ptr(out), Arg::Bytes(100i32.bytes())];
    device.launch(&module, "by_value", [4, 1, 1], [32, 1, 1], 0, &arguments).unwrap();
    let found: Vec<f32> = device.read(out, 400).unwrap().chunks_exact(4).map(f32::read).collect();
    assert_eq!(found, (0..100).map(|i| (2 * i + 1 + (i % 3 + 1) * 10) as f32).collect::<Vec<f32>>());

    let which = numbers(64, 3);
    let found = run::<i32>("through_pointers", [1, 64], &[bytes(&which)], (1, 64), &[]);
    let call = |(i, which): (i32, &i32)| [2 * i, i * i, i - 1][*which as usize];
    assert_eq!(found[0], (0..).zip(&which).map(call).collect::<Vec<i32>>());

    let ackermann = |m: i32, n: i32| [n + 1, n + 2, 2 * n + 3][m as usize];
    let found = run::<i32>("recursive", [1, 32], &[], (1, 32), &[]);
    assert_eq!(found[0], (0..32).map(|i| ackermann(i % 3, i % 5)).collect::<Vec<i32>>());
}

#[test]
fn products_by_fragments() {
    let (a, b) = (numbers(256, 9), numbers(512, 7).split_off(256));
    let halves = |x: &[i32]| bytes(&x.iter().map(|&x| f16::from_f32(x as f32 - 4.0)).collect::<Vec<f16>>());
    let found = run::<f32>("fragments", [1, 32], &[halves(&a), halves(&b)], (1, 256), &[Arg::F32(0.5)]);
    let exact = |index: usize, column_major: bool, shift: i32| {
        let (row, column) = (index / 16, index % 16);
        let b_at = |k: usize| if column_major { b[column * 16 + k] } else { b[k * 16 + column] };
        (0..16).map(|k| (a[row * 16 + k] - shift) * (b_at(k) - shift)).sum::<i32>()
    };
    assert_eq!(found[0], (0..256).map(|i| (exact(i, true, 4) + 1) as f32 * 0.5).collect::<Vec<f32>>());
    let small = |x: &[i32]| bytes(&x.iter().map(|&x| (x - 4) as i8).collect::<Vec<i8>>());
    let found = run::<i32>("byte_fragments", [1, 32], &[small(&a), small(&b)], (1, 256), &[]);
    assert_eq!(found[0], (0..256).map(|i| exact(i, false, 4)).collect::<Vec<i32>>());
}

#[test]
fn narrow_numbers() {
    let input: Vec<f32> = numbers(64, 100_000).iter().map(|&x| (x as f32 - 50_000.0) / 37.0).collect();
    let found = run::<f32>("eight_bits", [1, 32], &[bytes(&input)], (2, 64), &[]);
    for (outputs, fraction, greatest) in [(&found[0], 3, 448.0), (&found[1], 2, 57344.0)] {
        for (&number, &output) in input.iter().zip(outputs) {
            let step = 2f32.powi(number.abs().log2().floor() as i32 - fraction);
            let nearest = ((number / step).round_ties_even() * step).clamp(-greatest, greatest);
            assert_eq!(output, nearest, "{number}");
        }
    }
    let halves: Vec<f16> = numbers(128, 5).iter().map(|&x| f16::from_f32(x as f32)).collect();
    let (a, b) = halves.split_at(64);
    let found = run::<f16>("compare_pairs", [1, 32], &[bytes(a), bytes(b)], (1, 64), &[]);
    let greater = |(a, b): (&f16, &f16)| if a > b { f16::ONE } else { f16::ZERO };
    assert_eq!(found[0], a.iter().zip(b).map(greater).collect::<Vec<f16>>());
}

#[test]
fn sums_and_histograms_of_clusters() {
    let input = numbers(8 * 64, 1000);
    let found = run::<i32>("cluster_sum", [8, 64], &[bytes(&input)], (1, 8), &[]);
    let sums: Vec<i32> = input.chunks(4 * 64).map(|part| part.iter().sum()).collect();
    assert_eq!(found[0], (0..8).map(|block| sums[block / 4]).collect::<Vec<i32>>());
    let found = run::<i32>("cluster_histogram", [2, 64], &[bytes(&input)], (1, 64), &[Arg::Bytes(512i32.bytes())]);
    let count = |bin: i32| input.iter().filter(|&&x| x & 63 == bin).count() as i32;
    assert_eq!(found[0], (0..64).map(count).collect::<Vec<i32>>());
}

#[test]
fn a_barrier_waits_for_copies() {
    let input = numbers(256, 1000);
    let found = run::<i32>("async_copies", [1, 64], &[bytes(&input)], (1, 256), &[]);
    assert_eq!(found[0], input.chunks(4).rev().flatten().copied().collect::<Vec<i32>>());
}

#[test]
fn what_is_read_in_vain_is_poison() {
    let input: Vec<f32> = numbers(64, 100).iter().map(|&x| x as f32).collect();
    let n = [Arg::Bytes(40i32.bytes())];
    let launch = |poison: bool| {
        let options = LaunchOptions { poison, ..LaunchOptions::default() };
        let inputs = [bytes(&input)];
        let run = Run { kernel: "masked_sum", shape: [1, 64], inputs: &inputs, outputs: 1, more: &n, options };
        run.outputs::<f32>(2)
    };
    assert_eq!(launch(false).unwrap_err().kind, FaultKind::Uninitialised);
    assert_eq!(launch(true).unwrap()[0], [input[..32].iter().sum::<f32>(), input[32..40].iter().sum()]);
}
