//! The addresses of the hub and its cache.

use std::path::PathBuf;
use std::{fmt, fs};

/// The addresses of the hub and its cache, and how to use them.
#[derive(Clone)]
pub struct HubSettings {
    /// The cache directory, with one folder per model.
    pub cache_dir: PathBuf,
    /// The hub's address.
    pub endpoint: String,
    /// The access token, for models that need one.
    pub token: Option<String>,
    /// Whether to avoid all network requests.
    pub offline: bool,
}

/// Omits the token, which must not appear in logs.
impl fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubSettings")
            .field("cache_dir", &self.cache_dir)
            .field("endpoint", &self.endpoint)
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl HubSettings {
    /// Reads the settings of Hugging Face's own tools: `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_HUB_OFFLINE`, and the token file that `hf auth login` writes.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var_os(name).and_then(|value| value.into_string().ok()))
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let home = || var("HOME").map(PathBuf::from).or_else(std::env::home_dir).unwrap_or_default();
        let hf_home = var("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = var("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| home().join(".cache"));
            cache.join("huggingface")
        });
        let token_file = || fs::read_to_string(hf_home.join("token")).ok();
        HubSettings {
            cache_dir: var("HF_HUB_CACHE").map(PathBuf::from).unwrap_or_else(|| hf_home.join("hub")),
            endpoint: var("HF_ENDPOINT")
                .unwrap_or_else(|| "https://huggingface.co".into())
                .trim_end_matches('/')
                .into(),
            token: var("HF_TOKEN")
                .or_else(token_file)
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            offline: var("HF_HUB_OFFLINE")
                .is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn settings_come_from_the_environment() {
        let vars = |pairs: &'static [(&'static str, &'static str)]| {
            HubSettings::from_vars(move |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let plain = vars(&[("HOME", "/h")]);
        assert_eq!(plain.cache_dir, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert!(!plain.offline && plain.token.is_none());
        let set = vars(&[
            ("HF_HOME", "/x"),
            ("HF_ENDPOINT", "http://127.0.0.1:1/"),
            ("HF_TOKEN", " t\n"),
            ("HF_HUB_OFFLINE", "yes"),
        ]);
        assert_eq!(set.cache_dir, Path::new("/x/hub"));
        assert_eq!(set.endpoint, "http://127.0.0.1:1");
        assert_eq!(set.token.as_deref(), Some("t"));
        assert!(set.offline);
        assert_eq!(vars(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/x")]).cache_dir, Path::new("/c"));
        assert!(!vars(&[("HF_HUB_OFFLINE", "0")]).offline);
    }
}
