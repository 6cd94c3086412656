//! The kernels of [`intrinsics`]: every function of `cuda_std`, compiled, against host code.

mod hopper;
mod products;

use std::collections::BTreeSet;

use ::intrinsics::*;
use cuda_builder::ptx::entries;
use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall, LaunchShape};
use cuda_std::vector::Vector;

use crate::frame::gpu::{Gpu, TARGETS};
use workbench::number::{ProblemRng, Type};

#[test]
fn every_function_of_cuda_std_is_executed() {
    let intrinsic_images = [SM_80, SM_90A];
    let checks: [fn(&mut Gpu); 17] = [
        float,
        f16,
        bf16,
        shuffle,
        vote,
        reduce,
        reduce_f32,
        shared,
        named_barrier,
        atomic,
        flag,
        memory,
        read_stream,
        cp_async,
        ldmatrix,
        ldmatrix_at,
        mma,
    ];
    for (intrinsics, (target, shipped)) in intrinsic_images.into_iter().zip(TARGETS) {
        let mut gpu = Gpu::with_ptx(intrinsics);
        for seed in 0..3 {
            gpu.seed(seed);
            checks.iter().for_each(|check| check(&mut gpu));
            if target == "sm_90a" {
                hopper::every_function(&mut gpu);
                products::every_form(&mut gpu);
            }
        }
        let only: BTreeSet<_> = names(intrinsics).difference(&names(shipped)).cloned().collect();
        assert_eq!(gpu.launched(), only, "kernels launched for {target}, and kernels in its PTX");
    }
}

fn words(seed: u64, n: usize) -> Vec<u32> {
    let mut random = ProblemRng(seed);
    (0..n).map(|_| random.word() as u32).collect()
}

fn float(gpu: &mut Gpu) {
    let mut random = ProblemRng(1);
    let mut numbers = |n| (0..n).map(|_| (8.0 * random.unit()) as f32).collect::<Vec<_>>();
    let (a, b) = (numbers(256), numbers(256));
    let out = gpu.alloc::<f32>("out", 7 * 256);
    let call = v_float { a: gpu.upload("a", &a).ptr(), b: gpu.upload("b", &b).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(2, 128), call) };
    for ((x, y), found) in a.iter().zip(&b).zip(gpu.download(out).chunks_exact(7)) {
        let wide = f64::from(*x);
        let near = |k: usize, value: f64, error: f64| {
            let off = (f64::from(found[k]) - value).abs();
            assert!(off <= error || value.is_nan() && found[k].is_nan(), "{k} of {x}: {}, not {value}", found[k]);
        };
        let relative = |value: f64, power: i32| value.abs() * 2f64.powi(power);
        near(0, wide.exp2(), relative(wide.exp2(), -22));
        near(1, wide.log2(), 2f64.powi(-22).max(relative(wide.log2(), -22)));
        near(2, 1.0 / wide.sqrt(), relative(1.0 / wide.sqrt(), -22));
        near(3, 1.0 / wide, relative(1.0 / wide, -23));
        near(4, wide.tanh(), relative(wide.tanh(), -11));
        near(5, f64::from(x.sqrt()), 0.0);
        near(6, f64::from(x.mul_add(*y, 1.0)), 0.0);
    }
}

fn f16(gpu: &mut Gpu) {
    pairs(gpu, Type::F16, |a, b, out| v_f16 { a, b, out }.into());
}

fn bf16(gpu: &mut Gpu) {
    pairs(gpu, Type::Bf16, |a, b, out| v_bf16 { a, b, out }.into());
}

