//! A model without its weights. Its configuration determines the launches.

use std::path::Path;

use engine::ModelFiles;
use engine::Result;
use engine::tools::config::ModelConfig;

/// Built-in configurations by their models' short names. They need neither files nor network.
const BUILT_IN: &[(&str, &[u8])] = &[
    ("opt-6.7b", include_bytes!("../configs/opt-6.7b.json")),
    ("opt-13b", include_bytes!("../configs/opt-13b.json")),
    ("opt-30b", include_bytes!("../configs/opt-30b.json")),
    ("opt-66b", include_bytes!("../configs/opt-66b.json")),
    ("opt-175b", include_bytes!("../configs/opt-175b.json")),
    ("llama-7b", include_bytes!("../configs/llama-7b.json")),
    ("llama-13b", include_bytes!("../configs/llama-13b.json")),
    ("llama-30b", include_bytes!("../configs/llama-30b.json")),
    ("llama-65b", include_bytes!("../configs/llama-65b.json")),
    ("llama-3-8b", include_bytes!("../configs/llama-3-8b.json")),
    ("llama-3-70b", include_bytes!("../configs/llama-3-70b.json")),
    ("qwen3-32b", include_bytes!("../configs/qwen3-32b.json")),
    ("gemma-2-9b", include_bytes!("../configs/gemma-2-9b.json")),
    ("gemma-2-27b", include_bytes!("../configs/gemma-2-27b.json")),
    ("gemma-3-1b", include_bytes!("../configs/gemma-3-1b.json")),
    ("gemma-3-4b", include_bytes!("../configs/gemma-3-4b.json")),
    ("gemma-3-12b", include_bytes!("../configs/gemma-3-12b.json")),
    ("gemma-3-27b", include_bytes!("../configs/gemma-3-27b.json")),
    ("gemma-4-31b", include_bytes!("../configs/gemma-4-31b.json")),
    ("olmo-2-7b", include_bytes!("../configs/olmo-2-7b.json")),
    ("olmo-2-13b", include_bytes!("../configs/olmo-2-13b.json")),
    ("olmo-2-32b", include_bytes!("../configs/olmo-2-32b.json")),
    ("olmo-3-7b", include_bytes!("../configs/olmo-3-7b.json")),
    ("olmo-3-32b", include_bytes!("../configs/olmo-3-32b.json")),
    ("command-r7b", include_bytes!("../configs/command-r7b.json")),
    ("smollm3-3b", include_bytes!("../configs/smollm3-3b.json")),
    ("phi-4", include_bytes!("../configs/phi-4.json")),
    ("glm-4-9b", include_bytes!("../configs/glm-4-9b.json")),
    ("granite-3.3-8b", include_bytes!("../configs/granite-3.3-8b.json")),
    ("mixtral-8x7b", include_bytes!("../configs/mixtral-8x7b.json")),
    ("qwen3-30b-a3b", include_bytes!("../configs/qwen3-30b-a3b.json")),
    ("gpt-oss-20b", include_bytes!("../configs/gpt-oss-20b.json")),
    ("gpt-oss-120b", include_bytes!("../configs/gpt-oss-120b.json")),
    ("gemma-4-26b-a4b", include_bytes!("../configs/gemma-4-26b-a4b.json")),
    ("granite-3.1-3b-a800m", include_bytes!("../configs/granite-3.1-3b-a800m.json")),
    ("deepseek-v2-lite", include_bytes!("../configs/deepseek-v2-lite.json")),
    ("deepseek-v3", include_bytes!("../configs/deepseek-v3.json")),
];

/// A model's name and shape.
pub struct ModelShape {
    /// A name to display.
    pub name: String,
    /// Its configuration.
    pub config: ModelConfig,
}

impl ModelShape {
    /// Finds the model that `name` stands for: a directory, a built-in configuration, or a hub model. A hub model's
    /// `config.json` is downloaded if it is not cached.
    ///
    /// # Errors
    /// [`engine::Error`] if there is no such model, or its configuration cannot be used.
    pub fn find(name: &str) -> Result<Self> {
        let built_in = BUILT_IN.iter().find(|built_in| built_in.0.eq_ignore_ascii_case(name));
        if let Some((name, text)) = built_in.filter(|_| !Path::new(name).exists()) {
            return Ok(ModelShape { name: (*name).to_owned(), config: ModelConfig::from_json(text)? });
        }
        let files = ModelFiles::resolve_config(Some(name))?;
        Ok(ModelShape { name: files.name().to_owned(), config: files.config()? })
    }
}
