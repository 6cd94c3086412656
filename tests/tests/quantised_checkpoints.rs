//! Quantised safetensors checkpoints. Their dequantised elements equal the formats' own programs, and models with
//! quantised weights compute the same as models with these elements.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use engine::DType;
use engine::ModelFiles;
use engine::SamplingParams;
use engine::tools::quantised::QuantType;
use engine::{Device, Llm, Options, Prompt};
use kernels::eight_bit::{EightBit, Fp8};
use safetensors::{Dtype, SafeTensors};
use tests::families::{family_golden, q8_drift};
use tests::scores::{FileTensor, dequantised, difference, perplexity, scores, stories, texts, write};
use tests::{complete, model_dir};

/// The checkpoint formats, each with its golden model and the types of its projections in memory.
const MODELS: [(&str, &str, &[QuantType]); 7] = [
    ("awq", "llama3", &[QuantType::Int4G64]),
    ("gptq", "qwen2", &[QuantType::Int4G32]),
    ("gptq-v2", "llama2", &[QuantType::Int4G128, QuantType::Int4G32]),
    ("gptq-conv1d", "gpt2", &[QuantType::Int4G32]),
    ("compressed-int4", "mistral", &[QuantType::Int4G32]),
    ("fp8", "llama3", &[QuantType::Fp8G128]),
    ("compressed-fp8", "qwen3", &[QuantType::Fp8G32, QuantType::Fp8G128]),
];

/// The same for the families with windows and unusual blocks. Their projections may be fused or differ between layers.
const FAMILIES: [(&str, &str, &[QuantType]); 9] = [
    ("awq-gemma3", "gemma3", &[QuantType::Int4G32]),
    ("gptq-phi3", "phi3", &[QuantType::Int4G32]),
    ("compressed-fp8-gemma4", "gemma4", &[QuantType::Fp8G128, QuantType::Fp8G32]),
    ("fp8-glm4", "glm4", &[QuantType::Fp8G32]),
    // Experts in tensors of their own, and in one tensor for all of a layer. Routers are not quantised.
    ("awq-mixtral", "mixtral", &[QuantType::Int4G32]),
    ("gptq-qwen3-moe", "qwen3-moe", &[QuantType::Int4G32]),
    ("compressed-int8-qwen2-moe", "qwen2-moe", &[QuantType::Q8_0]),
    ("fp8-deepseek3", "deepseek3", &[QuantType::Fp8G32]),
    ("fp8-gemma4-moe", "gemma4-moe", &[QuantType::Fp8G32]),
];

/// Whether a form's model has experts. Rounded activations change which experts some tokens choose, and with random
/// weights that changes a token's logprob by much. The median leaves these tokens out.
fn has_experts(form: &str) -> bool {
    ["mixtral", "moe", "deepseek"].iter().any(|family| form.contains(family))
}

fn median(a: &[f32], b: &[f32]) -> f32 {
    let mut differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| (a - b).abs()).collect();
    differences.sort_by(f32::total_cmp);
    differences[differences.len() / 2]
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/quantised").join(name)
}

/// Random tensors with elements that the formats' programs computed, in the type of the scales.
#[test]
fn elements_equal_those_of_the_formats_own_programs() {
    let mut forms = Vec::new();
    for entry in fs::read_dir(fixture("random")).unwrap() {
        let entry = entry.unwrap();
        let form = entry.file_name().into_string().unwrap();
        let mut weights = ModelFiles::directory(entry.path()).unwrap().weights(None).unwrap();
        let shape = weights.shape("m.weight").unwrap_or_else(|| panic!("{form}")).to_vec();
        let want = weights.take("elements", &shape).unwrap();
        assert_eq!(weights.widened(), usize::from(form == "compressed-int4-odd"), "{form}");
        let got = weights.take("m.weight", &shape).unwrap_or_else(|error| panic!("{form}: {error:?}"));
        // No type in memory has groups of 12 elements, or f32 scales of 8-bit integers.
        let is_widened = ["compressed-int4-odd", "compressed-int8-wide"].contains(&&*form);
        assert_eq!(got.quantised().is_none(), is_widened, "{form}");
        assert_eq!(got.order().is_some(), form.ends_with("desc-act"), "{form}");
        let got = got.to_dtype(want.dtype()).elements().to_f32();
        let want = want.elements().to_f32();
        let wrong = got.iter().zip(&want).position(|(a, b)| a != b);
        assert!(wrong.is_none() && got.iter().any(|x| *x != 0.0), "{form}: element {wrong:?}");
        assert_eq!(weights.names().count(), 0, "{form}");
        forms.push(form);
    }
    assert_eq!(forms.len(), 18, "{forms:?}");
}