fn pairs(gpu: &mut Gpu, ty: Type, kernel: fn(DevicePtr<u32>, DevicePtr<u32>, DevicePtrMut<u32>) -> KernelCall) {
    let mut random = ProblemRng(2);
    let mut numbers = || random.bits(ty, 128);
    let (a, b) = (numbers(), numbers());
    let out = gpu.alloc::<u16>("out", 256);
    let call = kernel(gpu.upload("a", &a).ptr(), gpu.upload("b", &b).ptr(), out.mut_ptr());
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 64), call) };
    for (i, found) in gpu.download(out).into_iter().enumerate() {
        let (at, widened) = (i / 4 * 2 + i % 2, i % 4 >= 2);
        let (x, y) = (ty.number(a[at]), ty.number(b[at]));
        // The product of two 16-bit numbers is exact in f32, and the sum of three factors in f64.
        let value = if widened { f64::from((x * y) as f32 + x as f32) } else { x * y + x };
        assert_eq!(found, ty.bits(value), "{ty:?}, {x} and {y}, widened: {widened}");
    }
}

fn shuffle(gpu: &mut Gpu) {
    let a = words(3, 32);
    let out = gpu.alloc::<[u32; 4]>("out", 32);
    let call = v_shuffle { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 32), call) };
    for (lane, found) in gpu.download(out).into_iter().enumerate() {
        let (group, at) = (lane / 8 * 8, lane % 8);
        let below = if at >= 2 { lane - 2 } else { lane };
        let above = if at < 6 { lane + 2 } else { lane };
        assert_eq!(found, [a[group + 3], a[below], a[above], a[lane ^ 4]], "lane {lane}");
    }
}

fn vote(gpu: &mut Gpu) {
    // Some lanes agree, all of them, or none.
    for (a, b) in [(words(4, 32), words(5, 32)), (vec![7; 32], vec![6; 32]), (vec![6; 32], vec![7; 32])] {
        let a: Vec<u32> = a.into_iter().map(|word| word & 0x8000_0007).collect();
        let out = gpu.alloc::<[u32; 4]>("out", 32);
        let call = v_vote { a: gpu.upload("a", &a).ptr(), b: gpu.upload("b", &b).ptr(), out: out.mut_ptr() };
        // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
        unsafe { gpu.launch(LaunchShape::linear(1, 32), call) };
        let lanes = |holds: &dyn Fn(usize) -> bool| (0..32).map(|lane| u32::from(holds(lane)) << lane).sum::<u32>();
        let greater = lanes(&|lane| a[lane] > b[lane]);
        for (lane, found) in gpu.download(out).into_iter().enumerate() {
            let same = lanes(&|other| a[other] == a[lane]);
            assert_eq!(found, [(greater == u32::MAX).into(), (greater != 0).into(), greater, same], "lane {lane}");
        }
    }
}

fn reduce(gpu: &mut Gpu) {
    let a = words(6, 32);
    let out = gpu.alloc::<[u32; 3]>("out", 32);
    let call = v_reduce { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 32), call) };
    let sum = a.iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
    let expected = [sum, a.iter().copied().min().unwrap(), a.iter().copied().max().unwrap()];
    assert_eq!(gpu.download(out), [expected; 32]);
}

fn reduce_f32(gpu: &mut Gpu) {
    // Integers, whose sum does not depend on the order.
    let a: Vec<f32> = words(7, 32).into_iter().map(|word| (word % 2001) as f32 - 1000.0).collect();
    let out = gpu.alloc::<[f32; 2]>("out", 32);
    let call = v_reduce_f32 { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 32), call) };
    assert_eq!(gpu.download(out), [[a.iter().sum(), a.iter().copied().fold(f32::MIN, f32::max)]; 32]);
}

fn shared(gpu: &mut Gpu) {
    let a = words(8, 256);
    let out = gpu.alloc::<u32>("out", 256);
    let call = v_shared { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 256), call) };
    assert!(gpu.download(out).iter().eq(a.iter().rev()));
}

fn named_barrier(gpu: &mut Gpu) {
    let a = words(9, 64);
    let out = gpu.upload("out", &[0u32; 64]);
    let call = v_named_barrier { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 64).with_shared(64 * 4), call) };
    assert_eq!(gpu.download(out)[32..], a[..32]);
}

