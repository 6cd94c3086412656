//! Names of models: short names, hub ids, and names that must be paths.

use crate::error::{Error, Result};

/// Short names and their hub ids.
pub const SHORT_NAMES: &[(&str, &str)] = &[
    ("opt-125m", "facebook/opt-125m"),
    ("opt-350m", "facebook/opt-350m"),
    ("opt-1.3b", "facebook/opt-1.3b"),
    ("opt-2.7b", "facebook/opt-2.7b"),
    ("opt-6.7b", "facebook/opt-6.7b"),
    ("opt-13b", "facebook/opt-13b"),
    ("opt-30b", "facebook/opt-30b"),
    ("opt-66b", "facebook/opt-66b"),
    // The weights were never published. The configuration is built into `lab floor`.
    ("opt-175b", "facebook/opt-175b"),
    ("gpt2", "openai-community/gpt2"),
    ("gpt2-medium", "openai-community/gpt2-medium"),
    ("gpt2-large", "openai-community/gpt2-large"),
    ("gpt2-xl", "openai-community/gpt2-xl"),
    ("llama-7b", "huggyllama/llama-7b"),
    ("llama-13b", "huggyllama/llama-13b"),
    ("llama-30b", "huggyllama/llama-30b"),
    ("llama-65b", "huggyllama/llama-65b"),
    ("llama-2-7b", "meta-llama/Llama-2-7b-hf"),
    ("llama-2-13b", "meta-llama/Llama-2-13b-hf"),
    ("llama-2-70b", "meta-llama/Llama-2-70b-hf"),
    ("llama-2-7b-chat", "meta-llama/Llama-2-7b-chat-hf"),
    ("llama-2-13b-chat", "meta-llama/Llama-2-13b-chat-hf"),
    ("llama-2-70b-chat", "meta-llama/Llama-2-70b-chat-hf"),
    ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
    ("llama-3-70b", "meta-llama/Meta-Llama-3-70B"),
    ("llama-3-8b-instruct", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ("llama-3-70b-instruct", "meta-llama/Meta-Llama-3-70B-Instruct"),
    ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
    ("llama-3.1-70b", "meta-llama/Llama-3.1-70B"),
    ("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
    ("llama-3.1-70b-instruct", "meta-llama/Llama-3.1-70B-Instruct"),
    ("llama-3.2-1b", "meta-llama/Llama-3.2-1B"),
    ("llama-3.2-3b", "meta-llama/Llama-3.2-3B"),
    ("llama-3.2-1b-instruct", "meta-llama/Llama-3.2-1B-Instruct"),
    ("llama-3.2-3b-instruct", "meta-llama/Llama-3.2-3B-Instruct"),
    ("llama-3.3-70b-instruct", "meta-llama/Llama-3.3-70B-Instruct"),
    ("tinyllama", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    ("mistral-7b", "mistralai/Mistral-7B-v0.1"),
    ("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3"),
    ("mistral-7b-instruct", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("qwen2-0.5b", "Qwen/Qwen2-0.5B"),
    ("qwen2-1.5b", "Qwen/Qwen2-1.5B"),
    ("qwen2-7b", "Qwen/Qwen2-7B"),
    ("qwen2-72b", "Qwen/Qwen2-72B"),
    ("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B"),
    ("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B"),
    ("qwen2.5-3b", "Qwen/Qwen2.5-3B"),
    ("qwen2.5-7b", "Qwen/Qwen2.5-7B"),
    ("qwen2.5-14b", "Qwen/Qwen2.5-14B"),
    ("qwen2.5-32b", "Qwen/Qwen2.5-32B"),
    ("qwen2.5-72b", "Qwen/Qwen2.5-72B"),
    ("qwen2.5-0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    ("qwen2.5-1.5b-instruct", "Qwen/Qwen2.5-1.5B-Instruct"),
    ("qwen2.5-3b-instruct", "Qwen/Qwen2.5-3B-Instruct"),
    ("qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
    ("qwen2.5-14b-instruct", "Qwen/Qwen2.5-14B-Instruct"),
    ("qwen2.5-32b-instruct", "Qwen/Qwen2.5-32B-Instruct"),
    ("qwen2.5-72b-instruct", "Qwen/Qwen2.5-72B-Instruct"),
    ("qwen3-0.6b", "Qwen/Qwen3-0.6B"),
    ("qwen3-1.7b", "Qwen/Qwen3-1.7B"),
    ("qwen3-4b", "Qwen/Qwen3-4B"),
    ("qwen3-8b", "Qwen/Qwen3-8B"),
    ("qwen3-14b", "Qwen/Qwen3-14B"),
    ("qwen3-32b", "Qwen/Qwen3-32B"),
    ("qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
    ("qwen3.5-27b", "Qwen/Qwen3.5-27B"),
    ("qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B"),
    ("gemma-2-2b", "google/gemma-2-2b"),
    ("gemma-2-9b", "google/gemma-2-9b"),
    ("gemma-2-27b", "google/gemma-2-27b"),
    ("gemma-3-1b", "google/gemma-3-1b-pt"),
    ("gemma-3-4b", "google/gemma-3-4b-pt"),
    ("gemma-3-12b", "google/gemma-3-12b-pt"),
    ("gemma-3-27b", "google/gemma-3-27b-pt"),
    ("gemma-3-1b-instruct", "google/gemma-3-1b-it"),
    ("gemma-3-4b-instruct", "google/gemma-3-4b-it"),
    ("gemma-3-12b-instruct", "google/gemma-3-12b-it"),
    ("gemma-3-27b-instruct", "google/gemma-3-27b-it"),
    ("gemma-4-31b", "google/gemma-4-31B"),
    ("gemma-4-31b-instruct", "google/gemma-4-31B-it"),
    ("olmo-2-7b", "allenai/OLMo-2-1124-7B"),
    ("olmo-2-13b", "allenai/OLMo-2-1124-13B"),
    ("olmo-2-32b", "allenai/OLMo-2-0325-32B"),
    ("olmo-3-7b", "allenai/Olmo-3-1025-7B"),
    ("olmo-3-32b", "allenai/Olmo-3-1125-32B"),
    ("command-r7b", "CohereLabs/c4ai-command-r7b-12-2024"),
    ("smollm3-3b", "HuggingFaceTB/SmolLM3-3B"),
    ("phi-4", "microsoft/phi-4"),
    ("glm-4-9b", "zai-org/GLM-4-9B-0414"),
    ("granite-3.3-8b", "ibm-granite/granite-3.3-8b-instruct"),
    ("granite-3.1-3b-a800m", "ibm-granite/granite-3.1-3b-a800m-instruct"),
    ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
    ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B"),
    ("gpt-oss-20b", "openai/gpt-oss-20b"),
    ("gpt-oss-120b", "openai/gpt-oss-120b"),
    ("gemma-4-26b-a4b", "google/gemma-4-26B-A4B"),
    ("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite"),
    ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
    ("lfm2-1.2b", "LiquidAI/LFM2-1.2B"),
];

/// Whether a name ends like a GGUF file.
pub(super) fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name.to_ascii_lowercase().ends_with(".gguf")
}

/// Whether a GGUF file's name indicates a quantisation type such as `Q4_K_M`. If a model is split into parts, only the
/// first part matches.
#[cfg(feature = "hub")]
pub(super) fn has_type(file: &str, kind: &str) -> bool {
    let (file, kind) = (file.to_ascii_lowercase(), kind.to_ascii_lowercase());
    let Some(stem) = file.strip_suffix(".gguf") else { return false };
    let stem = match stem.rsplit_once("-of-") {
        Some((rest, _)) => match rest.strip_suffix("-00001") {
            Some(stem) => stem,
            None => return false,
        },
        None => stem,
    };
    stem.strip_suffix(&kind).is_some_and(|rest| rest.ends_with(['-', '.', '_', '/']) || rest.is_empty())
}

/// Splits a name such as `owner/name/file.gguf`, `owner/name:file.gguf` or `owner/name:Q4_K_M` into the hub id and the
/// file or type.
pub(super) fn hub_file(name: &str) -> Option<(&str, &str)> {
    let (id, file) = match name.split_once(':') {
        Some(parts) => parts,
        None => {
            let (owner, rest) = name.split_once('/')?;
            let (model, file) = rest.split_once('/').filter(|(_, file)| is_gguf(file))?;
            (&name[..owner.len() + 1 + model.len()], file)
        }
    };
    (!file.is_empty() && hub_id(id).is_ok()).then_some((id, file))
}

/// Whether a name can only be a path.
pub(super) fn looks_like_path(name: &str) -> bool {
    name.starts_with(['/', '.', '~'])
        || name.ends_with('/')
        || name.contains('\\')
        || name.matches('/').count() > 1
        || name.ends_with(".safetensors")
        || name.ends_with(".bin")
}

/// Returns the hub id for `name`, which may be a short name or a hub id.
pub(super) fn hub_id(name: &str) -> Result<String> {
    if let Some((_, id)) = SHORT_NAMES.iter().find(|(short, _)| short.eq_ignore_ascii_case(name)) {
        return Ok((*id).to_owned());
    }
    // The id becomes part of a path in the cache, so all other characters are refused.
    let valid = |part: &str| {
        (1..=96).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && !part.contains("..")
            && !part.contains("--")
    };
    match name.split_once('/') {
        Some((owner, model)) if valid(owner) && valid(model) => Ok(name.to_owned()),
        _ => {
            let shown: String = name.chars().take(120).collect();
            Err(Error::Hub(format!(
                "{shown:?} is neither a directory, nor a hub id (owner/name), nor a short name such as opt-125m, gpt2, \
                 llama-3.2-1b or qwen3-0.6b"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_ids_and_short_names_are_distinguished() {
        assert_eq!(hub_id("OPT-13b").unwrap(), "facebook/opt-13b");
        assert_eq!(hub_id("someone/some-model_1.0").unwrap(), "someone/some-model_1.0");
        for bad in ["", "nothing-known", "a/b/c", "../etc", "a/..", "a/b--c", "a b/c", "é/x", "a/", "/a"] {
            assert!(hub_id(bad).is_err(), "{bad}");
        }
        for path in ["./x", "/x", "../x", "x/", "a/b/c", "~/x", "."] {
            assert!(looks_like_path(path), "{path}");
        }
        assert!(!looks_like_path("facebook/opt-13b"));
    }

    #[test]
    fn hub_files_are_distinguished_from_paths() {
        assert_eq!(hub_file("a/b:c.gguf"), Some(("a/b", "c.gguf")));
        assert_eq!(hub_file("a/b:Q4_K_M"), Some(("a/b", "Q4_K_M")));
        assert_eq!(hub_file("a/b/c.gguf"), Some(("a/b", "c.gguf")));
        assert_eq!(hub_file("a/b/q4/c.gguf"), Some(("a/b", "q4/c.gguf")));
        for other in ["a/b", "a/b:", "../b/c.gguf", "/a/b.gguf", "a/b.gguf", "a.gguf", "C:c.gguf", "a/b/c"] {
            assert_eq!(hub_file(other), None, "{other}");
        }
    }

    #[cfg(feature = "hub")]
    #[test]
    fn files_are_found_by_their_types() {
        for file in ["m-Q4_K_M.gguf", "m.q4_k_m.gguf", "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf"] {
            assert!(has_type(file, "Q4_K_M"), "{file}");
        }
        for file in ["m-Q4_K_M.bin", "m-Q4_K_S.gguf", "m-IQ4_K_M.gguf", "m-Q4_K_M-00002-of-00002.gguf"] {
            assert!(!has_type(file, "Q4_K_M"), "{file}");
        }
    }

    #[test]
    fn every_short_name_has_a_valid_id() {
        for (short, id) in SHORT_NAMES {
            assert_eq!(hub_id(id).unwrap(), *id, "{short}");
        }
    }
}
