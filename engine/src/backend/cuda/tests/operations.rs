//! Compares operations with the CPU's on random data.

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::backend::{Attention, Change, HostLinear, HostQkv, Norm, QkNormRope, QkNorms, Rotation};
use crate::tensor::HostTensor;

/// New tokens of a step: two prompts.
const TOKENS: usize = 13;
const HIDDEN: usize = 48;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 32;
const EPS: f32 = 1e-5;

/// Something to compute on a device.
pub(super) trait Computation {
    /// Loads weights, calls `ready`, and computes a matrix.
    fn run<B: Backend>(&self, b: &B, ready: &dyn Fn()) -> B::Tensor;
}

/// Reproducible numbers in `[-1, 1)`, rounded to f16.
pub(super) fn host(seed: u64, shape: &[usize]) -> HostTensor {
    let mut seed = seed;
    let numbers = (0..shape.iter().product()).map(|_| splitmix::unit(&mut seed) as f32).collect();
    HostTensor::from_f32(shape.to_vec(), numbers).to_dtype(DType::F16)
}

fn weight<B: Backend>(b: &B, seed: u64, shape: &[usize]) -> B::Weight {
    b.weight(host(seed, shape)).unwrap()
}

/// The batch of all tests. Token `t` has row `t` of a table.
fn inputs<B: Backend>(b: &B) -> B::Inputs {
    let batch = batch(&[(9, 9), (4, 4)]);
    b.upload(Batch { tokens: (0..TOKENS as u32).collect(), ..batch }, &[])
}

/// Returns the matrix that has the rows of a table.
fn rows<B: Backend>(b: &B, table: &B::Weight) -> B::Tensor {
    b.embed_tokens(table, 0..TOKENS, None, &inputs(b))
}

pub(super) fn on_cpu(computation: &impl Computation) -> Vec<f32> {
    let cpu = CpuBackend::new(Some(1)).unwrap();
    let result = computation.run(&cpu, &|| ());
    cpu.download(&result).unwrap()
}

/// Computes on the emulator and returns the elements of the result. Logits are f32.
fn on_gpu(computation: &impl Computation, kv_dtype: KvDtype) -> Vec<f32> {
    let json = format!(
        r#"{{"model_type": "llama", "hidden_size": {HIDDEN}, "num_attention_heads": {HEADS}, "head_dim": {DIM},
            "num_key_value_heads": {KV_HEADS}, "num_hidden_layers": 1}}"#
    );
    on_gpu_of(&json, computation, kv_dtype, false)
}

/// Like [`on_gpu`], on a device that was opened for the model with this configuration.
pub(super) fn on_gpu_of(json: &str, computation: &impl Computation, kv_dtype: KvDtype, is_quantised: bool) -> Vec<f32> {
    let (config, driver) = (ModelConfig::from_json(json.as_bytes()).unwrap(), Driver::emulator().unwrap());
    let options = Options { kv_dtype: Some(kv_dtype), ..Options::default() };
    let types = (DType::F16, kv_dtype);
    let gpu = CudaBackend::new(driver, 0, &config, Shard::WHOLE, &options, types, is_quantised).unwrap();
    let ready = || {
        gpu.rehearse(|| drop(gpu.lease(4 << 20))).unwrap();
        gpu.provide_activations().unwrap();
    };
    let result = computation.run(&gpu, &ready);
    if !result.is_float {
        return gpu.download(&result).unwrap();
    }
    let mut numbers = vec![0.0f32; (result.rows * result.stride) as usize];
    gpu.queue.run(|device| result.lease.download(&device.stream, bytemuck::cast_slice_mut(&mut numbers)));
    gpu.finish().unwrap();
    let rows = numbers.chunks(result.stride as usize).map(|row| &row[..result.cols as usize]);
    rows.flatten().copied().collect()
}

#[track_caller]
fn assert_same(what: &str, computation: &impl Computation, tolerance: f32) {
    assert_same_in(KvDtype::Float(DType::F16), what, computation, tolerance);
}

#[track_caller]
fn assert_same_in(kv_dtype: KvDtype, what: &str, computation: &impl Computation, tolerance: f32) {
    let (got, want) = (on_gpu(computation, kv_dtype), on_cpu(computation));
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let close = (got - want).abs() <= tolerance * (1.0 + want.abs());
        assert!(close, "{what}: element {i} is {got}, not {want}");
    }
}

enum Elementwise {
    Scale,
    Add,
    Multiply,
    LogitsScale,
    LogitsSoftcap,
}