/// Returns the tensors of a file without conversion.
fn tensors(path: &Path) -> Vec<FileTensor> {
    let file = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    file.tensors()
        .into_iter()
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect()
}

fn copy(from: &Path, files: &[&str], to: &Path) {
    for file in files {
        fs::write(to.join(file), fs::read(from.join(file)).unwrap()).unwrap();
    }
}

/// Writes a whole checkpoint to `directory`: the fixture's projections and the golden model's other tensors.
fn checkpoint(form: &str, model: &str, directory: &Path) -> ModelFiles {
    let mut all = tensors(&fixture(form).join("model.safetensors"));
    let quantised: BTreeSet<String> =
        all.iter().filter_map(|(name, ..)| Some(name.rsplit_once('.')?.0.into())).collect();
    let whole: BTreeSet<String> = all.iter().map(|(name, ..)| name.clone()).collect();
    let stays = |name: &str| {
        !whole.contains(name) && !name.strip_suffix(".weight").is_some_and(|module| quantised.contains(module))
    };
    for entry in fs::read_dir(model_dir(model)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            all.extend(tensors(&path).into_iter().filter(|(name, ..)| stays(name)));
        }
    }
    copy(&model_dir(model), &["tokenizer.json", "tokenizer_config.json"], directory);
    copy(&fixture(form), &["config.json"], directory);
    write(directory, &all)
}

fn load(files: &ModelFiles, options: Options) -> Llm {
    Llm::load(files, &Options { device: Device::Cpu, threads: Some(2), ..options }).unwrap()
}

#[test]
fn quantised_models_compute_like_their_elements() {
    for (form, model, kinds) in MODELS.into_iter().chain(FAMILIES) {
        let (directory, exact) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = checkpoint(form, model, directory.path());
        let mut llm = load(&files, Options::default());
        // Rows of 48 elements have no groups of 32, and layers for drafts are not loaded. Notes say so.
        let notes = if form == "fp8-deepseek3" { 2 } else { 0 };
        assert_eq!((&llm.device().quantised[..], llm.device().notes.len()), (kinds, notes), "{form}");
        let texts = texts(model);
        let read = scores(&mut llm, &texts);
        let elements = scores(&mut load(&dequantised(&files, exact.path()), Options::default()), &texts);
        let original = scores(&mut load(&ModelFiles::directory(model_dir(model)).unwrap(), Options::default()), &texts);
        let (mut mean, most) = difference(&read, &elements);
        let (drift, worst) = difference(&elements, &original);
        if has_experts(form) {
            // Without rounded activations, tokens choose the same experts.
            let in_bf16 = |files: &ModelFiles| {
                scores(&mut load(files, Options { dtype: Some(DType::Bf16), ..Options::default() }), &texts)
            };
            assert!(in_bf16(&files) == in_bf16(&ModelFiles::directory(exact.path()).unwrap()), "{form}");
            mean = median(&read, &elements);
        }
        println!("{form}: activations {mean} {most}, weights {drift} {worst}");
        // Integer weights round activations to 8 bits. FP8 weights do not, but bf16 parts of the model may round them
        // to bf16. These models have large logits: logprobs differ by about ten.
        let is_fp8 = form.contains("fp8");
        let bound = if is_fp8 { 0.01 } else { 0.4 };
        assert!(mean < bound && (has_experts(form) || (mean > 0.01) != is_fp8), "{form}: {mean} {most}");
        let bound = if has_experts(form) { 5.0 } else { 4.0 };
        assert!(drift > mean && drift < bound, "{form}: {drift} {worst}");
    }
}

