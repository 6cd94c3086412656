use half::bf16;

use super::*;

/// `x w^T + bias`
fn reference(x: &[f32], w: &[f32], bias: Option<&[f32]>, inner: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let row = |x| w.chunks(inner).enumerate().map(move |(n, w)| dot(x, w) + bias.map_or(0.0, |b| f64::from(b[n])));
    x.chunks(inner).flat_map(row).collect()
}

/// A backend for each instruction set that the processor has, with and without products of pairs.
fn backends(threads: usize) -> Vec<CpuBackend> {
    let mut all = vec![backend(threads).with_rounded_activations()];
    let mut with = |arch| {
        let mut backend = backend(threads);
        backend.arch = arch;
        #[cfg(target_arch = "x86_64")]
        {
            backend.pairs = None;
        }
        all.push(backend);
    };
    with(Arch::new());
    with(Arch::Scalar);
    #[cfg(target_arch = "x86_64")]
    pulp::x86::V3::try_new().into_iter().for_each(|v3| with(Arch::V3(v3)));
    all
}

/// What the backend computes with of activations that meet a weight of this type.
fn activations(backend: &CpuBackend, x: &[f32], dtype: DType) -> Vec<f32> {
    #[cfg(target_arch = "x86_64")]
    if backend.pairs.is_some() && dtype == DType::Bf16 {
        return x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    }
    let _ = (backend, dtype);
    x.to_vec()
}

#[test]
fn projections_match_the_reference() {
    for backend in backends(3) {
        for dtype in DTYPES {
            for k in [1, 7, 33, 80, 801] {
                for m in (1..=7).chain([12, 65]) {
                    for n in [1, 17, 67, 200] {
                        compare(&backend, dtype, (m, k, n));
                    }
                }
            }
        }
    }
}

fn compare(backend: &CpuBackend, dtype: DType, (m, k, n): (usize, usize, usize)) {
    let what = format!("{dtype} {m} x {k} x {n}");
    let x = noise(1, m * k);
    let (w, wide) = projection(backend, &[n, k], noise(2, n * k), dtype);
    let (b, bias) = weight(backend, &[n], noise(3, n), dtype);
    let input = tensor(backend, m, &x);
    let x = activations(backend, &x, dtype);
    let tolerance = 1e-7 * (k as f64).max(8.0);

    let plain = reference(&x, &wide, None, k);
    assert_close(backend.linear(&input, &w, None, None).as_slice(), &plain, tolerance, &what);

    let biased = reference(&x, &wide, Some(&bias), k);
    let relu: Vec<f64> = biased.iter().map(|v| v.max(0.0)).collect();
    let got = backend.linear(&input, &w, Some(&b), Some(Activation::Relu));
    assert_close(got.as_slice(), &relu, tolerance, &what);

    let before = noise(4, m * n);
    let mut residual = tensor(backend, m, &before);
    backend.linear_add(&mut residual, &input, &w, Some(&b));
    let sum: Vec<f64> = biased.iter().zip(&before).map(|(y, r)| y + f64::from(*r)).collect();
    assert_close(residual.as_slice(), &sum, tolerance, &what);
}

/// But for products of pairs: each element is summed in order, with one rounding a product. So results are the same on every
/// architecture, too.
#[test]
fn instruction_sets_give_the_same_bits() {
    let (n, k, m) = (203, 801, 13);
    let x = noise(5, m * k);
    for dtype in DTYPES {
        let fused = backends(2).into_iter().skip(1).filter(|backend| !matches!(backend.arch, Arch::Scalar));
        for backend in fused {
            let (w, wide) = projection(&backend, &[n, k], noise(6, n * k), dtype);
            let got = bits(&backend.linear(&tensor(&backend, m, &x), &w, None, None));
            let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).fold(0f32, |sum, (x, w)| w.mul_add(*x, sum));
            let want = x.chunks(k).flat_map(|x| wide.chunks(k).map(move |w| dot(x, w).to_bits()));
            assert!(want.eq(got), "{dtype}, {:?}", backend.arch);
        }
    }
}

#[test]
fn activations_are_rounded_as_half_rounds_them() {
    let special = [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, f32::MIN_POSITIVE / 3.0];
    // Halfway between two, to the even one; and a little beside it.
    let between = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x3f81_7fff].map(f32::from_bits);
    let x: Vec<f32> = special.into_iter().chain(between).chain(noise(9, 91)).collect();
    let mut pairs = vec![f32::NAN; x.len().div_ceil(2)];
    product::round_to_pairs(&x, &mut pairs);
    let halves = pairs.iter().flat_map(|pair| [pair.to_bits() as u16, (pair.to_bits() >> 16) as u16]);
    let want: Vec<u16> = x.iter().map(|&x| bf16::from_f32(x).to_bits()).chain([0]).collect();
    assert_eq!(halves.collect::<Vec<_>>(), want);
    product::round_to_pairs(&[f32::NAN, 1.0], &mut pairs[..1]);
    assert!(bf16::from_bits(pairs[0].to_bits() as u16).is_nan());
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_the_threads() {
    let (one, four) = (backend(1), backend(4));
    for dtype in DTYPES {
        for k in [33, 80, 768, 2000] {
            let (n, rows) = (203, 150);
            let x = noise(5, rows * k);
            let (w, _) = projection(&one, &[n, k], noise(6, n * k), dtype);
            let whole = bits(&four.linear(&tensor(&four, rows, &x), &w, None, Some(Activation::Gelu)));
            for m in [1, 2, 3, 5, 8, 11, 12, 64, 65, 149] {
                for first in [0, rows - m] {
                    let part = tensor(&one, m, &x[first * k..(first + m) * k]);
                    let part = bits(&one.linear(&part, &w, None, Some(Activation::Gelu)));
                    assert!(part == whole[first * n..(first + m) * n], "{dtype} K={k} rows {first}+{m}");
                }
            }
        }
    }
}

#[test]
fn no_rows_are_no_rows() {
    let backend = backend(2);
    let (w, _) = projection(&backend, &[5, 8], noise(1, 40), DType::F32);
    let out = backend.linear(&backend.pool.tensor(0, 8), &w, None, None);
    assert_eq!((out.rows(), out.cols()), (0, 5));
}

#[test]
fn weights_have_one_or_two_dimensions() {
    let three = HostTensor::from_f32(vec![1, 2, 3], vec![0.0; 6]);
    assert!(matches!(backend(1).weight(three), Err(Error::Unsupported(_))));
}
