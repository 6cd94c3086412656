//! Adapters in GGUF files, as llama.cpp's `convert_lora_to_gguf.py` writes them.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::Path;

use super::names::Architecture;
use super::{Form, Part, config};
use crate::config::{LayerMemory, ModelConfig};
use crate::error::{Error, Result};
use crate::load::adapter::{LowRank, Pairs, load};

/// Reads the products of the adapter in the file `path`, for a model with this configuration.
pub(in crate::load) fn read(path: &Path, model: &ModelConfig) -> Result<BTreeMap<String, LowRank>> {
    let (part, metadata) = Part::open(path)?;
    let refuse = |reason: String| Error::adapter(path, reason);
    let kind = |name: &str| Ok::<_, Error>(metadata.text(name)?.unwrap_or("missing").to_owned());
    for (name, want) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let kind = kind(name)?;
        if kind != want {
            return Err(refuse(format!("its {name} is {kind:.40}, but should be {want}")));
        }
    }
    let (architecture, own) = (config::architecture(&metadata)?, Architecture::of_model(model));
    if architecture != own {
        let [theirs, own] = [architecture, own].map(Architecture::name);
        return Err(refuse(format!("it is for models of the architecture {theirs}, but the model's is {own}")));
    }
    let alpha = metadata.float("adapter.lora.alpha")?.unwrap_or(0.0);
    let mut pairs = Pairs::default();
    for tensor in &part.tensors {
        let name = &tensor.name;
        let halves = [(".lora_a", false), (".lora_b", true)];
        let half = halves.into_iter().find_map(|(end, is_b)| Some((name.strip_suffix(end)?, is_b)));
        let module = half.and_then(|(weight, is_b)| Some((weight, architecture.model_name(weight)?, is_b)));
        let Some((weight, module, is_b)) = module else {
            return Err(refuse(format!("tensor {name} is neither a lora_a nor a lora_b of a projection")));
        };
        let module = module.strip_suffix(".weight").unwrap_or(&module).to_owned();
        if module.contains(".linear_attn.") {
            return Err(refuse(format!("it changes {module}, whose rows GGUF files reorder; use the PEFT directory")));
        }
        // The rows of `b` are the projection's, so files reorder them as they reorder the projection's.
        let form = match is_b && architecture.interleaves(weight) {
            true => heads(model, weight).map_or(Form::Same, Form::Interleaved),
            false => Form::Same,
        };
        pairs.add(module, is_b, name, load(name, part.stored(tensor, form))?).map_err(refuse)?;
    }
    // As in llama.cpp, an alpha of zero means a factor of one.
    let scale = |_: &str, rank: usize| Ok(if alpha == 0.0 { 1.0 } else { alpha / rank as f64 });
    pairs.products(scale).map_err(refuse)
}

/// The number of heads of the query or key projection `weight`.
fn heads(model: &ModelConfig, weight: &str) -> Option<NonZero<usize>> {
    if weight.contains(".attn_q.") {
        return NonZero::new(model.heads);
    }
    let layer: usize = weight.strip_prefix("blk.")?.split('.').next()?.parse().ok()?;
    let kv = model.memory_layers().get(layer).copied().and_then(LayerMemory::kv)?;
    NonZero::new(kv.heads)
}

/// The bytes of an adapter's file with these strings, alpha and tensors, for tests.
#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed unwrap is a failed test
pub(in crate::load) fn save_for_tests(
    texts: &[(&str, &str)],
    alpha: f32,
    tensors: &[(String, Vec<usize>, Vec<f32>)],
) -> Vec<u8> {
    use super::writer::{Entries, Stored, Tensor, header};
    use crate::tensor::DType;
    let mut entries = Entries::default();
    texts.iter().for_each(|(name, text)| entries.text(name, text));
    entries.f32("adapter.lora.alpha", alpha);
    let entry = |(name, shape, _): &(String, Vec<usize>, Vec<f32>)| Tensor {
        name: name.clone(),
        shape: shape.clone(),
        stored: Stored::Float(DType::F32),
    };
    let listed: Vec<Tensor> = tensors.iter().map(entry).collect();
    let mut body = header(Vec::new(), &entries, &listed).unwrap();
    for (_, _, elements) in tensors {
        body.tensor(bytemuck::cast_slice(elements)).unwrap();
    }
    body.finish().unwrap()
}