#[test]
fn two_workers_load_their_shards() {
    for (form, model, _) in MODELS.into_iter().chain(FAMILIES) {
        let directory = tempfile::tempdir().unwrap();
        let files = checkpoint(form, model, directory.path());
        let options =
            || Options { device: Device::Cpu, threads: Some(2), tensor_parallel_size: 2, ..Options::default() };
        let result = Llm::load(&files, &options());
        // Two workers cannot share three heads, inputs in an order of their own, or groups that the division would cut.
        let refused = match form {
            "gptq" => Some("desc_act"),
            "gptq-v2" | "gptq-conv1d" => Some("3 attention heads"),
            "compressed-int4" => Some("112 columns of a matrix in int4-g32"),
            "compressed-fp8-gemma4" => Some("64 columns of a matrix in fp8-g128"),
            "gptq-qwen3-moe" => Some("16 columns of a matrix in int4-g32"),
            "compressed-int8-qwen2-moe" => Some("16 columns of a matrix in q8_0"),
            "fp8-deepseek3" | "fp8-gemma4-moe" => Some("48 columns of a matrix in fp8-g32"),
            "compressed-fp8" | "awq" | "fp8" => None,
            _ if FAMILIES.iter().any(|(family, ..)| *family == form) => None,
            other => panic!("{other}"),
        };
        match (result, refused) {
            (Err(error), Some(reason)) => {
                let error = error.to_string();
                assert!(error.contains("tensor-parallel-size") && error.contains(reason), "{form}: {error}");
            }
            (Ok(mut llm), None) => {
                let texts = texts(model);
                let whole = scores(&mut load(&files, Options::default()), &texts);
                let (mean, most) = difference(&scores(&mut llm, &texts), &whole);
                println!("{form}: {mean} {most}");
                // A sum of two parts is rounded once more, which may round an activation to a different integer.
                let is_family = FAMILIES.iter().any(|(family, ..)| *family == form);
                assert!(mean < if is_family { 0.1 } else { 0.02 }, "{form}: {mean} {most}");
            }
            (Ok(_), Some(reason)) => panic!("{form} was loaded despite {reason}"),
            (Err(error), None) => panic!("{form}: {error}"),
        }
    }
}

/// `quire quantize` quantises the dequantised elements again.
#[test]
fn checkpoints_are_written_as_gguf_files() {
    let families = FAMILIES.into_iter().filter(|(form, ..)| *form != "fp8-deepseek3");
    for (form, model, _) in [MODELS[0], MODELS[3], MODELS[5]].into_iter().chain(families) {
        let directory = tempfile::tempdir().unwrap();
        let files = checkpoint(form, model, directory.path());
        let path = directory.path().join("model.gguf");
        engine::quantize(&files, QuantType::Q8_0, &path, |_, _| {}).unwrap();
        let texts = texts(model);
        let written = scores(&mut load(&ModelFiles::gguf(&path).unwrap(), Options::default()), &texts);
        let read = scores(&mut load(&files, Options::default()), &texts);
        let (mut mean, most) = difference(&written, &read);
        println!("{form} as q8_0: {mean} {most}");
        if has_experts(form) {
            mean = median(&written, &read);
        }
        let is_family = FAMILIES.iter().any(|(family, ..)| *family == form);
        let bound = if is_family { q8_drift(&family_golden(&model_dir(model))) } else { 0.5 };
        assert!(mean < bound, "{form}: {mean} {most}");
    }
}

/// Checks that packed weights score within 1.5 times the error of 16-bit weights, both compared with f32, and that a note
/// names each format without a kernel.
#[test]
fn checkpoints_stay_quantised_on_a_gpu() {
    std::thread::scope(|scope| {
        for checkpoint in MODELS {
            scope.spawn(move || stays_quantised_on_a_gpu(checkpoint));
        }
    });
}

fn stays_quantised_on_a_gpu((form, model, kinds): (&str, &str, &[QuantType])) {
    let (directory, exact) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = checkpoint(form, model, directory.path());
    let on_a_gpu = |options: Options| Llm::load(&files, &Options { device: Device::Emulator, ..options }).unwrap();
    let mut packed = on_a_gpu(Options::default());
    let (device, notes) = (packed.device().clone(), packed.device().notes.join(" "));
    // The columns of this checkpoint have an order of their own.
    let is_read = form != "gptq";
    assert_eq!(device.quantised.len(), if is_read { kinds.len() } else { 0 }, "{form}");
    assert!(!is_read || kinds.iter().all(|kind| device.quantised.contains(kind)), "{form}");
    assert_eq!(notes.is_empty(), is_read, "{form}: {notes}");
    assert!(is_read || notes.contains("int4-g32"), "{notes}");
    let mut plain = on_a_gpu(Options { dtype: Some(device.dtype), ..Options::default() });
    let notes = plain.device().notes.join(" ");
    assert!(plain.device().quantised.is_empty() && notes.contains(&kinds[0].to_string()), "{notes}");
    let texts = &texts(model)[..3];
    let exact = scores(&mut load(&dequantised(&files, exact.path()), Options::default()), texts);
    let [(mean, most), (plain, plain_most)] =
        [&mut packed, &mut plain].map(|llm| difference(&scores(llm, texts), &exact));
    println!("{form} on a GPU: {mean} {most}, in 16 bits {plain} {plain_most}");
    assert!(mean > 0.0 && mean < 1.5 * plain, "{form}: {mean} {most}, in 16 bits {plain} {plain_most}");
}

