#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use kernels::eight_bit::{EightBit, Fp8};

use super::*;
use crate::tensor::DType;

/// Returns groups of random codes and moderate, finite scales.
fn matrix(kind: QuantType, rows: usize, cols: usize) -> HostTensor {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut bytes = Vec::new();
    for _ in 0..rows * cols / kind.group() {
        let mut group: Vec<u8> = (0..kind.group_bytes()).map(|_| random() as u8).collect();
        let mut half = |at: usize| {
            let value = f16::from_f32((1 + random() % 1000) as f32 * 2f32.powi(-14));
            group[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        kind.halves().iter().for_each(|&at| half(at));
        if kind == QuantType::MXFP4 {
            group[0] = 110 + (random() % 20) as u8;
        }
        if QuantType::SAFETENSORS.contains(&kind) {
            let scale = (1 + random() % 1000) as f32 * 1.1e-5;
            group[..4].copy_from_slice(&scale.to_le_bytes());
            if !kind.is_fp8() {
                group[4] = (random() % 17) as u8;
            }
        }
        bytes.extend(group);
    }
    HostTensor::owned_groups(kind, vec![rows, cols], bytes)
}

fn rows(tensor: &HostTensor) -> Vec<QuantisedRow<'_>> {
    let row = tensor.bytes().len() / tensor.shape()[0];
    tensor.bytes().chunks(row).map(|bytes| Some((tensor.quantised().unwrap(), bytes))).collect()
}

/// Decodes the elements as the kernel does. For each element it also returns the magnitude of its code times its scale.
fn read(matrix: &CodedMatrix, element: ElementType) -> Vec<(f64, f64)> {
    let CodedMatrix { shape, factor, codes, scales } = matrix;
    let round = |x: f32| match element {
        ElementType::F16 => f16::from_f32(x).to_f32(),
        ElementType::Bf16 => bf16::from_f32(x).to_f32(),
    };
    let positions = (0..shape.n).flat_map(|row| (0..shape.k).map(move |column| (row, column)));
    let element = |(row, column): (u32, u32)| {
        let fragment = (row / FRAGMENT_ROWS) as usize;
        let (byte, bit) = shape.code_place(row, column);
        let code = codes[fragment * shape.fragment_code_bytes() + byte] >> bit;
        let word = scales[fragment * shape.fragment_scales() + shape.scale_place(row, column / shape.group)];
        let offset = match element {
            ElementType::F16 => f16::from_bits((word >> 16) as u16).to_f32(),
            ElementType::Bf16 => bf16::from_bits((word >> 16) as u16).to_f32(),
        };
        let number = match shape.form {
            CodeForm::Int4 => f32::from(code & 15),
            CodeForm::Int8 => f32::from(code as i8),
            CodeForm::Fp8 => Fp8::decode(code),
            CodeForm::Fp4 => {
                let number = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                if code & 8 == 0 { number } else { -number }
            }
        };
        let scale = f64::from(f16::from_bits(word as u16).to_f32()) * f64::from(*factor);
        (scale * f64::from(round(number + offset)), (scale * f64::from(number)).abs())
    };
    positions.map(element).collect()
}

/// Checks the errors stated in the module's documentation for each type.
#[test]
fn errors_are_within_the_documented_bounds() {
    for kind in QuantType::all() {
        for element in ElementType::ALL {
            let (n, k) = (21, 3 * kind.group());
            let tensor = matrix(kind, n, k);
            let usage = if kind == QuantType::MXFP4 { Use::Grouped } else { Use::Dense };
            let Some(packing) = CodePacking::for_weights(&[&tensor], element, usage) else {
                assert!(element == ElementType::Bf16 && kind.has_minima(), "{kind}");
                continue;
            };
            let packed = packing.pack(&rows(&tensor), k, element).unwrap();
            let got = read(&packed, element);
            let want = tensor.to_dtype(DType::F32).elements().to_f32();
            let unit = 2f64.powi(-11) * 1.001;
            for (i, ((got, code), want)) in got.into_iter().zip(want).enumerate() {
                let want = f64::from(want);
                let bound = match kind {
                    QuantType::Q8_0 | QuantType::Q4_0 | QuantType::Q5_0 | QuantType::IQ4_NL => 0.0,
                    QuantType::MXFP4 => 0.0,
                    // The scale is rounded. With a minimum, the offset and the difference are rounded too.
                    kind if kind.has_minima() => unit * (code + (code - want).abs() + want.abs()),
                    _ => unit * want.abs(),
                };
                assert!((got - want).abs() <= bound, "{kind}, {element}, element {i}: {got} for {want}");
            }
        }
    }
}

#[test]
fn scales_of_every_size_keep_their_bits() {
    // From smaller than scales of f32 weights to larger.
    for exponent in [-100, -40, 0, 60] {
        let mut bytes = Vec::new();
        for i in 0..8u8 {
            bytes.extend((f32::from(8 + i) * 2f32.powi(exponent - i32::from(i))).to_le_bytes());
            bytes.push(8);
            bytes.extend([0x21 * (i % 3 + 1); 16]);
        }
        let tensor = HostTensor::owned_groups(QuantType::Int4G32, vec![2, 128], bytes);
        let packing = CodePacking::for_weights(&[&tensor], ElementType::Bf16, Use::Dense).unwrap();
        let got = read(&packing.pack(&rows(&tensor), 128, ElementType::Bf16).unwrap(), ElementType::Bf16);
        let want = tensor.to_dtype(DType::F32).elements().to_f32();
        assert!(got.iter().map(|x| x.0).eq(want.iter().map(|&x| f64::from(x))), "2^{exponent}");
    }
}

/// Groups with only a minimum, and groups of zeros.
#[test]
fn constant_groups_are_exact() {
    let mut bytes = vec![0x77; QuantType::Q4_K.group_bytes()];
    bytes[..2].copy_from_slice(&f16::from_f32(0.0).to_le_bytes());
    bytes[2..4].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
    bytes.extend([0; 144]);
    let tensor = HostTensor::owned_groups(QuantType::Q4_K, vec![2, 256], bytes);
    let packing = CodePacking::for_weights(&[&tensor], ElementType::F16, Use::Dense).unwrap();
    let got = read(&packing.pack(&rows(&tensor), 256, ElementType::F16).unwrap(), ElementType::F16);
    let want = tensor.to_dtype(DType::F32).elements().to_f32();
    assert!(want[0] < 0.0 && got.iter().map(|x| x.0).eq(want.iter().map(|&x| f64::from(x))), "{want:?}");
}

#[test]
fn compatible_types_are_packed_together() {
    let packing_of = |kinds: &[QuantType]| {
        let tensors: Vec<_> = kinds.iter().map(|&kind| matrix(kind, 2, 256)).collect();
        CodePacking::for_weights(&tensors.iter().collect::<Vec<_>>(), ElementType::F16, Use::Dense)
            .map(|p| (p.form, p.group))
    };
    use QuantType::{Fp8G32, Fp8G128, Int4G128, Q4_0, Q4_K, Q6_K, Q8_0};
    assert_eq!(packing_of(&[Int4G128, Int4G128]), Some((CodeForm::Int4, 128)));
    assert_eq!(packing_of(&[Q4_K, Q4_K, Q6_K]), Some((CodeForm::Int8, 16)));
    assert_eq!(packing_of(&[Q8_0, Q4_0]), Some((CodeForm::Int8, 32)));
    assert_eq!(packing_of(&[Fp8G32, Fp8G128]), Some((CodeForm::Fp8, 32)));
    assert_eq!(packing_of(&[Fp8G32, Q8_0]), None);
    let ordered = matrix(Int4G128, 2, 128).with_order((0..128).rev().collect());
    assert_eq!(CodePacking::for_weights(&[&ordered], ElementType::F16, Use::Dense), None);
    let plain = HostTensor::from_f32(vec![1, 32], vec![0.0; 32]);
    assert_eq!(CodePacking::for_weights(&[&matrix(Q8_0, 1, 32), &plain], ElementType::F16, Use::Dense), None);
    // Each code is relative to its own type's zero, whatever it is packed with.
    let (four, eight) = (matrix(Int4G128, 3, 256), matrix(Q6_K, 3, 256));
    let packing = CodePacking::for_weights(&[&four, &eight], ElementType::F16, Use::Dense).unwrap();
    let both: Vec<_> = rows(&four).into_iter().chain([None]).chain(rows(&eight)).collect();
    let got = read(&packing.pack(&both, 256, ElementType::F16).unwrap(), ElementType::F16);
    let want = [four, eight].map(|tensor| tensor.to_dtype(DType::F32).elements().to_f32());
    let want = [&want[0][..], &[0.0; 256], &want[1]].concat();
    assert!(got.iter().zip(want).all(|((got, _), want)| (got - f64::from(want)).abs() <= 5e-4 * f64::from(want.abs())));
}

#[test]
fn non_finite_scales_are_not_packed() {
    let mut bytes = matrix(QuantType::Q8_0, 1, 32).bytes().to_vec();
    bytes[..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
    let tensor = HostTensor::owned_groups(QuantType::Q8_0, vec![1, 32], bytes);
    let packing = CodePacking::for_weights(&[&tensor], ElementType::F16, Use::Dense).unwrap();
    assert!(packing.pack(&rows(&tensor), 32, ElementType::F16).is_none());
}
