//! Tests of the backend: attention through block tables, block moves, sampling.

mod attention;
mod sampling;

use super::*;
use crate::tensor::DType;

fn backend(threads: usize) -> CpuBackend {
    CpuBackend::new(Some(threads)).unwrap()
}

/// Returns `n` reproducible numbers in `[-1, 1)`.
fn noise(mut seed: u64, n: usize) -> Vec<f32> {
    (0..n).map(|_| splitmix::unit(&mut seed) as f32).collect()
}

fn tensor(backend: &CpuBackend, rows: usize, data: &[f32]) -> CpuTensor {
    let mut t = backend.cpu.tensor(rows, data.len() / rows);
    t.as_mut().copy_from_slice(data);
    t
}

fn weight(backend: &CpuBackend, shape: &[usize], data: Vec<f32>, dtype: DType) -> CpuWeight {
    backend.weight(HostTensor::from_f32(shape.to_vec(), data).to_dtype(dtype)).unwrap()
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        // A comparison with `>` would accept NaN.
        let close = (f64::from(g) - w).abs() <= tolerance * (1.0 + w.abs());
        assert!(close, "{what}: element {i} is {g}, not {w}");
    }
}

fn bits(t: &CpuTensor) -> Vec<u32> {
    t.as_slice().iter().map(|x| x.to_bits()).collect()
}
