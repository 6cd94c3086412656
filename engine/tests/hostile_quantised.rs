//! Damaged, contradictory and malicious quantised checkpoints. Each gives an error of one sentence, never a panic, and
//! takes at most a small multiple of its size in memory.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use engine::ModelFiles;
use half::f16;
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;
/// Runs one test at a time, so that each measures only its own memory.
static TURN: Mutex<()> = Mutex::new(());

/// Outputs, inputs, and inputs per scale.
const N: usize = 16;
const K: usize = 64;
const G: usize = 32;

const AWQ: &str = r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm",
    "modules_to_not_convert": ["lm_head"]}"#;
const GPTQ: &str = r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true}"#;
const INT4: &str = r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0":
    {"weights": {"num_bits": 4, "type": "int", "symmetric": false, "strategy": "group", "group_size": 32}}}}"#;
const INT8: &str = r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0":
    {"weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}}}}"#;
const FP8: &str = r#"{"quant_method": "fp8", "weight_block_size": [8, 32]}"#;

const MXFP4: &str = r#"{"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}"#;

/// Tensors: name, type, shape and bytes.
type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn tensor(name: &str, dtype: Dtype, shape: &[usize]) -> (String, Dtype, Vec<usize>, Vec<u8>) {
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    let byte = |i: usize| match dtype {
        // f16 elements, all 1.0.
        Dtype::F16 => f16::ONE.to_le_bytes()[i % 2],
        Dtype::F32 => 1f32.to_le_bytes()[i % 4],
        _ => (i * 29 % 120) as u8,
    };
    (format!("m.{name}"), dtype, shape.to_vec(), (0..bytes).map(byte).collect())
}

fn words(name: &str, words: &[i32]) -> (String, Dtype, Vec<usize>, Vec<u8>) {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    (format!("m.{name}"), Dtype::I32, vec![words.len()], bytes)
}

fn extents(extents: [i64; 2]) -> (String, Dtype, Vec<usize>, Vec<u8>) {
    ("m.weight_shape".into(), Dtype::I64, vec![2], extents.iter().flat_map(|x| x.to_le_bytes()).collect())
}

fn awq() -> Tensors {
    vec![
        tensor("qweight", Dtype::I32, &[K, N / 8]),
        tensor("qzeros", Dtype::I32, &[K / G, N / 8]),
        tensor("scales", Dtype::F16, &[K / G, N]),
    ]
}

fn gptq() -> Tensors {
    vec![
        tensor("qweight", Dtype::I32, &[K / 8, N]),
        tensor("qzeros", Dtype::I32, &[K / G, N / 8]),
        tensor("scales", Dtype::F16, &[K / G, N]),
        words("g_idx", &(0..K as i32).map(|i| i % 2).collect::<Vec<_>>()),
    ]
}

fn int4() -> Tensors {
    vec![
        tensor("weight_packed", Dtype::I32, &[N, K / 8]),
        tensor("weight_zero_point", Dtype::I32, &[N / 8, K / G]),
        tensor("weight_scale", Dtype::F16, &[N, K / G]),
        extents([N as i64, K as i64]),
    ]
}

fn fp8() -> Tensors {
    vec![tensor("weight", Dtype::F8_E4M3, &[N, K]), tensor("weight_scale_inv", Dtype::F32, &[N / 8, K / 32])]
}

fn int8() -> Tensors {
    vec![
        tensor("weight_packed", Dtype::I32, &[N, K / 4]),
        tensor("weight_scale", Dtype::F16, &[N, K / G]),
        extents([N as i64, K as i64]),
    ]
}

/// Two experts.
fn fp8_experts() -> Tensors {
    let scales = tensor("weight_scale_inv", Dtype::F32, &[2, N / 8, K / 32]);
    vec![tensor("weight", Dtype::F8_E4M3, &[2, N, K]), scales]
}

/// Two experts.
fn mxfp4() -> Tensors {
    vec![tensor("weight_blocks", Dtype::U8, &[2, N, K / 32, 16]), tensor("weight_scales", Dtype::U8, &[2, N, K / 32])]
}

/// Replaces the tensor of the same name, or adds the tensor.
fn with(mut tensors: Tensors, tensor: (String, Dtype, Vec<usize>, Vec<u8>)) -> Tensors {
    tensors.retain(|(name, ..)| *name != tensor.0);
    tensors.push(tensor);
    tensors
}

fn without(mut tensors: Tensors, name: &str) -> Tensors {
    tensors.retain(|(other, ..)| *other != format!("m.{name}"));
    tensors
}

/// Overwrites bytes of a tensor, starting at `at`.
fn changed(mut tensors: Tensors, name: &str, at: usize, bytes: &[u8]) -> Tensors {
    let tensor = tensors.iter_mut().find(|(other, ..)| *other == format!("m.{name}")).unwrap();
    tensor.3[at..at + bytes.len()].copy_from_slice(bytes);
    tensors
}

fn filled(mut tensors: Tensors, name: &str) -> Tensors {
    tensors.iter_mut().find(|(other, ..)| *other == format!("m.{name}")).unwrap().3.fill(0);
    tensors
}

fn file(tensors: &Tensors) -> Vec<u8> {
    // A model also has tensors that are not quantised.
    let other = tensor("norm", Dtype::F32, &[4]);
    let views = tensors
        .iter()
        .chain([&other])
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// The error when a checkpoint's quantised weight is loaded. Empty if it loads.
fn refusal(directory: &Path, config: &str, bytes: &[u8]) -> String {
    fs::write(directory.join("config.json"), format!(r#"{{"model_type": "llama", "quantization_config": {config}}}"#))
        .unwrap();
    fs::write(directory.join("model.safetensors"), bytes).unwrap();
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let taken = ModelFiles::directory(directory).unwrap().weights(None).and_then(|mut weights| {
        let names: Vec<(String, Vec<usize>)> =
            weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap().to_vec())).collect();
        for (name, shape) in names.into_iter().filter(|(name, _)| name == "m.weight") {
            let tensor = weights.take(&name, &shape)?;
            assert_eq!(tensor.shape(), shape);
        }
        Ok(())
    });
    let peak = MEMORY.peak_usage().saturating_sub(before);
    assert!(peak <= 20 * bytes.len() + (256 << 10), "{peak} bytes for a file of {}", bytes.len());
    match taken {
        Ok(()) => String::new(),
        Err(error) => {
            let error = error.to_string();
            assert!(!error.contains('\n') && error.len() < 400, "{error}");
            error
        }
    }
}

#[test]
fn false_headers_are_refused() {
    let _turn = TURN.lock();
    let directory = tempfile::tempdir().unwrap();
    let refusal = |config: &str, tensors: &Tensors| refusal(directory.path(), config, &file(tensors));
    for (config, tensors) in [
        (AWQ, awq()),
        (GPTQ, gptq()),
        (INT4, int4()),
        (INT8, int8()),
        (FP8, fp8()),
        (FP8, fp8_experts()),
        (MXFP4, mxfp4()),
    ] {
        assert_eq!(refusal(config, &tensors), "", "{config}");
    }
    let nan = f16::NAN.to_le_bytes();
    let sixteen = AWQ.replace("32", "16");
    let billions = AWQ.replace("32", "1000000000000");
    let ordered = INT4.replace("\"num_bits\"", "\"actorder\": \"group\", \"num_bits\"");
    let listed = AWQ.replace("lm_head", "m");
    let cases: Vec<(&str, Tensors, &str)> = vec![
        (AWQ, without(awq(), "qzeros"), "lacks its tensor of zeros"),
        (AWQ, without(awq(), "scales"), "lacks the tensor m.scales"),
        (AWQ, with(awq(), tensor("qweight", Dtype::F32, &[K, N / 8])), "integers of type f32"),
        (AWQ, with(awq(), tensor("qweight", Dtype::I32, &[K * N / 8])), "not a matrix"),
        (AWQ, with(awq(), tensor("qweight", Dtype::I32, &[0, N / 8])), "no elements"),
        (AWQ, with(awq(), tensor("qweight", Dtype::I32, &[K, N])), "scales of shape"),
        (AWQ, with(awq(), tensor("qzeros", Dtype::I32, &[K / G, N])), "zeros of shape"),
        (AWQ, with(awq(), tensor("scales", Dtype::I32, &[K / G, N])), "scales of type I32"),
        (AWQ, with(awq(), tensor("scales", Dtype::F16, &[1, N])), "groups of 32"),
        (AWQ, with(awq(), tensor("scales", Dtype::F16, &[])), "scales of shape []"),
        (AWQ, with(awq(), tensor("weight", Dtype::F16, &[N, K])), "both quantised and unquantised"),
        (AWQ, changed(awq(), "scales", 6, &nan), "not finite"),
        (AWQ, changed(awq(), "scales", 6, &f16::INFINITY.to_le_bytes()), "not finite"),
        (AWQ, filled(awq(), "scales"), "only scales of zero"),
        (&sixteen, awq(), "groups of 16"),
        (&billions, awq(), "group_size is 1000000000000"),
        (&listed, awq(), "among the modules that are not quantised"),
        (GPTQ, changed(gptq(), "g_idx", 8, &2i32.to_le_bytes()), "group 2 of 2"),
        (GPTQ, changed(gptq(), "g_idx", 8, &(-1i32).to_le_bytes()), "group -1 of 2"),
        (GPTQ, changed(gptq(), "g_idx", 8, &1i32.to_le_bytes()), "31 inputs in group 0"),
        (GPTQ, with(gptq(), words("g_idx", &[0; K / 2])), "g_idx of shape"),
        (GPTQ, with(gptq(), tensor("g_idx", Dtype::I64, &[K])), "groups of type I64"),
        (GPTQ, without(gptq(), "g_idx"), "lacks the groups of its sorted inputs"),
        (&ordered, int4(), "lacks the groups of its sorted inputs"),
        (GPTQ, with(gptq(), tensor("scales", Dtype::F16, &[K / G + 1, N])), "groups of 32"),
        (INT4, with(int4(), extents([N as i64, 1 << 40])), "weight_shape"),
        (INT4, with(int4(), extents([N as i64, -1])), "weight_shape"),
        (INT4, with(int4(), extents([N as i64 + 1, K as i64])), "weight_shape"),
        (INT4, with(int4(), tensor("weight_shape", Dtype::I64, &[1 << 10])), "weight_shape of shape"),
        (INT4, with(int4(), tensor("weight_shape", Dtype::F32, &[2])), "weight_shape of type f32"),
        (INT4, with(int4(), tensor("weight_zero_point", Dtype::I32, &[1, 1])), "zeros of shape"),
        (INT4, changed(int4(), "weight_scale", 2, &nan), "not finite"),
        (INT4, without(int4(), "weight_zero_point"), "lacks its tensor of zeros"),
        (INT4, without(int4(), "weight_scale"), "lacks the tensor m.weight_scale"),
        (FP8, changed(fp8(), "weight", 100, &[0xff]), "element that is NaN"),
        (FP8, changed(fp8(), "weight_scale_inv", 4, &f32::NAN.to_le_bytes()), "not finite"),
        (FP8, filled(fp8(), "weight_scale_inv"), "only scales of zero"),
        (FP8, with(fp8(), tensor("weight_scale_inv", Dtype::F32, &[1, 1])), "blocks of 8 x 32"),
        (FP8, with(fp8(), tensor("weight_scale_inv", Dtype::F8_E5M2, &[N / 8, K / 32])), "scales of type F8_E5M2"),
        (FP8, with(fp8(), tensor("weight", Dtype::F8_E4M3, &[N, K, 1, 1])), "neither a matrix nor a stack"),
        (FP8, with(fp8_experts(), tensor("weight_scale_inv", Dtype::F32, &[N / 8, K / 32])), "scales of shape [2, 2]"),
        (FP8, with(fp8_experts(), tensor("weight_scale_inv", Dtype::F32, &[3, N / 8, K / 32])), "scales of shape [3"),
        (FP8, with(fp8_experts(), tensor("weight", Dtype::F8_E4M3, &[2, 0, K])), "no elements"),
        (INT8, without(int8(), "weight_scale"), "lacks the tensor m.weight_scale"),
        (INT8, with(int8(), tensor("weight_scale", Dtype::F16, &[N, 1])), "groups of 32"),
        (INT8, with(int8(), tensor("weight_scale", Dtype::F16, &[N + 1, 2])), "scales of shape"),
        (INT8, with(int8(), tensor("weight_packed", Dtype::I32, &[N * K / 4])), "not a matrix"),
        (INT8, with(int8(), extents([N as i64, 1 << 40])), "weight_shape"),
        (INT8, changed(int8(), "weight_scale", 2, &nan), "not finite"),
        (FP8, without(fp8(), "weight_scale_inv"), "lacks the tensor m.weight_scale"),
        (FP8, with(fp8(), tensor("weight", Dtype::F8_E5M2, &[N, K])), "F8_E5M2"),
        (MXFP4, without(mxfp4(), "weight_scales"), "lacks the tensor m.weight_scales"),
        (MXFP4, with(mxfp4(), tensor("weight_scales", Dtype::F32, &[2, N, K / 32])), "scales of type f32"),
        (MXFP4, with(mxfp4(), tensor("weight_blocks", Dtype::I8, &[2, N, K / 32, 16])), "codes of type I8"),
        (MXFP4, with(mxfp4(), tensor("weight_blocks", Dtype::U8, &[2, N, K / 32, 8])), "codes of shape"),
        (MXFP4, with(mxfp4(), tensor("weight_blocks", Dtype::U8, &[2, N, 1, 16])), "codes of shape"),
        (MXFP4, with(mxfp4(), tensor("weight_scales", Dtype::U8, &[])), "scales of shape []"),
        (MXFP4, changed(mxfp4(), "weight_scales", 7, &[255]), "scale that is NaN"),
        (MXFP4, with(mxfp4(), tensor("weight", Dtype::F16, &[2, K, N])), "both quantised and unquantised"),
    ];
    for (config, tensors, reason) in &cases {
        let refusal = refusal(config, tensors);
        assert!(refusal.contains(reason), "{reason}: {refusal:?}");
    }
}

#[test]
fn missing_quantization_config_is_named_in_the_error() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    fs::write(directory.path().join("model.safetensors"), file(&awq())).unwrap();
    let mut weights = ModelFiles::directory(directory.path()).unwrap().weights(None).unwrap();
    let missing = weights.take("m.weight", &[N, K]).err().unwrap().to_string();
    assert!(missing.contains("quantization_config"), "{missing}");
}

#[test]
fn files_that_are_cut_off_are_refused() {
    let _turn = TURN.lock();
    let directory = tempfile::tempdir().unwrap();
    for (config, tensors) in [(AWQ, awq()), (FP8, fp8()), (MXFP4, mxfp4())] {
        let whole = file(&tensors);
        for len in (0..whole.len()).step_by(7) {
            assert_ne!(refusal(directory.path(), config, &whole[..len]), "", "cut off after {len} bytes");
        }
    }
}

#[test]
fn mutated_files_are_refused_or_valid() {
    let _turn = TURN.lock();
    let directory = tempfile::tempdir().unwrap();
    let files = [(AWQ, awq()), (GPTQ, gptq()), (INT4, int4()), (INT8, int8()), (FP8, fp8_experts()), (MXFP4, mxfp4())];
    let files = files.map(|(config, tensors)| (config, file(&tensors)));
    proptest!(|(which in 0..6usize, at in any::<prop::sample::Index>(), bits in 1..=255u8, header in any::<bool>())| {
        let (config, file) = &files[which];
        let mut bytes = file.clone();
        let reach = if header { 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize } else { bytes.len() };
        bytes[at.index(reach)] ^= bits;
        refusal(directory.path(), config, &bytes);
    });
}
