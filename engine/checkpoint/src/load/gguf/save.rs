//! Writing a model to a GGUF file with quantised weights.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use rayon::prelude::*;

use super::entries;
use super::file_type::{FileType, Role};
use super::names::Architecture;
use super::writer::{self, Entries, Stored, Tensor};
use crate::config::{Latent, ModelConfig, ModelFamily};
use crate::error::{Error, Result};
use crate::load::{ModelFiles, Weights};
use crate::quantised::{QuantType, encode};
use crate::tensor::{DType, HostTensor};

/// A model's tokenizer for a GGUF file. [`save`] gets it from the caller because this crate does not load tokenizers.
#[derive(Clone, Debug)]
pub struct GgufText {
    /// The text of the `tokenizer.json`.
    pub tokenizer_json: String,
    /// Whether the tokenizer adds the BOS token to every text.
    pub adds_bos: bool,
}

/// Writes a model to the file `out`: its configuration, tokenizer, chat template and weights.
///
/// The matrices of projections and embeddings are rounded as `kind` says. Tables of positions, and matrices whose rows
/// are not a multiple of a group size, keep their type. Vectors become f32. `progress` is called with the bytes read so
/// far and the total.
///
/// # Errors
/// If the model cannot be loaded, the format cannot represent it, or the file cannot be written.
pub fn save(
    files: &ModelFiles,
    text: &GgufText,
    kind: impl Into<FileType>,
    out: &Path,
    progress: impl FnMut(usize, usize) + 'static,
) -> Result<()> {
    let (kind, config) = (kind.into(), files.config()?);
    let architecture = Architecture::of_model(&config);
    let mut weights = files.weights(None)?;
    weights.strip_prefix(config.family.weight_prefixes());
    weights.on_progress(progress);

    let mut written = Entries::default();
    written.text("general.architecture", architecture.name());
    written.text("general.name", files.name());
    written.u32("general.quantization_version", 2);
    written.u32("general.file_type", kind.number());
    entries::config(&mut written, architecture, &config)?;
    entries::generation(&mut written, &config, &files.generation_config()?);
    entries::tokenizer(&mut written, &text.tokenizer_json, config.vocab_size, text.adds_bos)?;
    if let Some(template) = files.chat_template()? {
        written.text("tokenizer.chat_template", &template);
    }

    let mut sources = sources(architecture, &config, kind, &weights)?;
    let factors = entries::rope_factors(&config);
    let mut tensors: Vec<Tensor> = Vec::new();
    tensors.extend(factors.iter().map(|(name, list)| {
        let shape = vec![list.len()];
        Tensor { name: (*name).to_owned(), shape, stored: Stored::Float(DType::F32) }
    }));
    tensors.extend(sources.iter_mut().map(|source| {
        let Tensor { name, shape, stored } = &source.tensor;
        Tensor { name: name.clone(), shape: shape.clone(), stored: *stored }
    }));

    let unwritten = |error| Error::Write { path: out.to_path_buf(), source: error };
    let file = BufWriter::new(File::create(out).map_err(unwritten)?);
    let mut body = writer::header(file, &written, &tensors).map_err(unwritten)?;
    for (_, list) in factors {
        body.tensor(bytemuck::cast_slice(&list)).map_err(unwritten)?;
    }
    let mut kept = HashMap::new();
    for source in sources {
        body.tensor(&source.data(&mut weights, &mut kept)?).map_err(unwritten)?;
    }
    body.finish().map_err(unwritten)?;
    Ok(())
}

/// A tensor of the model to be written.
struct Source {
    /// The model's name for it.
    name: String,
    shape: Vec<usize>,
    /// Whether to write the transpose.
    transposed: bool,
    /// With `Some(n)` the rows of each of `n` heads are written in the order of GGUF's rotation.
    interleaved: Option<usize>,
    /// Whether one is added to each element.
    adds_one: bool,
    /// With `Some`, this is the keys' or the values' part of the projection from latent vectors.
    latent: Option<Latent>,
    tensor: Tensor,
}