impl Computation for Elementwise {
    fn run<B: Backend>(&self, b: &B, ready: &dyn Fn()) -> B::Tensor {
        let (table, other) = (weight(b, 1, &[TOKENS, HIDDEN]), weight(b, 2, &[TOKENS, 3 * HIDDEN]));
        // The number of logits is odd, so their rows are padded.
        let output = b.projection_weight(host(3, &[2 * HIDDEN + 1, HIDDEN])).unwrap();
        ready();
        let (mut x, other) = (rows(b, &table), rows(b, &other));
        match self {
            Elementwise::Scale => b.change(&mut x, Change::Scale(-3.7)),
            Elementwise::Add => {
                let same = rows(b, &table);
                b.change(&mut x, Change::Scale(0.3));
                b.change(&mut x, Change::Add(&same));
            }
            Elementwise::Multiply => {
                b.change(&mut x, Change::Multiply { by: &other, first: 2 * HIDDEN - 8, sigmoid: false })
            }
            Elementwise::LogitsScale | Elementwise::LogitsSoftcap => {
                let mut logits = b.logits(&x, &output);
                let is_scale = matches!(self, Elementwise::LogitsScale);
                b.change(&mut logits, if is_scale { Change::Scale(0.25) } else { Change::Softcap(2.0) });
                return logits;
            }
        }
        x
    }
}

#[test]
fn elements_are_changed() {
    for (what, change) in [
        ("scale", Elementwise::Scale),
        ("add", Elementwise::Add),
        ("multiply", Elementwise::Multiply),
        ("scale of logits", Elementwise::LogitsScale),
        ("softcap of logits", Elementwise::LogitsSoftcap),
    ] {
        assert_same(what, &change, 1e-3);
    }
}

/// A norm, perhaps of parts of rows, and perhaps after a sum.
struct NormOf {
    is_layer: bool,
    width: usize,
    adds: bool,
}

impl Computation for NormOf {
    fn run<B: Backend>(&self, b: &B, ready: &dyn Fn()) -> B::Tensor {
        let (table, other) = (weight(b, 1, &[TOKENS, HIDDEN]), weight(b, 2, &[TOKENS, HIDDEN]));
        let weight = b.norm_weight(host(3, &[self.width])).unwrap();
        let norm = match self.is_layer {
            true => Norm::Layer { weight: Some(weight), bias: None, eps: EPS },
            false => Norm::Rms { weight, eps: EPS },
        };
        ready();
        let (mut x, y) = (rows(b, &table), rows(b, &other));
        if !self.adds {
            return b.norm(&x, &norm);
        }
        let mut normed = b.add_norm(&mut x, y, &norm);
        // The sum must be stored too.
        b.change(&mut normed, Change::Add(&x));
        normed
    }
}

#[test]
fn rows_and_their_parts_are_normalised_also_after_a_sum() {
    for is_layer in [false, true] {
        for adds in [false, true] {
            let what = format!("layer norm: {is_layer}, after a sum: {adds}");
            assert_same(&what, &NormOf { is_layer, width: HIDDEN, adds }, 3e-3);
        }
    }
    assert_same("norm of parts", &NormOf { is_layer: false, width: 16, adds: false }, 3e-3);
}

/// The weights of a norm that are computed in f32 are rounded to the activations' type.
#[test]
fn norms_have_weights_in_f32() {
    struct Factors;
    impl Computation for Factors {
        fn run<B: Backend>(&self, b: &B, ready: &dyn Fn()) -> B::Tensor {
            let table = weight(b, 1, &[TOKENS, HIDDEN]);
            let factors = (0..HIDDEN).map(|i| 1.0 + i as f32 / 7.0).collect();
            let weight = b.norm_weight(HostTensor::from_f32(vec![HIDDEN], factors)).unwrap();
            ready();
            b.norm(&rows(b, &table), &Norm::Rms { weight, eps: EPS })
        }
    }
    assert_same("norm", &Factors, 3e-3);
}

/// The attention of a layer, with the changes to its heads.
#[derive(Clone, Copy, Default)]
struct Heads {
    /// Number of rotated elements.
    rotated: usize,
    adjacent: bool,
    /// With `Some(rows)` queries and keys are normalised, by rows or by heads.
    norms: Option<bool>,
    value_norm: bool,
    value_is_key: bool,
    /// Whether another layer, which has only queries, reads the cache.
    is_shared: bool,
    eight_bits: Option<KvDtype>,
}