fn atomic(gpu: &mut Gpu) {
    let a: Vec<u32> = words(10, 128).into_iter().map(|word| word % 4096 + 1).collect();
    let words = gpu.upload("words", &[5u32, u32::MAX, 0, u32::MAX, 0, 0, 0, 1000]);
    let (sum, wide) = (gpu.upload("sum", &[0.5f32]), gpu.upload("wide", &[1u64 << 40]));
    let call =
        v_atomic { a: gpu.upload("a", &a).ptr(), words: words.mut_ptr(), sum: sum.mut_ptr(), wide: wide.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(2, 64), call) };
    let total: u32 = a.iter().sum();
    let found = gpu.download(words);
    let (min, max) = (a.iter().copied().min().unwrap(), a.iter().copied().max().unwrap());
    let (and, or) = (a.iter().fold(u32::MAX, |all, x| all & x), a.iter().fold(0, |all, x| all | x));
    assert_eq!(found[..5], [5 + total, min, max, and, or]);
    // The last value that was exchanged, and the first.
    assert!(a.contains(&found[5]) && a.contains(&found[6]));
    assert_eq!(found[7], 1000 + 128);
    assert_eq!(gpu.download(sum), [0.5 + total as f32]);
    assert_eq!(gpu.download(wide), [(1 << 40) + (u64::from(total) << 20)]);
}

/// Vectors of 16 bytes.
fn vectors(seed: u64, n: usize) -> Vec<[u32; 4]> {
    bytemuck::cast_slice(&words(seed, 4 * n)).to_vec()
}

fn flag(gpu: &mut Gpu) {
    let (flags, out) = (gpu.upload("flags", &[0u32, 7]), gpu.alloc::<u32>("out", 2));
    let (a, handed) = (gpu.upload("a", &[5u32]).ptr(), gpu.alloc::<u32>("handed", 1).mut_ptr());
    let call = v_flag { a, flags: flags.mut_ptr(), handed, out: out.mut_ptr() };
    // SAFETY: arrays have the sizes that the kernel requires, and both blocks fit any device.
    unsafe { gpu.launch(LaunchShape::linear(2, 1), call) };
    assert_eq!((gpu.download(out), gpu.download(flags)), (vec![5, 7], vec![1, 7]));
}

fn memory(gpu: &mut Gpu) {
    let a = vectors(11, 64);
    let out = gpu.alloc::<[[u32; 4]; 4]>("out", 64);
    let call = v_memory { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(2, 32), call) };
    assert!(gpu.download(out).into_iter().eq(a.into_iter().map(|vector| [vector; 4])));
}

fn read_stream(gpu: &mut Gpu) {
    let data = words(9, 2 * 8 * 256 * 4);
    let out = gpu.alloc::<u32>("out", 2 * 256);
    let call = v_read_stream { a: gpu.upload("a", &data).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    let report = unsafe { gpu.launch(LaunchShape::linear(2, 256), call) };
    let truth = |i: usize| (0..8).flat_map(|k| &data[4 * (k * 512 + i)..][..4]).fold(0, |x, y| x ^ y);
    assert_eq!(gpu.download(out), (0..512).map(truth).collect::<Vec<_>>());
    assert!(report.total.sector_ratio() <= 1.0);
}

fn cp_async(gpu: &mut Gpu) {
    let a = vectors(12, 64);
    for bytes in [0, 6, 16] {
        let out = gpu.alloc::<[[u32; 4]; 3]>("out", 64);
        let call = v_cp_async { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr(), bytes };
        // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
        unsafe { gpu.launch(LaunchShape::linear(1, 64).with_shared(64 * 3 * 16), call) };
        for (found, vector) in gpu.download(out).into_iter().zip(&a) {
            let mut cut: [u8; 16] = bytemuck::cast(*vector);
            cut[bytes as usize..].fill(0);
            assert_eq!(found, [*vector, *vector, bytemuck::cast(cut)], "{bytes} bytes");
        }
    }
}

fn ldmatrix(gpu: &mut Gpu) {
    matrix_loads(gpu, |a, out| v_ldmatrix { a, out }.into(), [[1, 2, 4]; 2].concat());
}

fn ldmatrix_at(gpu: &mut Gpu) {
    matrix_loads(gpu, |a, out| v_ldmatrix_at { a, out }.into(), vec![4, 4]);
}

/// Checks loads of as many matrices as `counts` says. The first half of the loads is straight, the second half
/// transposed.
fn matrix_loads(gpu: &mut Gpu, kernel: fn(DevicePtr<Vector>, DevicePtrMut<u32>) -> KernelCall, counts: Vec<usize>) {
    let rows = words(13, 128);
    let registers = counts.iter().sum();
    let out = gpu.alloc::<u32>("out", 32 * registers);
    let call = kernel(gpu.upload("a", &rows).ptr(), out.mut_ptr());
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 32), call) };
    let elements: &[u16] = bytemuck::cast_slice(&rows);
    for (lane, found) in gpu.download(out).chunks_exact(registers).enumerate() {
        let (major, minor) = (lane / 4, lane % 4 * 2);
        let element = |matrix: usize, row: usize, column: usize| u32::from(elements[(8 * matrix + row) * 8 + column]);
        let straight = |m: usize| element(m, major, minor) | element(m, major, minor + 1) << 16;
        let transposed = |m: usize| element(m, minor, major) | element(m, minor + 1, major) << 16;
        let (first, second) = counts.split_at(counts.len() / 2);
        let loads = |counts: &[usize]| counts.iter().flat_map(|&count| 0..count).collect::<Vec<_>>();
        let all = loads(first).into_iter().map(straight).chain(loads(second).into_iter().map(transposed));
        assert!(found.iter().copied().eq(all), "lane {lane}");
    }
}