/// The workers' shards would cut groups. The weights are therefore dequantised, and a note says so.
#[test]
fn checkpoints_are_dequantised_on_two_gpus() {
    let (form, model, kinds) = MODELS[0];
    let directory = tempfile::tempdir().unwrap();
    let files = checkpoint(form, model, directory.path());
    let options = Options { device: Device::Emulator, tensor_parallel_size: 2, ..Options::default() };
    let llm = Llm::load(&files, &options).unwrap();
    let notes = llm.device().notes.join(" ");
    assert!(llm.device().quantised.is_empty() && notes.contains(&kinds[0].to_string()), "{notes}");
}

/// Quantises the bundled model's projections to FP8, and scores its own greedy stories.
#[test]
fn the_bundled_models_stories_stay_likely_in_fp8() {
    let files = ModelFiles::bundled();
    let original = scores(&mut load(&files, Options::default()), &stories());
    let mut weights = files.weights(None).unwrap();
    let names: Vec<(String, Vec<usize>)> =
        weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap().to_vec())).collect();
    let mut tensors = Vec::new();
    for (name, shape) in names {
        let tensor = weights.take(&name, &shape).unwrap().to_dtype(DType::F32);
        let module = name.strip_suffix(".weight").filter(|module| shape.len() == 2 && !module.contains("embed"));
        let Some(module) = module else {
            tensors.push((name, Dtype::F32, shape, tensor.bytes().to_vec()));
            continue;
        };
        let elements = tensor.elements().to_f32();
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for row in elements.chunks(shape[1]) {
            let scale = row.iter().fold(0f32, |most, x| most.max(x.abs())) / Fp8::LARGEST;
            codes.extend(row.iter().map(|x| Fp8::encode(x / scale)));
            scales.extend(scale.to_le_bytes());
        }
        tensors.push((format!("{module}.weight_scale"), Dtype::F32, vec![shape[0], 1], scales));
        tensors.push((name, Dtype::F8_E4M3, shape, codes));
    }
    let directory = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "config.json"] {
        if let Some(text) = files.read(file).unwrap() {
            fs::write(directory.path().join(file), text).unwrap();
        }
    }
    let config = fs::read_to_string(directory.path().join("config.json")).unwrap();
    let config = config.replacen('{', r#"{"quantization_config": {"quant_method": "fp8"}, "#, 1);
    fs::write(directory.path().join("config.json"), config).unwrap();
    let mut llm = load(&write(directory.path(), &tensors), Options::default());
    assert!(!llm.device().quantised.is_empty());
    let read = scores(&mut llm, &stories());
    let (drift, worst) = difference(&read, &original);
    let (was, is) = (perplexity(&original), perplexity(&read));
    println!("fp8: perplexity {is} for {was}, drift {drift} {worst}, {} tokens", read.len());
    assert!(is / was < 1.01 && drift > 0.0, "{is} for {was}");
}

/// The numbers of e2m1.
const NUMBERS: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Rounds 32 elements to MXFP4. Returns the bytes with two codes each, the scale and the rounded elements.
fn mxfp4_group(x: &[f32]) -> (Vec<u8>, u8, Vec<f32>) {
    let most = x.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
    let power = most.log2().floor() as i32 - 2;
    let scale = 2f32.powi(power);
    let distance = |x: f32, code: usize| (x / scale - NUMBERS[code]).abs();
    let code = |x: f32| (0..16).min_by(|a, b| distance(x, *a).total_cmp(&distance(x, *b))).unwrap();
    let codes: Vec<usize> = x.iter().map(|x| code(*x)).collect();
    let pairs = codes.chunks(2).map(|pair| (pair[0] | pair[1] << 4) as u8).collect();
    (pairs, (power + 127) as u8, codes.iter().map(|code| scale * NUMBERS[*code]).collect())
}