/// Lists the model's tensors that GGUF files have, in the order of layers.
fn sources(architecture: Architecture, config: &ModelConfig, kind: FileType, weights: &Weights) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for name in weights.names() {
        let (Some(file_name), Some(shape)) = (architecture.file_name(name), weights.shape(name)) else { continue };
        if let (Some(latent), Some(layer)) = (latent(config), file_name.strip_suffix("attn_kv_b.weight")) {
            sources.extend(latent_parts(name, layer, config, kind, (latent, weights)));
            continue;
        }
        if config.tie_word_embeddings && file_name.starts_with("output.") {
            continue;
        }
        let is_projection = shape.len() == 2 && name.rsplit('.').nth(1).is_some_and(|part| part.starts_with("c_"));
        let transposed =
            is_projection && matches!(config.family, ModelFamily::Gpt2(_)) && !weights.rows_are_outputs(name);
        let mut stored_shape = shape.to_vec();
        if transposed {
            stored_shape.reverse();
        }
        let stored = match *stored_shape.as_slice() {
            // A router chooses experts, so it keeps its type as in llama.cpp.
            [_, _] if file_name.starts_with("position_embd") || file_name.ends_with("ffn_gate_inp.weight") => {
                Stored::Float(weights.dtype())
            }
            [_, .., cols] => kind
                .of_matrix(role(&file_name, config.tie_word_embeddings), config.layers, cols)
                .map_or(Stored::Float(weights.dtype()), Stored::Quantised),
            _ => Stored::Float(DType::F32),
        };
        let heads = if name.contains("q_proj") { config.heads } else { config.kv_heads };
        let interleaved = architecture.interleaves(&file_name).then_some(heads);
        let adds_one = architecture.adds_one(&file_name);
        let tensor = Tensor { name: file_name, shape: stored_shape, stored };
        sources.push(Source {
            name: name.to_owned(),
            shape: shape.to_vec(),
            transposed,
            interleaved,
            adds_one,
            latent: None,
            tensor,
        });
    }
    if sources.is_empty() {
        return Err(Error::Unsupported("the model has no weights that a GGUF file can contain".into()));
    }
    let order = |source: &Source| {
        let name = &source.tensor.name;
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        (layer.is_some(), layer, name.clone())
    };
    sources.sort_by_cached_key(order);
    Ok(sources)
}

fn latent(config: &ModelConfig) -> Option<Latent> {
    match &config.family {
        ModelFamily::Decoder(decoder) => decoder.latent,
        ModelFamily::Opt(_) | ModelFamily::Gpt2(_) => None,
    }
}

/// The two stacks of matrices that files have in place of the projection from latent vectors to keys and values.
fn latent_parts(
    name: &str,
    layer: &str,
    config: &ModelConfig,
    kind: FileType,
    (latent, weights): (Latent, &Weights),
) -> [Source; 2] {
    let Latent { rank, unrotated, value, .. } = latent;
    let parts = [("attn_k_b", [rank, unrotated]), ("attn_v_b", [value, rank])];
    parts.map(|(part, [rows, cols])| {
        let stored = kind.of_matrix(Role::Projection, config.layers, cols);
        let stored = stored.map_or(Stored::Float(weights.dtype()), Stored::Quantised);
        let tensor = Tensor { name: format!("{layer}{part}.weight"), shape: vec![config.heads, rows, cols], stored };
        let shape = vec![config.heads * (unrotated + value), rank];
        let name = name.to_owned();
        Source { name, shape, transposed: false, interleaved: None, adds_one: false, latent: Some(latent), tensor }
    })
}

/// Returns the role of the matrix that files call `name`. If it `is_tied`, the embedding serves as the output matrix.
fn role(name: &str, is_tied: bool) -> Role {
    let inside = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let layer = inside.and_then(|(layer, part)| Some((layer.parse().ok()?, part)));
    match (name, layer) {
        ("output.weight", _) => Role::Output,
        ("token_embd.weight", _) if is_tied => Role::Output,
        (_, Some((layer, "attn_v.weight" | "attn_qkv.weight"))) => Role::Values { layer },
        (_, Some((layer, "ffn_down.weight" | "ffn_down_exps.weight"))) => Role::Down { layer },
        (_, Some(_)) => Role::Projection,
        (_, None) => Role::Embedding,
    }
}

