//! Fuzzes quantised checkpoints. The first byte chooses the configuration, and the rest is the weight file.

#![no_main]

use std::cell::RefCell;
use std::fs;

use engine::ModelFiles;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const CONFIGS: [&str; 6] = [
    r#"{"quant_method": "awq", "bits": 4, "group_size": 32}"#,
    r#"{"quant_method": "gptq", "bits": 4, "group_size": 32}"#,
    r#"{"quant_method": "gptq", "bits": 4, "group_size": -1, "dynamic": {"+": {}}, "checkpoint_format": "gptq_v2"}"#,
    r#"{"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}"#,
    r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#,
    r#"{"quant_method": "fp8"}"#,
];

thread_local! {
    static DIRECTORY: RefCell<TempDir> = RefCell::new(TempDir::new().expect("a temporary directory"));
}

fuzz_target!(|data: &[u8]| {
    let Some((&form, file)) = data.split_first() else { return };
    let config = CONFIGS[usize::from(form) % CONFIGS.len()];
    DIRECTORY.with_borrow(|directory| {
        let config = format!(r#"{{"model_type": "llama", "quantization_config": {config}}}"#);
        fs::write(directory.path().join("config.json"), config).expect("a temporary file can be written");
        fs::write(directory.path().join("model.safetensors"), file).expect("a temporary file can be written");
        let files = ModelFiles::directory(directory.path()).expect("the directory is there");
        let Ok(mut weights) = files.weights(None) else { return };
        let tensors: Vec<_> =
            weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap_or_default().to_vec())).collect();
        for (name, shape) in tensors {
            let _ = weights.take(&name, &shape).map(|tensor| tensor.into_elements().elements().to_f32());
        }
    });
});
