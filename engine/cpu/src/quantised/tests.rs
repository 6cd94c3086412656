#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use super::layout::Packing;
use super::*;
use crate::tests::{backend, bits, noise, tensor};
use crate::{CpuWeight, WeightData};
use checkpoint::config::Activation;
use checkpoint::quantised::QuantType;
use checkpoint::tensor::{DType, HostTensor};

/// Random groups with scales of a typical size.
fn quantised(kind: QuantType, rows: usize, cols: usize) -> HostTensor {
    let mut groups = Vec::new();
    for i in 0..rows * cols / kind.group() {
        let mut group: Vec<u8> = noise(i as u64, kind.group_bytes()).iter().map(|x| (x * 128.0) as i8 as u8).collect();
        let scale = |seed: u64| half::f16::from_f32(noise(seed, 1)[0] / 64.0).to_le_bytes();
        for (j, &at) in kind.halves().iter().enumerate() {
            group[at..at + 2].copy_from_slice(&scale((i + j) as u64 + 7));
        }
        if kind == QuantType::MXFP4 {
            group[0] = 118 + group[0] % 8;
        }
        if kind.wide_scales() > 0 {
            group[..4].copy_from_slice(&(noise(i as u64 + 7, 1)[0] / 64.0).to_le_bytes());
            if kind.is_fp8() {
                // Avoid codes of NaN.
                group[4..].iter_mut().for_each(|code| *code &= if *code & 0x7f == 0x7f { 0xfe } else { 0xff });
            } else {
                group[4] &= 15;
            }
        }
        groups.extend(group);
    }
    HostTensor::owned_groups(kind, vec![rows, cols], groups)
}

fn elements(tensor: HostTensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).elements().to_f32()
}

#[test]
fn packed_rows_have_the_elements_of_the_file() {
    let backend = backend(2);
    for kind in QuantType::all() {
        let (rows, cols) = (37, 2 * kind.group());
        let packed = PackedMatrix::new(&quantised(kind, rows, cols), &backend.threads, &backend.pages).unwrap();
        let want = elements(quantised(kind, rows, cols));
        for (row, want) in want.chunks(cols).enumerate() {
            let mut got = vec![f32::NAN; cols];
            packed.decode_row(row, &mut got);
            assert!(got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "{kind}, row {row}");
        }
    }
}

/// Computes the reference in double precision. Activations are rounded to their groups' integers, unless the weights
/// are FP8.
fn reference(kind: QuantType, x: &[f32], w: &[f32], cols: usize) -> (Vec<f64>, Vec<f64>) {
    let exact = || x.iter().map(|&x| f64::from(x)).collect();
    let rounded: Vec<f64> = if kind.is_fp8() { exact() } else { rounded(kind, x) };
    let dot = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum::<f64>();
    let size = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, w)| (x * f64::from(*w)).abs()).sum::<f64>();
    let rows = || rounded.chunks(cols).flat_map(|x| w.chunks(cols).map(move |w| (x, w)));
    (rows().map(|(x, w)| dot(x, w)).collect(), rows().map(|(x, w)| size(x, w)).collect())
}

