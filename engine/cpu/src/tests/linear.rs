use half::bf16;

use super::*;

/// Computes `x w^T + bias` in double precision.
fn reference(x: &[f32], w: &[f32], bias: Option<&[f32]>, inner: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let row = |x| w.chunks(inner).enumerate().map(move |(n, w)| dot(x, w) + bias.map_or(0.0, |b| f64::from(b[n])));
    x.chunks(inner).flat_map(row).collect()
}

/// Returns a backend for each instruction set of the processor, with and without products of pairs and of tiles. The
/// first two round activations, the third may use tiles, and the others use neither.
fn backends(threads: usize) -> Vec<Cpu> {
    let mut all = vec![
        backend(threads).with_rounded_activations(),
        without_tiles(backend(threads).with_rounded_activations()),
        backend(threads),
    ];
    let mut with = |arch| all.push(Cpu { arch, ..without_tiles(backend(threads)) });
    with(Arch::new());
    with(Arch::Scalar);
    #[cfg(target_arch = "x86_64")]
    pulp::x86::V3::try_new().into_iter().for_each(|v3| with(Arch::V3(v3)));
    all
}

/// Disables AMX.
fn without_tiles(backend: Cpu) -> Cpu {
    Cpu {
        #[cfg(target_arch = "x86_64")]
        amx: None,
        ..backend
    }
}

/// Returns the activations as the backend uses them with a weight of this type: rounded to bf16, or unchanged.
fn activations(backend: &Cpu, x: &[f32], dtype: DType) -> Vec<f32> {
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

fn compare(backend: &Cpu, dtype: DType, (m, k, n): (usize, usize, usize)) {
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

/// Without products of pairs and of tiles, each element is summed in order with one rounding per product. So results
/// are the same on every architecture too.
#[test]
fn instruction_sets_give_the_same_bits() {
    let (n, k, m) = (203, 801, 13);
    let x = noise(5, m * k);
    for dtype in DTYPES {
        let fused = backends(2).into_iter().skip(3).filter(|backend| !matches!(backend.arch, Arch::Scalar));
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
    // Halfway between two bf16 numbers, where the even one is nearest, and slightly off halfway.
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
    for (one, four) in backends(1).iter().zip(&backends(4)).take(4) {
        for (dtype, k) in DTYPES.into_iter().flat_map(|dtype| [33, 80, 768, 2000].map(|k| (dtype, k))) {
            let (n, rows) = (203, 150);
            let x = noise(5, rows * k);
            let (w, _) = projection(one, &[n, k], noise(6, n * k), dtype);
            let whole = bits(&four.linear(&tensor(four, rows, &x), &w, None, Some(Activation::Gelu)));
            for m in [1, 2, 3, 5, 8, 11, 12, 64, 65, 149] {
                for first in [0, rows - m] {
                    let part = tensor(one, m, &x[first * k..(first + m) * k]);
                    let part = bits(&one.linear(&part, &w, None, Some(Activation::Gelu)));
                    assert!(part == whole[first * n..(first + m) * n], "{dtype} K={k} rows {first}+{m}");
                }
            }
        }
    }
}

/// Checks the order of the sums of tiles, and that three terms represent an activation exactly. Without AMX this test
/// compares nothing and prints a note.
#[test]
#[cfg(target_arch = "x86_64")]
fn tiles_sum_even_and_odd_columns_separately() {
    if amx::Amx::new().is_none() {
        eprintln!("skipped: the processor has no AMX, or the system does not permit it");
        return;
    }
    let (n, k, m) = (70, 111, 19);
    let x: Vec<f32> = noise(5, m * k).iter().map(|x| x * 3.7).collect();
    for (backend, terms) in [(backend(2), 3), (backend(2).with_rounded_activations(), 1)] {
        let (w, wide) = projection(&backend, &[n, k], noise(6, n * k), DType::Bf16);
        let got = bits(&backend.linear(&tensor(&backend, m, &x), &w, None, None));
        let want = x.chunks(k).flat_map(|x| wide.chunks(k).map(move |w| sum_of_terms(x, w, terms).to_bits()));
        assert!(want.eq(got), "{terms} terms");
    }
}

/// Computes one element in the way of the tiles, for inputs without denormal numbers.
#[cfg(target_arch = "x86_64")]
fn sum_of_terms(x: &[f32], w: &[f32], terms: usize) -> f32 {
    let mut rest = x.to_vec();
    let mut total = 0.0;
    for _ in 0..terms {
        let term: Vec<f32> = match terms {
            1 => x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
            _ => rest.iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect(),
        };
        rest.iter_mut().zip(&term).for_each(|(x, term)| *x -= term);
        let mut sum = 0.0;
        for (x, w) in term.chunks(32).zip(w.chunks(32)) {
            let sum_of = |odd| (odd..x.len()).step_by(2).fold(0f32, |sum, i| x[i].mul_add(w[i], sum));
            sum += sum_of(0) + sum_of(1);
        }
        total += sum;
    }
    assert!(terms == 1 || rest.iter().all(|&x| x == 0.0), "the terms do not add up to {x:?}");
    total
}

#[test]
fn nan_and_infinity_propagate() {
    for backend in backends(1) {
        for dtype in DTYPES {
            for k in [5, 64] {
                let (w, _) = projection(&backend, &[3, k], vec![0.5; 3 * k], dtype);
                // The third one is a NaN whose first 16 bits equal those of infinity.
                let odd = [f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001), f32::NAN];
                for (x, want) in odd.into_iter().zip([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::NAN]) {
                    let mut row = noise(1, k);
                    row[k / 2] = x;
                    let got = backend.linear(&tensor(&backend, 1, &row), &w, None, None);
                    let same = |y: &f32| *y == want || y.is_nan() && want.is_nan();
                    assert!(got.as_slice().iter().all(same), "{dtype} {x}: {:?}", got.as_slice());
                }
            }
        }
    }
}

#[test]
fn an_input_without_rows_gives_an_output_without_rows() {
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
