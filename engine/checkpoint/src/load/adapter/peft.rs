//! PEFT directories: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::{LowRank, Pairs, load};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::load::text::read_small;
use crate::load::{safetensors, spelling};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Members that change an adapter's results in ways that are not implemented, and the values that change nothing. Members
/// that are absent or null change nothing either.
const REFUSED: [(&str, &[&str]); 12] = [
    ("modules_to_save", &["[]"]),
    ("use_dora", &["false"]),
    ("bias", &["\"none\""]),
    ("lora_bias", &["false"]),
    ("layer_replication", &["[]"]),
    ("trainable_token_indices", &["[]", "{}"]),
    ("target_parameters", &["[]"]),
    ("alora_invocation_tokens", &["[]"]),
    ("use_qalora", &["false"]),
    ("use_bdlora", &["false"]),
    ("arrow_config", &[]),
    ("lora_ga_config", &[]),
];

/// Ways to initialise an adapter that also change the model's own weights, which the adapter's file does not contain.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// The settings that the products depend on.
struct Settings {
    alpha: f64,
    stabilised: bool,
    /// Alphas of the modules whose names end with these names.
    alphas: Map<String, Value>,
}

/// Reads the products of the adapter in a directory.
pub(super) fn read(directory: &Path, config: &ModelConfig) -> Result<BTreeMap<String, LowRank>> {
    let refuse = |reason: String| Error::adapter(directory, reason);
    let text = read_small(&directory.join(CONFIG))?.ok_or_else(|| refuse(format!("it has no {CONFIG}")))?;
    let settings = Settings::parse(&text).map_err(refuse)?;
    let path = directory.join(WEIGHTS);
    if !path.exists() {
        return Err(refuse(format!("it has no {WEIGHTS}")));
    }
    let prefixes = config.family.weight_prefixes();
    let (mut pairs, mut alphas) = (Pairs::default(), BTreeMap::new());
    for (name, stored) in safetensors::open(&path)? {
        let halves = [(".lora_A.weight", false), (".lora_B.weight", true)];
        let half = halves.into_iter().find_map(|(end, is_b)| Some((name.strip_suffix(end)?, is_b)));
        let Some((module, is_b)) = half else {
            return Err(refuse(format!("tensor {name} is neither a lora_A nor a lora_B of a projection")));
        };
        let module = module.strip_prefix("base_model.model.").unwrap_or(module);
        let own = spelling::module(module, prefixes);
        alphas.insert(own.clone(), settings.alpha_of(module).map_err(refuse)?);
        pairs.add(own, is_b, &name, load(&name, stored)?).map_err(refuse)?;
    }
    let scale = |module: &str, rank: usize| {
        let alpha = alphas.get(module).copied().unwrap_or(settings.alpha);
        let rank = rank as f64;
        Ok(alpha / if settings.stabilised { rank.sqrt() } else { rank })
    };
    pairs.products(scale).map_err(refuse)
}

impl Settings {
    /// Reads the settings. The error is a sentence.
    fn parse(text: &[u8]) -> Result<Self, String> {
        let members: Map<String, Value> =
            serde_json::from_slice(text).map_err(|error| format!("{CONFIG} is not a JSON object: {error}"))?;
        let kind = members.get("peft_type").and_then(Value::as_str);
        if kind != Some("LORA") {
            let kind = kind.map_or_else(|| "missing".into(), |kind| format!("{:.40}", kind));
            return Err(format!("its peft_type is {kind}, and only LORA is supported"));
        }
        for (name, harmless) in REFUSED {
            let value = members.get(name).filter(|value| !value.is_null());
            if let Some(value) = value.filter(|value| !harmless.contains(&&*value.to_string())) {
                return Err(format!("{name} is {:.60}, which is not supported", value.to_string()));
            }
        }
        let begin = members.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default().to_lowercase();
        if CHANGES_BASE.iter().any(|way| begin.starts_with(way)) {
            return Err(format!(
                "init_lora_weights is {begin:.40}, which also changes the model's own weights; PEFT can convert such an \
                 adapter (path_initial_model_for_weight_conversion)"
            ));
        }
        let alpha = match members.get("lora_alpha") {
            None | Some(Value::Null) => 8.0,
            Some(value) => number("lora_alpha", value)?,
        };
        let stabilised = match members.get("use_rslora") {
            None | Some(Value::Null) => false,
            Some(value) => value.as_bool().ok_or("use_rslora should be true or false")?,
        };
        let alphas = match members.get("alpha_pattern") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(alphas)) => alphas.clone(),
            Some(_) => return Err("alpha_pattern should be an object".into()),
        };
        if let Some(pattern) = alphas.keys().find(|pattern| !is_plain(pattern)) {
            return Err(format!("alpha_pattern has {pattern:.60}, but only names of modules are supported there"));
        }
        Ok(Settings { alpha, stabilised, alphas })
    }

    /// The alpha of a module.
    fn alpha_of(&self, module: &str) -> Result<f64, String> {
        let is_end = |name: &str| module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let mut fitting = self.alphas.iter().filter(|(name, _)| is_end(name));
        let alpha = fitting.next().map(|(_, value)| number("alpha_pattern", value)).transpose()?;
        if fitting.next().is_some() {
            return Err(format!("alpha_pattern has several entries for {module}"));
        }
        Ok(alpha.unwrap_or(self.alpha))
    }
}

/// Whether a pattern is the name of a module, rather than another regular expression.
fn is_plain(pattern: &str) -> bool {
    pattern.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
}

fn number(name: &str, value: &Value) -> Result<f64, String> {
    value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| format!("{name} should be a number"))
}
