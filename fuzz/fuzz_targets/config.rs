//! Fuzzes the readers of `config.json` and `generation_config.json`.

#![no_main]

use engine::tools::config::{GenerationConfig, ModelConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = ModelConfig::from_json(data) {
        // Computations on a configuration that passes the checks are safe.
        assert!(config.heads % config.kv_heads == 0);
        let table = config.vocab_size.checked_mul(config.hidden).and_then(|size| size.checked_mul(4));
        assert!(table.is_some() && config.q_width() > 0 && config.kv_width() > 0);
    }
    let _ = GenerationConfig::from_json(data);
});