/// Rounds activations to their groups' integers.
fn rounded(kind: QuantType, x: &[f32]) -> Vec<f64> {
    x.chunks(kind.group())
        .flat_map(|group| {
            let most = group.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scale = f64::from(most / 127.0);
            group.iter().map(move |&x| (x * (127.0 / most)).round_ties_even() as f64 * scale).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn products_match_the_reference_with_rounded_activations() {
    for kind in QuantType::all() {
        for (tokens, rows, groups) in [(1, 16, 1), (1, 139, 3), (3, 5, 2), (9, 37, 3), (17, 64, 1), (70, 33, 2)] {
            let cols = groups * kind.group();
            let backend = backend(2);
            let x = noise(3, tokens * cols);
            let weight = backend.weight(quantised(kind, rows, cols)).unwrap();
            let (want, size) = reference(kind, &x, &elements(quantised(kind, rows, cols)), cols);
            let got = backend.linear(&tensor(&backend, tokens, &x), &weight, None, None);
            for (i, (&got, (want, size))) in got.as_slice().iter().zip(want.iter().zip(&size)).enumerate() {
                let error = (f64::from(got) - want).abs();
                assert!(error <= 2e-6 * (size + 1e-6), "{kind} {tokens}x{rows}x{cols}: {i} is {got}, not {want}");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for kind in QuantType::all() {
        let (tokens, rows, cols) = (13, 50, 3 * kind.group());
        let x = noise(5, tokens * cols);
        let results: Vec<_> = Isa::all()
            .into_iter()
            .map(|isa| {
                let mut backend = backend(1);
                backend.isa = isa;
                let weight = backend.weight(quantised(kind, rows, cols)).unwrap();
                bits(&backend.linear(&tensor(&backend, tokens, &x), &weight, None, None))
            })
            .collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{kind}");
    }
}

/// Covers all remainders of a block, and partial bands and groups.
#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_give_the_same_bits_as_vectors() {
    let mut by_vectors = backend(1);
    if by_vectors.amx.take().is_none() {
        eprintln!("this processor has no AMX: tests only vectors");
    }
    let with_tiles = backend(2);
    for kind in QuantType::all().filter(|&kind| dots::has_plain_groups(kind)) {
        for (rows, groups) in [(1, 1), (16, 2), (50, 3), (33, 24)] {
            let cols = groups * kind.group();
            let x = noise(5, 33 * cols);
            let [ours, want] = [&with_tiles, &by_vectors].map(|b| b.weight(quantised(kind, rows, cols)).unwrap());
            for tokens in 1..=33 {
                let x = &x[..tokens * cols];
                let got = with_tiles.linear(&tensor(&with_tiles, tokens, x), &ours, None, None);
                let want = by_vectors.linear(&tensor(&by_vectors, tokens, x), &want, None, None);
                assert_eq!(bits(&got), bits(&want), "{kind}, {tokens} tokens, {rows} rows, {groups} groups");
            }
        }
    }
}

/// Uses the greatest integers of both factors, which give the largest sums.
#[test]
fn no_sum_overflows() {
    for kind in QuantType::all() {
        let cols = 2 * kind.group();
        for byte in [0xff, 0x80, 0x7f, 0] {
            let mut groups = vec![byte; kind.group_bytes() * 2 * 16];
            let one = half::f16::ONE.to_le_bytes();
            for group in groups.chunks_mut(kind.group_bytes()) {
                if kind.wide_scales() > 0 {
                    group[..4].copy_from_slice(&1f32.to_le_bytes());
                    // For FP8, use the largest code that is not NaN.
                    group[4..]
                        .iter_mut()
                        .filter(|code| kind.is_fp8() && **code & 0x7f == 0x7f)
                        .for_each(|code| *code -= 1);
                    group[4] = if kind.is_fp8() { group[4] } else { byte & 15 };
                    continue;
                }
                kind.halves().iter().for_each(|&at| group[at..at + 2].copy_from_slice(&one));
                if kind == QuantType::MXFP4 {
                    group[0] = 128;
                }
            }
            let host = || HostTensor::owned_groups(kind, vec![16, cols], groups.clone());
            let w = elements(host());
            for sign in [1.0, -1.0] {
                let x = vec![127.0 * sign; cols];
                let want: f64 = w[..cols].iter().map(|w| f64::from(*w) * f64::from(x[0])).sum();
                for isa in Isa::all() {
                    let mut backend = backend(1);
                    backend.isa = isa;
                    let weight = backend.weight(host()).unwrap();
                    let got = backend.linear(&tensor(&backend, 1, &x), &weight, None, None);
                    let close = |got: &f32| (f64::from(*got) - want).abs() <= 1e-6 * want.abs();
                    assert!(got.as_slice().iter().all(close), "{kind} {byte:#x}: {:?}, not {want}", got.as_slice());
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_the_threads() {
    let (one, four) = (backend(1), backend(4));
    for kind in QuantType::all() {
        let (rows, cols, tokens) = (203, 4 * kind.group(), 150);
        let x = noise(5, tokens * cols);
        let weight = one.weight(quantised(kind, rows, cols)).unwrap();
        let whole = bits(&four.linear(&tensor(&four, tokens, &x), &weight, None, Some(Activation::Gelu)));
        for m in [1, 2, 3, 5, 8, 11, 64, 65, 149] {
            for first in [0, tokens - m] {
                let part = tensor(&one, m, &x[first * cols..(first + m) * cols]);
                let part = bits(&one.linear(&part, &weight, None, Some(Activation::Gelu)));
                assert!(part == whole[first * rows..(first + m) * rows], "{kind}, rows {first}+{m}");
            }
        }
    }
}

#[test]
fn biases_activations_and_residuals_are_applied() {
    let backend = backend(2);
    let (kind, tokens, rows, cols) = (QuantType::Q8_0, 3, 21, 64);
    let weight = backend.weight(quantised(kind, rows, cols)).unwrap();
    let x = tensor(&backend, tokens, &noise(1, tokens * cols));
    let plain = backend.linear(&x, &weight, None, None);
    let (b, before) = (noise(2, rows), noise(3, tokens * rows));
    let bias = backend.weight(HostTensor::from_f32(vec![rows], b.clone())).unwrap();
    let relu = backend.linear(&x, &weight, Some(&bias), Some(Activation::Relu));
    let mut residual = tensor(&backend, tokens, &before);
    backend.linear_add(&mut residual, &x, &weight, Some(&bias));
    for (i, y) in plain.as_slice().iter().enumerate() {
        let y = y + b[i % rows];
        assert_eq!(relu.as_slice()[i], if y < 0.0 { 0.0 } else { y });
        assert!((residual.as_slice()[i] - (y + before[i])).abs() < 1e-5);
    }
    assert_eq!(backend.linear(&backend.pool.tensor(0, cols), &weight, None, None).rows(), 0);
}

#[test]
fn nan_in_gives_nan_out() {
    let backend = backend(1);
    let weight = backend.weight(quantised(QuantType::Q4_0, 16, 64)).unwrap();
    let mut x = noise(1, 64);
    x[40] = f32::NAN;
    let got = backend.linear(&tensor(&backend, 1, &x), &weight, None, None);
    assert!(got.as_slice().iter().all(|y| y.is_nan()));
}

#[test]
fn vectors_are_not_quantised() {
    let backend = backend(1);
    let row = quantised(QuantType::Q8_0, 1, 64);
    let vector = HostTensor::owned_groups(QuantType::Q8_0, vec![64], row.bytes().to_vec());
    let CpuWeight(WeightData::Elements(tensor)) = backend.weight(vector).unwrap() else {
        panic!("a vector is quantised")
    };
    assert_eq!(tensor.elements().to_f32(), elements(row));
}

#[test]
fn columns_in_another_order_give_the_same_products() {
    let backend = backend(2);
    for kind in [QuantType::Int4G32, QuantType::Fp8G32] {
        let (tokens, rows, cols) = (5, 21, 96);
        let order: Vec<u32> = (0..cols as u32).map(|i| i * 37 % cols as u32).collect();
        let ordered = || quantised(kind, rows, cols).with_order(order.clone());
        let weight = backend.weight(ordered()).unwrap();
        let exact = elements(ordered());
        let x = noise(3, tokens * cols);
        let got = backend.linear(&tensor(&backend, tokens, &x), &weight, None, None);
        // The same columns in stored order, so that the same activations share a scale.
        let by_order = |row: &[f32]| order.iter().map(|&col| row[col as usize]).collect::<Vec<f32>>();
        let sorted: Vec<f32> = x.chunks(cols).flat_map(by_order).collect();
        let plain = backend.weight(quantised(kind, rows, cols)).unwrap();
        assert_eq!(bits(&got), bits(&backend.linear(&tensor(&backend, tokens, &sorted), &plain, None, None)), "{kind}");
        let mut row = vec![f32::NAN; cols];
        weight.read_row(7, &mut row);
        assert_eq!(row, exact[7 * cols..8 * cols], "{kind}");
    }
}

/// Scales that are subnormal, and the largest one.
#[test]
fn powers_of_every_exponent_are_exact() {
    for exponent in [0u8, 1, 2, 3, 60, 127, 200, 254, 255] {
        // Numbers of 1/2 in the first row, which have the code 1.
        let mut groups = vec![0x11; 17];
        groups[0] = exponent;
        let host = || HostTensor::owned_groups(QuantType::MXFP4, vec![1, 32], groups.clone());
        let want = elements(host())[0];
        assert!(want > 0.0 && want.is_finite());
        for isa in Isa::all() {
            let mut backend = backend(1);
            backend.isa = isa;
            let weight = backend.weight(host()).unwrap();
            let mut x = vec![0.0; 32];
            x[5] = 127.0;
            let got = backend.linear(&tensor(&backend, 1, &x), &weight, None, None).as_slice()[0];
            assert_eq!(got, 127.0 * want, "{exponent}");
        }
    }
}

/// A scale that is NaN or infinite gives NaN or infinity, and no panic.
#[test]
fn odd_scales_give_odd_products() {
    for kind in QuantType::GGUF.into_iter().filter(|kind| !kind.halves().is_empty()) {
        for odd in [half::f16::NAN, half::f16::INFINITY] {
            let mut groups = quantised(kind, 16, kind.group()).bytes().to_vec();
            let at = kind.halves()[0];
            groups[at..at + 2].copy_from_slice(&odd.to_le_bytes());
            let backend = backend(1);
            let weight = backend.weight(HostTensor::owned_groups(kind, vec![16, kind.group()], groups)).unwrap();
            let got = backend.linear(&tensor(&backend, 9, &noise(1, 9 * kind.group())), &weight, None, None);
            assert!(got.as_slice().chunks(16).all(|row| !row[0].is_finite() && row[1].is_finite()), "{kind}");
        }
    }
}
