use super::*;

fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

#[test]
fn normalisations_match_the_reference() {
    let backend = backend(2);
    for dtype in DTYPES {
        for (rows, cols) in [(1, 1), (3, 7), (2, 16), (5, 33), (300, 768)] {
            let x: Vec<f32> = noise(1, rows * cols).iter().map(|v| v * 3.0 + 1.0).collect();
            let (w, weights) = weight(&backend, &[cols], noise(2, cols), dtype);
            let (b, biases) = weight(&backend, &[cols], noise(3, cols), dtype);
            let input = tensor(&backend, rows, &x);
            let (mut layer, mut plain, mut rms) = (Vec::new(), Vec::new(), Vec::new());
            for row in x.chunks(cols) {
                let row = f64s(row);
                let mean = row.iter().sum::<f64>() / cols as f64;
                let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / cols as f64;
                let square = row.iter().map(|v| v * v).sum::<f64>() / cols as f64;
                for i in 0..cols {
                    let normal = (row[i] - mean) / (variance + 1e-5).sqrt();
                    plain.push(normal);
                    layer.push(normal * f64::from(weights[i]) + f64::from(biases[i]));
                    rms.push(row[i] / (square + 1e-6).sqrt() * f64::from(weights[i]));
                }
            }
            let layer_norm = |weight, bias| backend.layer_norm(&input, weight, bias, 1e-5);
            assert_close(layer_norm(None, None).as_slice(), &plain, 1e-5, "plain layer norm");
            assert_close(layer_norm(Some(&w), Some(&b)).as_slice(), &layer, 1e-5, "layer norm");
            assert_close(backend.rms_norm(&input, &w, 1e-6).as_slice(), &rms, 1e-6, "RMS norm");

            // The same rows, as the heads of one row.
            let mut heads = tensor(&backend, 1, &x);
            backend.head_norm(&mut heads, &w, 1e-6);
            assert_close(heads.as_slice(), &rms, 1e-6, "head norm");
        }
    }
}

#[test]
fn heads_rotate_by_their_position() {
    let backend = backend(2);
    let (dim, heads) = (6, 3);
    let angle = |p: usize, i: usize| (p as f64) / 10f64.powi(i as i32);
    let row =
        |p: usize| (0..3).map(move |i| angle(p, i).cos() as f32).chain((0..3).map(move |i| angle(p, i).sin() as f32));
    for dtype in DTYPES {
        let (table, _) = weight(&backend, &[9, dim], (0..9).flat_map(row).collect(), dtype);
        let positions = [8, 0, 3];
        let x = noise(1, 3 * heads * dim);
        let mut got = tensor(&backend, 3, &x);
        backend.rope(&mut got, dim, &table, false, &positions);
        let mut want = f64s(&x);
        for (head, part) in want.chunks_mut(dim).enumerate() {
            for i in 0..3 {
                let (sin, cos) = angle(positions[head / heads] as usize, i).sin_cos();
                let (a, b) = (part[i], part[i + 3]);
                (part[i], part[i + 3]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
        let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-2 };
        assert_close(got.as_slice(), &want, tolerance, "rope");
    }
}

#[test]
fn embeddings_and_positions_are_looked_up() {
    let backend = backend(2);
    for dtype in DTYPES {
        let (table, wide) = weight(&backend, &[50, 33], noise(1, 50 * 33), dtype);
        let rows = |ids: &[usize]| ids.iter().flat_map(|&i| wide[i * 33..(i + 1) * 33].to_vec()).collect::<Vec<_>>();
        let (ids, positions) = ([49, 0, 7, 7], [3, 4, 0, 47]);
        let mut x = backend.embed(&table, 0..usize::MAX, &ids);
        let tokens = rows(&[49, 0, 7, 7]);
        assert_eq!(x.as_slice(), tokens);
        backend.add_positions(&mut x, &table, 2, &positions);
        let want: Vec<f32> = tokens.iter().zip(rows(&[5, 6, 2, 49])).map(|(a, b)| a + b).collect();
        assert_eq!(x.as_slice(), want.as_slice());
        let last = backend.gather(&x, &[1, 3]);
        assert_eq!((last.rows(), last.as_slice()), (2, [&want[33..66], &want[99..]].concat().as_slice()));
    }
}

#[test]
fn gated_units_match_the_reference() {
    let backend = backend(2);
    // One input, so that each output of a projection is its weight times that input.
    let (gate, up, x) = (noise(1, 33), noise(2, 33), noise(3, 200));
    let linear = |w: &[f32]| backend.projection(HostTensor::from_f32(vec![33, 1], w.to_vec()), None).unwrap();
    let weight = [linear(&gate), linear(&up)];
    let got = backend.gated(&tensor(&backend, 200, &x), &weight, Activation::Silu);
    let unit = |x: f32, g: f32, u: f32| {
        let (g, u) = (f64::from(x * g), f64::from(x * u));
        g / (1.0 + (-g).exp()) * u
    };
    let want: Vec<f64> = x.iter().flat_map(|&x| gate.iter().zip(&up).map(move |(&g, &u)| unit(x, g, u))).collect();
    assert_close(got.as_slice(), &want, 1e-6, "gate");
}
