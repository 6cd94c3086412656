use checkpoint::load::adapter::LowRank;

use super::*;

/// A product of this shape, and its elements after rounding to `dtype`.
fn product([rank, inputs, outputs]: [usize; 3], dtype: DType) -> (CpuLowRank, [Vec<f32>; 2]) {
    let matrix = |seed, rows, cols| HostTensor::from_f32(vec![rows, cols], noise(seed, rows * cols)).to_dtype(dtype);
    let (a, b) = (matrix(1, rank, inputs), matrix(2, outputs, rank));
    let elements = [&a, &b].map(|matrix| matrix.elements().to_f32());
    (CpuLowRank::new(LowRank { a, b, scale: 0.75 }), elements)
}

/// `y + 0.75 b a x` for each row of `x`, in double precision.
fn reference(y: &[f32], x: &[f32], [a, b]: &[Vec<f32>; 2], [rank, inputs, outputs]: [usize; 3]) -> Vec<f64> {
    let row = |(y, x): (&[f32], &[f32])| {
        let dot = |row: &[f32], x: &[f64]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let hidden: Vec<f64> = a.chunks(inputs).map(|row| dot(row, &x)).collect();
        y.iter().zip(b.chunks(rank)).map(|(y, row)| f64::from(*y) + 0.75 * dot(row, &hidden)).collect::<Vec<_>>()
    };
    y.chunks(outputs).zip(x.chunks(inputs)).flat_map(row).collect()
}

#[test]
fn low_rank_products_match_the_reference() {
    for dtype in DTYPES {
        for shape in [[1, 1, 1], [3, 70, 5], [16, 200, 130], [64, 33, 257]] {
            let ([_, inputs, outputs], rows) = (shape, 13);
            let (low_rank, elements) = product(shape, dtype);
            let (x, y) = (noise(3, rows * inputs), noise(4, rows * outputs));
            let backend = backend(2);
            let mut out = tensor(&backend, rows, &y);
            let parts = [(2..3, &low_rank), (5..13, &low_rank)];
            backend.add_low_rank(&mut out, &tensor(&backend, rows, &x), &parts);
            let mut want: Vec<f64> = y.iter().map(|y| f64::from(*y)).collect();
            for (part, _) in parts {
                let (own, x) = (part.start * outputs..part.end * outputs, &x[part.start * inputs..part.end * inputs]);
                want[own.clone()].copy_from_slice(&reference(&y[own], x, &elements, shape));
            }
            assert_close(out.as_slice(), &want, 1e-5, &format!("{dtype} {shape:?}"));
            assert_eq!(out.as_slice()[..2 * outputs], y[..2 * outputs], "rows without a product keep their bits");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_and_on_any_number_of_threads() {
    let (shape, rows) = ([16, 300, 500], 40);
    let (low_rank, _) = product(shape, DType::Bf16);
    let (x, y) = (noise(3, rows * 300), noise(4, rows * 500));
    let run = |threads: usize, own: std::ops::Range<usize>| {
        let backend = backend(threads);
        let mut out = tensor(&backend, own.len(), &y[own.start * 500..own.end * 500]);
        let x = tensor(&backend, own.len(), &x[own.start * 300..own.end * 300]);
        backend.add_low_rank(&mut out, &x, &[(0..own.len(), &low_rank)]);
        bits(&out)
    };
    let all = run(1, 0..rows);
    assert_eq!(run(3, 0..rows), all);
    for row in 0..rows {
        assert_eq!(run(2, row..row + 1), all[row * 500..(row + 1) * 500], "row {row}");
    }
}