/// Writes the committed gpt-oss with experts in MXFP4, as published checkpoints have them, and the same model with the
/// elements of these experts. Also returns the elements, with outputs as rows.
fn mxfp4_gpt_oss(directory: &Path, exact: &Path) -> ([ModelFiles; 2], Vec<(String, Vec<f32>)>) {
    let (mut quantised, mut plain, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors(&model_dir("gpt-oss").join("model.safetensors")) {
        let &[experts, inputs, outputs] = shape.as_slice() else {
            quantised.push((name.clone(), dtype, shape.clone(), bytes.clone()));
            plain.push((name, dtype, shape, bytes));
            continue;
        };
        let element =
            |at: usize| f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])) << 16);
        let (mut blocks, mut scales, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for (e, output) in (0..experts).flat_map(|e| (0..outputs).map(move |output| (e, output))) {
            let row: Vec<f32> = (0..inputs).map(|input| element((e * inputs + input) * outputs + output)).collect();
            for group in row.chunks(32) {
                let (pairs, scale, elements) = mxfp4_group(group);
                blocks.extend(pairs);
                scales.push(scale);
                rows.extend(elements);
            }
        }
        let groups = vec![experts, outputs, inputs / 32];
        quantised.push((format!("{name}_blocks"), Dtype::U8, [&groups[..], &[16]].concat(), blocks));
        quantised.push((format!("{name}_scales"), Dtype::U8, groups, scales));
        let at = |e: usize, input: usize, output: usize| (e * outputs + output) * inputs + input;
        let each = (0..experts * inputs).flat_map(|row| (0..outputs).map(move |output| (row, output)));
        let transposed = each.flat_map(|(row, output)| rows[at(row / inputs, row % inputs, output)].to_le_bytes());
        plain.push((name.clone(), Dtype::F32, shape, transposed.collect()));
        all.push((name, rows));
    }
    let config = fs::read_to_string(model_dir("gpt-oss").join("config.json")).unwrap();
    let method = r#"{"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "#;
    for (directory, config) in [(directory, config.replacen('{', method, 1)), (exact, config.clone())] {
        copy(&model_dir("gpt-oss"), &["tokenizer.json", "tokenizer_config.json"], directory);
        fs::write(directory.join("config.json"), config).unwrap();
    }
    ([write(directory, &quantised), write(exact, &plain)], all)
}

#[test]
fn gpt_oss_in_mxfp4_has_the_tokens_of_its_elements() {
    let (directory, exact) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (both, experts) = mxfp4_gpt_oss(directory.path(), exact.path());
    let params = SamplingParams { max_tokens: 24, ignore_eos: true, ..SamplingParams::default() };
    let prompts = family_golden(&model_dir("gpt-oss")).prompts;
    let requests = || prompts.iter().map(|prompt| (Prompt::Tokens(prompt.ids.clone()), params.clone()));
    let tokens = |files: &ModelFiles, dtype| -> Vec<Vec<u32>> {
        let done = complete(&mut load(files, Options { dtype, ..Options::default() }), requests());
        done.into_iter().map(|mut done| done.outputs.remove(0).tokens).collect()
    };
    let [quantised, plain] = &both;
    // Elements of MXFP4 are exact in bf16.
    let exact = tokens(plain, Some(DType::Bf16));
    assert_eq!(tokens(quantised, Some(DType::Bf16)), exact);
    // Products with MXFP4 round activations, which later changes a choice of experts.
    let rounded = tokens(quantised, None);
    assert!(rounded.iter().zip(&exact).all(|(a, b)| a[..4] == b[..4]), "{rounded:?}, not {exact:?}");
    // Files of llama.cpp keep the experts' groups, and have gate and up in tensors of their own.
    let path = directory.path().join("model.gguf");
    engine::quantize(quantised, QuantType::Q8_0, &path, |_, _| {}).unwrap();
    let mut weights = ModelFiles::gguf(&path).unwrap().weights(None).unwrap();
    let mut take = |name: &str| {
        let shape = weights.shape(name).unwrap().to_vec();
        let tensor = weights.take(name, &shape).unwrap();
        assert_eq!(tensor.quantised(), Some(QuantType::MXFP4), "{name}");
        tensor.to_dtype(DType::F32).elements().to_f32()
    };
    for (name, want) in experts {
        let name = name.strip_prefix("model.").unwrap();
        if !name.ends_with("gate_up_proj") {
            assert_eq!(take(&format!("{name}.weight")), *want, "{name}");
            continue;
        }
        for (part, first) in [("gate", 0), ("up", 1)] {
            let own: Vec<f32> = want.chunks(64).skip(first).step_by(2).flatten().copied().collect();
            assert_eq!(take(&format!("{}.weight", name.replace("gate_up", part))), own, "{name}");
        }
    }
}
