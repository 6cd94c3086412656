//! Tests of every operation against a plain reference in double precision.

mod experts;
mod linear;
mod low_rank;
mod recurrent;
mod rows;

use super::*;
use checkpoint::tensor::DType;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

pub(super) fn backend(threads: usize) -> Cpu {
    Cpu::new(Some(threads)).unwrap()
}

/// Returns `n` reproducible numbers in `[-1, 1)`.
pub(super) fn noise(mut seed: u64, n: usize) -> Vec<f32> {
    (0..n).map(|_| splitmix::unit(&mut seed) as f32).collect()
}

pub(super) fn tensor(backend: &Cpu, rows: usize, data: &[f32]) -> CpuTensor {
    let mut t = backend.pool.tensor(rows, data.len() / rows);
    t.as_mut_slice().copy_from_slice(data);
    t
}

/// Returns a weight of the given type, and its elements after rounding to that type.
fn weight(backend: &Cpu, shape: &[usize], data: Vec<f32>, dtype: DType) -> (CpuWeight, Vec<f32>) {
    let host = HostTensor::from_f32(shape.to_vec(), data).to_dtype(dtype);
    let rounded = host.elements().to_f32();
    (backend.weight(host).unwrap(), rounded)
}

/// Like [`weight`], converted to the weight of a projection.
fn projection(backend: &Cpu, shape: &[usize], data: Vec<f32>, dtype: DType) -> (CpuWeight, Vec<f32>) {
    let (weight, rounded) = weight(backend, shape, data, dtype);
    (backend.to_projection(weight, false).unwrap(), rounded)
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

pub(super) fn bits(t: &CpuTensor) -> Vec<u32> {
    t.as_slice().iter().map(|x| x.to_bits()).collect()
}
