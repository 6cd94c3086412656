//! A substitute for `hub` in programs built without it.

use std::path::PathBuf;

use super::settings::HubSettings;
use crate::error::{Error, Result};

/// Refuses the model `id`.
pub(super) fn fetch(id: &str, _progress: bool, settings: &HubSettings) -> Result<PathBuf> {
    fetch_config(id, settings)
}

/// Refuses the model `id`.
pub(super) fn fetch_config(id: &str, _settings: &HubSettings) -> Result<PathBuf> {
    Err(Error::Hub(format!(
        "{id} cannot be loaded: it is not a directory, and this program was built without the feature `hub`, which fetches \
         models by their name"
    )))
}

pub(super) mod gguf {
    //! A substitute for `hub::gguf`.

    use super::{HubSettings, PathBuf, Result};

    /// Refuses the model `id`.
    pub fn fetch(id: &str, _wanted: &str, _progress: bool, settings: &HubSettings) -> Result<PathBuf> {
        super::fetch_config(id, settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_model_is_refused_in_one_sentence() {
        let refused = fetch("facebook/opt-125m", true, &HubSettings::from_env()).unwrap_err().to_string();
        let start = "facebook/opt-125m cannot be loaded: it is not a directory, and this program was built without the feature `hub`";
        assert!(refused.starts_with(start) && refused.lines().count() == 1, "{refused}");
        assert!(gguf::fetch("a/b", "c.gguf", true, &HubSettings::from_env()).is_err());
    }
}
