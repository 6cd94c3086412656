use super::*;

/// `x w^T + bias`
fn reference(x: &[f32], w: &[f32], bias: Option<&[f32]>, inner: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let row = |x| w.chunks(inner).enumerate().map(move |(n, w)| dot(x, w) + bias.map_or(0.0, |b| f64::from(b[n])));
    x.chunks(inner).flat_map(row).collect()
}

#[test]
fn projections_match_the_reference() {
    let backend = backend(3);
    for dtype in DTYPES {
        for k in [1, 7, 16, 33, 80, 768, 800, 1601] {
            for m in (1..=9).chain([12, 33, 65, 130]) {
                for n in [1, 4, 5, 67] {
                    let what = format!("{dtype} {m} x {k} x {n}");
                    let x = noise(1, m * k);
                    let (w, wide) = weight(&backend, &[n, k], noise(2, n * k), dtype);
                    let (b, bias) = weight(&backend, &[n], noise(3, n), dtype);
                    let input = tensor(&backend, m, &x);
                    let tolerance = 1e-7 * (k as f64).max(8.0);

                    let plain = reference(&x, &wide, None, k);
                    assert_close(backend.linear(&input, &w, None, None).as_slice(), &plain, tolerance, &what);

                    let biased = reference(&x, &wide, Some(&bias), k);
                    let relu: Vec<f64> = biased.iter().map(|v| v.max(0.0)).collect();
                    let got = backend.linear(&input, &w, Some(&b), Some(Activation::Relu));
                    assert_close(got.as_slice(), &relu, tolerance, &what);

                    let before = noise(4, m * n);
                    let mut residual = tensor(&backend, m, &before);
                    backend.linear_add(&mut residual, &input, &w, Some(&b));
                    let sum: Vec<f64> = biased.iter().zip(&before).map(|(y, r)| y + f64::from(*r)).collect();
                    assert_close(residual.as_slice(), &sum, tolerance, &what);
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_the_threads() {
    let (one, four) = (backend(1), backend(4));
    for dtype in DTYPES {
        for k in [33, 80, 768, 2000] {
            let (n, rows) = (203, 150);
            let x = noise(5, rows * k);
            let (w, _) = weight(&one, &[n, k], noise(6, n * k), dtype);
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
    let (w, _) = weight(&backend, &[5, 8], noise(1, 40), DType::F32);
    let out = backend.linear(&backend.pool.tensor(0, 8), &w, None, None);
    assert_eq!((out.rows(), out.cols()), (0, 5));
}

#[test]
fn weights_have_one_or_two_dimensions() {
    let three = HostTensor::from_f32(vec![1, 2, 3], vec![0.0; 6]);
    assert!(matches!(backend(1).weight(three), Err(Error::Unsupported(_))));
}