fn mma(gpu: &mut Gpu) {
    for ty in Type::ALL {
        let mut random = ProblemRng(14);
        // Small integers, whose sums are exact however they are rounded.
        let mut integers = |n: usize| (0..n).map(|_| random.below(33) as f64 - 16.0).collect::<Vec<_>>();
        let (a, b, c) = (integers(16 * 16), integers(16 * 8), integers(16 * 8));
        let at = |lane: usize, register: usize, half: usize| {
            (lane / 4 + register % 2 * 8, lane % 4 * 2 + half + register / 2 * 8)
        };
        let mut fragments = (Vec::new(), Vec::new(), Vec::new());
        for lane in 0..32 {
            for (register, half) in (0..4).flat_map(|register| [(register, 0), (register, 1)]) {
                let (row, k) = at(lane, register, half);
                fragments.0.push(ty.bits(a[row * 16 + k]));
            }
            for (register, half) in (0..2).flat_map(|register| [(register, 0), (register, 1)]) {
                let (column, k) = (lane / 4, lane % 4 * 2 + half + 8 * register);
                fragments.1.push(ty.bits(b[k * 8 + column]));
            }
            for i in 0..4 {
                let (row, column) = at(lane, i / 2, i % 2);
                fragments.2.push(c[row * 8 + column] as f32);
            }
        }
        let out = gpu.alloc::<[f32; 4]>("out", 32);
        let (a_buffer, b_buffer) = (gpu.upload("a", &fragments.0).ptr(), gpu.upload("b", &fragments.1).ptr());
        let c_buffer = gpu.upload("c", &fragments.2).ptr();
        let (first, second, third, result) = (a_buffer, b_buffer, c_buffer, out.mut_ptr());
        let call: KernelCall = match ty {
            Type::F16 => v_mma_f16 { a: first, b: second, c: third, out: result }.into(),
            Type::Bf16 => v_mma_bf16 { a: first, b: second, c: third, out: result }.into(),
        };
        // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
        unsafe { gpu.launch(LaunchShape::linear(1, 32), call) };
        for (lane, found) in gpu.download(out).into_iter().enumerate() {
            for (i, found) in found.into_iter().enumerate() {
                let (row, column) = at(lane, i / 2, i % 2);
                let dot: f64 = (0..16).map(|k| a[row * 16 + k] * b[k * 8 + column]).sum();
                assert_eq!(f64::from(found), dot + c[row * 8 + column], "{ty:?}, row {row}, column {column}");
            }
        }
    }
}

/// Returns the names of the entries in PTX.
fn names(ptx: &str) -> BTreeSet<String> {
    entries(ptx).unwrap().into_iter().map(|entry| entry.name).collect()
}