impl Source {
    /// Returns the bytes to write. `kept` has parts of tensors that have been read, for other sources.
    fn data(&self, weights: &mut Weights, kept: &mut HashMap<String, HostTensor>) -> Result<Vec<u8>> {
        let mut tensor = match self.latent {
            Some(latent) => self.latent_part(latent, weights, kept)?,
            None => weights.take(&self.name, &self.shape)?,
        };
        if self.transposed {
            tensor = tensor.into_elements().transposed();
        }
        if let Some(heads) = self.interleaved {
            let half = tensor.shape()[0] / heads / 2;
            // Make the two rows of a pair adjacent.
            tensor = tensor.reordered(|row| {
                let (head, at) = (row / (2 * half), row % (2 * half));
                head * 2 * half + at % 2 * half + at / 2
            });
        }
        if self.adds_one {
            let elements = tensor.to_dtype(DType::F32).elements().to_f32();
            tensor = HostTensor::from_f32(self.shape.clone(), elements.into_iter().map(|x| x + 1.0).collect());
        }
        match self.tensor.stored {
            Stored::Float(dtype) => Ok(tensor.to_dtype(dtype).bytes().to_vec()),
            Stored::Quantised(kind) => self.quantised(kind, tensor),
        }
    }

    /// Returns the keys' or the values' part of the projection from latent vectors, and keeps the other.
    fn latent_part(
        &self,
        Latent { rank, unrotated, value, .. }: Latent,
        weights: &mut Weights,
        kept: &mut HashMap<String, HostTensor>,
    ) -> Result<HostTensor> {
        let (own, is_keys) = (&self.tensor, self.tensor.name.ends_with("attn_k_b.weight"));
        if let Some(part) = kept.remove(&own.name) {
            return Ok(part);
        }
        let heads = weights.take_elements(&self.name, &self.shape)?.to_dtype(DType::F32).into_matrices(unrotated + value);
        let rows = |range: std::ops::Range<usize>| heads.iter().map(move |head| head.rows(range.clone()));
        let flat = |parts: Vec<HostTensor>| parts.iter().flat_map(|part| part.elements().to_f32()).collect::<Vec<_>>();
        let keys = flat(rows(0..unrotated).map(|part| part.transposed()).collect());
        let keys = HostTensor::from_f32(vec![heads.len(), rank, unrotated], keys);
        let values = flat(rows(unrotated..unrotated + value).collect());
        let values = HostTensor::from_f32(vec![heads.len(), value, rank], values);
        let (part, other, name) = match is_keys {
            true => (keys, values, own.name.replace("attn_k_b", "attn_v_b")),
            false => (values, keys, own.name.replace("attn_v_b", "attn_k_b")),
        };
        kept.insert(name, other);
        Ok(part)
    }

    fn quantised(&self, kind: QuantType, tensor: HostTensor) -> Result<Vec<u8>> {
        if tensor.quantised() == Some(kind) {
            return Ok(tensor.bytes().to_vec());
        }
        let mut bytes = vec![0; self.tensor.bytes() as usize];
        let rows = tensor.shape()[0];
        let row_bytes = bytes.len() / rows.max(1);
        bytes.par_chunks_mut(row_bytes.max(1)).enumerate().try_for_each(|(i, to)| {
            let row = tensor.rows(i..i + 1).to_dtype(DType::F32).elements().to_f32();
            let mut groups = Vec::with_capacity(row_bytes);
            encode(kind, &row, &mut groups)
                .map_err(|reason| Error::Unsupported(format!("tensor {}: {reason}", self.name)))?;
            to.copy_from_slice(&groups);
            Ok::<(), Error>(())
        })?;
        Ok(bytes)
    }
}
