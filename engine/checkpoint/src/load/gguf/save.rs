//! Writing a model to a GGUF file with quantised weights.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use rayon::prelude::*;

use super::entries;
use super::file_type::{FileType, Role};
use super::names::Architecture;
use super::tiling::Tiling;
use super::writer::{self, Entries, Stored, Tensor};
use crate::config::{ModelConfig, ModelFamily};
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
    if architecture == Architecture::GraniteHybrid {
        weights.divide_shared_experts()?;
    }
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
    for source in sources {
        body.tensor(&source.data(&mut weights)?).map_err(unwritten)?;
    }
    body.finish().map_err(unwritten)?;
    Ok(())
}

/// Parts of the names of matrices that keep their type.
const KEPT: [&str; 4] = ["position_embd", "ffn_gate_inp.weight", "ssm_alpha", "ssm_beta"];

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
    /// The order of heads, if it is not the model's.
    tiling: Option<Tiling>,
    tensor: Tensor,
}

/// Lists the model's tensors that GGUF files have, in the order of layers.
fn sources(architecture: Architecture, config: &ModelConfig, kind: FileType, weights: &Weights) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for name in weights.names() {
        let (Some(file_name), Some(shape)) = (architecture.file_name(name), weights.shape(name)) else { continue };
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
        let is_kernel = file_name.ends_with("conv1d.weight") || file_name.ends_with("shortconv.conv.weight");
        if is_kernel {
            stored_shape.retain(|extent| *extent != 1);
        }
        if architecture == Architecture::GraniteHybrid {
            // llama.cpp has groups of heads. These models have one group.
            match file_name.rsplit('.').next() {
                Some("ssm_a" | "ssm_d") => stored_shape.push(1),
                _ if file_name.ends_with("ssm_norm.weight") => stored_shape.insert(0, 1),
                _ => {}
            }
        }
        let is_vector = shape.len() == 1;
        let stored = match *stored_shape.as_slice() {
            // Routers and the rates of states keep their type, because small errors in them matter.
            [_, _] if KEPT.iter().any(|part| file_name.contains(part)) => Stored::Float(weights.dtype()),
            _ if is_kernel || is_vector => Stored::Float(DType::F32),
            [_, .., cols] => kind
                .of_matrix(role(&file_name, config.tie_word_embeddings), config.layers, cols)
                .map_or(Stored::Float(weights.dtype()), Stored::Quantised),
            _ => Stored::Float(DType::F32),
        };
        let heads = if name.contains("q_proj") { config.heads } else { config.kv_heads };
        let interleaved = architecture.interleaves(&file_name).then_some(heads);
        let adds_one = architecture.adds_one(&file_name);
        let tiling = Tiling::of(architecture, config, &file_name);
        let tensor = Tensor { name: file_name, shape: stored_shape, stored };
        sources.push(Source {
            name: name.to_owned(),
            shape: shape.to_vec(),
            transposed,
            interleaved,
            adds_one,
            tiling,
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
    /// Returns the bytes to write.
    fn data(&self, weights: &mut Weights) -> Result<Vec<u8>> {
        let mut tensor = weights.take(&self.name, &self.shape)?;
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
            tensor = tensor.map(|x| x + 1.0);
        }
        if let Some(tiling) = self.tiling {
            tensor = tiling.apply(tensor);
        }
        if self.tensor.name.ends_with(".ssm_a") {
            tensor = tensor.map(|log| -log.exp());
        }
        match self.tensor.stored {
            Stored::Float(dtype) => Ok(tensor.to_dtype(dtype).bytes().to_vec()),
            Stored::Quantised(kind) => self.quantised(kind, tensor),
        }
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