impl Heads {
    /// Returns the projections. `seed` selects the numbers.
    fn projections(&self, seed: u64) -> HostQkv {
        let linear =
            |seed, heads| HostLinear::fixed(host(seed, &[heads * DIM, HIDDEN]), Some(host(seed + 1, &[heads * DIM])));
        HostQkv {
            query: linear(seed, HEADS),
            key: Some(linear(seed + 2, KV_HEADS)),
            value: (!self.value_is_key).then(|| linear(seed + 4, KV_HEADS)),
        }
    }

    /// A table of angles: cosines, then sines.
    fn angles(&self) -> HostTensor {
        let half = self.rotated / 2;
        let angle = |p: usize, i: usize| p as f32 * 0.3f32.powi(i as i32 % 5);
        let row =
            |p: usize| (0..2 * half).map(move |i| if i < half { angle(p, i).cos() } else { angle(p, i - half).sin() });
        HostTensor::from_f32(vec![16, self.rotated], (0..16).flat_map(row).collect())
    }
}

impl Computation for Heads {
    fn run<B: Backend>(&self, b: &B, ready: &dyn Fn()) -> B::Tensor {
        let table = weight(b, 1, &[TOKENS, HIDDEN]);
        let (own, other) = (self.projections(10), self.projections(20));
        let own = b.qkv_weight(own).unwrap();
        let other = b.qkv_weight(HostQkv { key: None, value: None, ..other }).unwrap();
        let width = |heads: usize| if self.norms == Some(true) { heads * DIM } else { DIM };
        let norm = |seed, heads| b.norm_weight(host(seed, &[width(heads)])).unwrap();
        let (query, key) = (norm(30, HEADS), norm(31, KV_HEADS));
        let angles = (self.rotated > 0).then(|| b.weight(self.angles()).unwrap());
        ready();
        let kv_dtype = self.eight_bits.unwrap_or(KvDtype::Float(DType::F16));
        let mut cache = b.kv_cache(KvLayout::uniform(1, KV_HEADS, DIM, 16, kv_dtype), 8, 0).unwrap();
        let (x, inputs) = (rows(b, &table), inputs(b));
        let heads = |has_keys: bool| QkNormRope {
            norms: self.norms.map(|rows| QkNorms { query: &query, key: has_keys.then_some(&key), eps: EPS, rows }),
            value_eps: self.value_norm.then_some(EPS),
            rope: angles.as_ref().map(|angles| Rotation { angles, adjacent: self.adjacent }),
        };
        let mut qkv = b.qkv(&x, &own);
        b.norm_rope_and_write_kv(&mut qkv, heads(true), &mut cache, 0, &inputs);
        if self.is_shared {
            qkv = b.qkv(&x, &other);
            b.norm_rope_and_write_kv(&mut qkv, heads(false), &mut cache, 0, &inputs);
        }
        b.attention(&qkv, &cache, Attention::plain(0, 0.2), &inputs)
    }
}

#[test]
fn heads_are_changed_and_cached() {
    let plain = Heads::default();
    let whole = Heads { rotated: DIM, ..plain };
    for (what, heads) in [
        ("no change", plain),
        ("a rotation", whole),
        ("norms and a rotation", Heads { norms: Some(false), ..whole }),
        ("a rotation of the first half", Heads { rotated: 16, ..plain }),
        ("a rotation of adjacent elements", Heads { adjacent: true, ..whole }),
        ("a rotation of 24 adjacent elements", Heads { rotated: 24, adjacent: true, ..plain }),
        ("norms of values", Heads { value_norm: true, ..plain }),
        ("all norms, and a rotation of a half", Heads { rotated: 16, norms: Some(false), value_norm: true, ..plain }),
        ("norms of rows", Heads { norms: Some(true), ..plain }),
        ("norms of rows and a rotation", Heads { norms: Some(true), ..whole }),
        ("keys as values", Heads { value_is_key: true, ..plain }),
        ("rotated keys, and normalised keys as values", Heads { value_is_key: true, value_norm: true, ..whole }),
    ] {
        assert_same(what, &heads, 1e-2);
        assert_same(&format!("{what}, shared"), &Heads { is_shared: true, ..heads }, 1e-2);
    }
}

#[test]
fn heads_are_changed_and_cached_in_eight_bits() {
    let part = Heads { rotated: 16, norms: Some(true), value_norm: true, ..Heads::default() };
    // Keys and values that differ in their last bits may get the next code.
    for (kv_dtype, tolerance) in [(KvDtype::Int8, 3e-2), (KvDtype::Fp8, 8e-2)] {
        for is_shared in [false, true] {
            let heads = Heads { is_shared, eight_bits: Some(kv_dtype), ..part };
            assert_same_in(kv_dtype, &format!("{kv_dtype}, shared: {is_shared}"), &heads, tolerance);
        }
    }
}
