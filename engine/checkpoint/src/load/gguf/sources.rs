//! The tensors that are written to a GGUF file, and the tensors of the model that they come from.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::file_type::{FileType, Role};
use super::names::Architecture;
use super::tiling::Tiling;
use super::writer::{Stored, Tensor};
use crate::config::{Experts, Latent, ModelConfig, ModelFamily, Recurrent};
use crate::error::{Error, Result};
use crate::load::Weights;
use crate::quantised::{QuantType, encode};
use crate::tensor::{DType, HostTensor};

/// One or several tensors of the model that become one or two tensors of the file.
#[derive(Default)]
pub(super) struct Source {
    /// The model's names: one, or one for each expert.
    names: Vec<String>,
    /// The shape of each.
    shape: Vec<usize>,
    /// Whether to write the transposes of matrices.
    transposed: bool,
    /// With `Some(n)` the rows of each of `n` heads are written in the order of GGUF's rotation.
    interleaved: Option<usize>,
    /// Whether one is added to each element.
    adds_one: bool,
    /// How value heads are reordered. `None` if files have the model's order.
    tiling: Option<Tiling>,
    /// With `Some`, the tensors to write are the convolution's channels and the gates of a delta net.
    fused: Option<Recurrent>,
    /// With `Some`, the tensors to write are the projections from latent vectors to keys, transposed, and to values.
    latent: Option<Latent>,
    /// The tensors to write. Two are the gate and the up projections of experts, which are one tensor in the model, or the
    /// parts of a delta net's fused projection.
    pub tensors: Vec<Tensor>,
    /// Whether rows of gate and up alternate.
    alternating: bool,
}

/// Lists the model's tensors that GGUF files have, in the order of layers.
pub(super) fn sources(
    architecture: Architecture,
    config: &ModelConfig,
    kind: FileType,
    weights: &Weights,
) -> Result<Vec<Source>> {
    let (experts, recurrent, latent) = match &config.family {
        ModelFamily::Decoder(decoder) => (decoder.experts(), decoder.recurrent(), decoder.latent),
        _ => (None, None, None),
    };
    let list = List { architecture, config, kind, experts, recurrent, latent, weights };
    let all = merged(weights, experts.map_or(0, |experts| experts.count));
    let mut sources: Vec<Source> = all.into_iter().filter_map(|(name, names)| list.source(&name, names)).collect();
    if sources.is_empty() {
        return Err(Error::Unsupported("the model has no weights that a GGUF file can contain".into()));
    }
    if let Some(source) = sources.iter().find(|source| !source.fits()) {
        let (name, shape) = (&source.names[0], &source.shape);
        return Err(Error::Config(format!(
            "tensor {name} has the shape {shape:?}, which does not fit the configuration"
        )));
    }
    let order = |source: &Source| {
        let name = &source.tensors[0].name;
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        (layer.is_some(), layer, name.clone())
    };
    sources.sort_by_cached_key(order);
    Ok(sources)
}

/// Lists the model's tensors by name, each with its parts. Tensors of single experts are parts of one tensor of all
/// `count` experts.
fn merged<'a>(weights: &'a Weights, count: usize) -> BTreeMap<String, Vec<String>> {
    let part_of_expert = |name: &'a str| {
        let (layer, rest) = name.split_once(".experts.")?;
        let (expert, part) = rest.split_once('.')?;
        expert.parse::<usize>().ok().map(|_| (layer, part))
    };
    let mut all = BTreeMap::new();
    for name in weights.names() {
        match part_of_expert(name) {
            Some((layer, part)) => all
                .entry(format!("{layer}.experts.{part}"))
                .or_insert_with(|| (0..count).map(|expert| format!("{layer}.experts.{expert}.{part}")).collect()),
            None => all.entry(name.to_owned()).or_insert_with(|| vec![name.to_owned()]),
        };
    }
    all
}

/// The model to be listed.
struct List<'a> {
    architecture: Architecture,
    config: &'a ModelConfig,
    kind: FileType,
    experts: Option<&'a Experts>,
    recurrent: Option<Recurrent>,
    latent: Option<Latent>,
    weights: &'a Weights,
}

impl List<'_> {
    /// Returns the names of the tensors of the file that the model's tensor `name` becomes.
    fn file_names(&self, name: &str, is_split: bool, is_fused: bool) -> Option<Vec<String>> {
        // In a model without other experts, the shared one is the feed-forward layer.
        let own = if self.experts.is_none() { name.replace(".shared_expert.", ".") } else { name.to_owned() };
        let own_names = match (is_split, is_fused) {
            (_, true) => ["qkv", "z"].map(|part| own.replace("qkvz", part)).to_vec(),
            (true, false) => ["gate", "up"].map(|part| own.replace("gate_up", part)).to_vec(),
            (false, false) => vec![own],
        };
        own_names.iter().map(|name| self.architecture.file_name(name)).collect()
    }

    /// Returns the tensors of the file that the model's tensor `name` becomes. It consists of the tensors `names`.
    fn source(&self, name: &str, names: Vec<String>) -> Option<Source> {
        let List { architecture, config, experts, recurrent, latent, weights, .. } = *self;
        let shape = weights.shape(names.first()?)?.to_vec();
        let fused = recurrent.filter(|_| name.ends_with(".in_proj_qkvz.weight") && shape.len() == 2);
        // Only files of Gemma 4 have gate and up in one tensor.
        let is_gate_up = ["experts", "shared_expert"].iter().any(|of| name.contains(&format!(".{of}.gate_up_proj.")));
        let is_split = is_gate_up && architecture != Architecture::Gemma4;
        let file_names = self.file_names(name, is_split, fused.is_some())?;
        let file_name = &file_names[0];
        if let (Some(latent), Some(layer)) = (latent, file_name.strip_suffix("attn_kv_b.weight")) {
            return Some(self.latent(layer, names, shape, latent));
        }
        if config.tie_word_embeddings && file_name.starts_with("output.") {
            return None;
        }
        let alternating = experts.is_some_and(|experts| experts.alternating);
        let has_inputs_as_rows = match config.family {
            ModelFamily::Gpt2(_) => shape.len() == 2 && name.rsplit('.').nth(1).is_some_and(|it| it.starts_with("c_")),
            _ => alternating && shape.len() == 3,
        };
        let transposed = has_inputs_as_rows && !weights.rows_are_outputs(&names[0]);
        let mut stored_shape = shape.clone();
        if transposed {
            let last = stored_shape.len() - 1;
            stored_shape.swap(last - 1, last);
        }
        if names.len() > 1 {
            stored_shape.insert(0, names.len());
        }
        if is_split {
            // The first dimension is the experts'.
            *stored_shape.get_mut(usize::from(name.contains(".experts.")))? /= 2;
        }
        self.reshape(file_name, &mut stored_shape);
        if file_name.contains("ffn_gate_inp_shexp") {
            // It is a vector in files.
            stored_shape.retain(|extent| *extent != 1);
        }
        let stored = self.stored(file_name, &names[0], &stored_shape);
        let heads = if name.contains("q_proj") { config.heads } else { config.kv_heads };
        let (interleaved, adds_one) = (architecture.interleaves(file_name), architecture.adds_one(file_name));
        let tiling = recurrent.and_then(|layer| Tiling::of(architecture, layer, file_name));
        let tensor = |(which, name): (usize, String)| {
            let mut shape = stored_shape.clone();
            if let Some(layer) = fused {
                shape[0] = [layer.channels(), layer.inner()][which];
            }
            Tensor { name, shape, stored }
        };
        let tensors = file_names.into_iter().enumerate().map(tensor).collect();
        let interleaved = interleaved.then_some(heads);
        let source = Source { names, shape, transposed, interleaved, adds_one, tiling, fused, ..Source::default() };
        Some(Source { tensors, alternating, ..source })
    }

    /// Returns the two stacks of matrices of a layer that files have in place of the projection from latent vectors.
    fn latent(&self, layer: &str, names: Vec<String>, shape: Vec<usize>, latent: Latent) -> Source {
        let Latent { rank, unrotated, value, .. } = latent;
        let tensor = |part: &str, rows: usize, cols: usize| {
            let (name, shape) = (format!("{layer}{part}.weight"), vec![self.config.heads, rows, cols]);
            let stored = self.stored(&name, &names[0], &shape);
            Tensor { name, shape, stored }
        };
        let tensors = vec![tensor("attn_k_b", rank, unrotated), tensor("attn_v_b", value, rank)];
        Source { latent: Some(latent), tensors, names, shape, ..Source::default() }
    }

    /// Whether a tensor is never quantised. Small errors in routers change their choices, and small errors in the rates of
    /// states add up.
    fn stays_float(&self, file_name: &str) -> bool {
        let parts = [".ffn_gate_inp.", ".ssm_alpha.", ".ssm_beta.", ".ssm_ba.", ".ssm_norm."];
        parts.iter().chain(&KERNELS).any(|part| file_name.contains(part))
    }

    /// Gives a tensor of a layer with states the dimensions that llama.cpp expects.
    fn reshape(&self, file_name: &str, shape: &mut Vec<usize>) {
        if KERNELS.iter().any(|part| file_name.contains(part)) {
            shape.retain(|extent| *extent != 1);
        }
        // llama.cpp divides heads of Mamba-2 into groups. These models have one group.
        match file_name.split_once(".ssm_") {
            Some((_, "a" | "d")) if self.architecture == Architecture::GraniteHybrid => shape.push(1),
            Some((_, "norm.weight")) if self.architecture == Architecture::GraniteHybrid => shape.insert(0, 1),
            _ => {}
        }
    }

    /// Returns the type of the tensor `file_name` with this shape. `name` is a tensor of the model that it comes from.
    fn stored(&self, file_name: &str, name: &str, shape: &[usize]) -> Stored {
        let is_expert = file_name.contains("_exps.");
        if is_expert && self.weights.quantised_type(name) == Some(QuantType::MXFP4) {
            return Stored::Quantised(QuantType::MXFP4);
        }
        let kind = match self.kind {
            // In a model with experts, llama.cpp quantises only these to MXFP4.
            FileType::Of(QuantType::MXFP4) if self.experts.is_some() && !is_expert => FileType::Of(QuantType::Q8_0),
            kind => kind,
        };
        let own = Stored::Float(self.weights.dtype());
        match shape {
            [_, _] if file_name.starts_with("position_embd") => own,
            [_, .., cols] if file_name.ends_with(".weight") && !self.stays_float(file_name) => kind
                .of_matrix(role(file_name, self.config.tie_word_embeddings), self.config.layers, *cols)
                .map_or(own, Stored::Quantised),
            _ => Stored::Float(DType::F32),
        }
    }
}

/// Parts of the names of convolutions.
const KERNELS: [&str; 2] = [".ssm_conv1d.weight", ".shortconv.conv.weight"];

/// Returns the role of the matrix that files call `name`. If it `is_tied`, the embedding serves as the output matrix.
fn role(name: &str, is_tied: bool) -> Role {
    let inside = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let layer = inside.and_then(|(layer, part)| Some((layer.parse().ok()?, part)));
    match (name, layer) {
        ("output.weight", _) => Role::Output,
        ("token_embd.weight", _) if is_tied => Role::Output,
        (_, Some((layer, "attn_v.weight" | "attn_qkv.weight"))) => Role::Values { layer },
        (_, Some((layer, part))) if part.starts_with("ffn_down") => Role::Down { layer },
        (_, Some(_)) => Role::Projection,
        (_, None) => Role::Embedding,
    }
}

impl Source {
    /// Whether the tensor has the rows and columns that are reordered.
    fn fits(&self) -> bool {
        let pairs = |heads: usize| self.shape.first().is_some_and(|rows| *rows > 0 && rows.is_multiple_of(2 * heads));
        let of_heads = |latent: Latent| {
            let heads = self.tensors[0].shape[0];
            self.shape == [heads * (latent.unrotated + latent.value), latent.rank]
        };
        self.latent.is_none_or(of_heads)
            && self.fused.is_none_or(|layer| self.shape[0] == layer.channels() + layer.inner())
            && self.tiling.is_none_or(|tiling| tiling.fits(&self.shape))
            && self.interleaved.is_none_or(pairs)
    }

    /// Calls `write` with the bytes of each tensor.
    pub fn data(&self, weights: &mut Weights, mut write: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut parts = Vec::new();
        for name in &self.names {
            let tensor = weights.take(name, &self.shape)?;
            if let Some(Latent { unrotated, value, .. }) = self.latent {
                parts.extend(tensor.into_elements().into_matrices(unrotated + value));
                continue;
            }
            match *self.shape.as_slice() {
                // Matrices of experts. A convolution has matrices of one row.
                [_, rows, _] if rows > 1 => {
                    parts.extend(tensor.into_matrices(rows).into_iter().map(|part| self.converted(part)))
                }
                _ => parts.push(self.converted(tensor)),
            }
        }
        if let [tensor] = self.tensors.as_slice() {
            let mut bytes = Vec::new();
            parts.into_iter().try_for_each(|part| self.append(part, tensor.stored, &mut bytes))?;
            return write(&bytes);
        }
        for (which, tensor) in self.tensors.iter().enumerate() {
            let mut bytes = Vec::new();
            parts.iter().try_for_each(|both| self.append(self.half(both, which), tensor.stored, &mut bytes))?;
            write(&bytes)?;
        }
        Ok(())
    }

    /// Returns a tensor with the elements of the file.
    fn converted(&self, mut tensor: HostTensor) -> HostTensor {
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
        if self.tensors[0].name.ends_with(".ssm_a") {
            tensor = tensor.map(|log| -log.exp());
        }
        tensor
    }

    /// Returns the gate's half (0) or the up projection's (1): rows of an expert's matrix, or columns of the stacked
    /// biases. In a delta net, returns the channels (0) or the gates (1). Of a head's projection from latent vectors,
    /// returns the keys' part (0) or the values' part (1).
    fn half(&self, both: &HostTensor, which: usize) -> HostTensor {
        if let Some(Latent { unrotated, value, .. }) = self.latent {
            return match which {
                0 => both.rows(0..unrotated).transposed(),
                _ => both.rows(unrotated..unrotated + value),
            };
        }
        if let Some(layer) = self.fused {
            return match which {
                0 => both.gathered((0..layer.channels()).map(|channel| layer.fused_row(channel))),
                _ => both.gathered((0..layer.inner()).map(|element| layer.fused_gate(element))),
            };
        }
        let outputs = |both: &HostTensor| {
            let half = both.shape()[0] / 2;
            both.gathered((0..half).map(|row| if self.alternating { 2 * row + which } else { which * half + row }))
        };
        let is_stacked_bias = self.names.len() == 1 && self.shape.len() == 2 && self.names[0].contains(".experts.");
        if is_stacked_bias { outputs(&both.transposed()).transposed() } else { outputs(both) }
    }

    /// Appends the bytes of a tensor, or of one expert's part of it.
    fn append(&self, tensor: HostTensor, stored: Stored, bytes: &mut Vec<u8>) -> Result<()> {
        match stored {
            Stored::Float(dtype) => bytes.extend_from_slice(tensor.to_dtype(dtype).bytes()),
            Stored::Quantised(kind) if tensor.quantised() == Some(kind) => bytes.extend_from_slice(tensor.bytes()),
            Stored::Quantised(kind) => self.append_quantised(kind, &tensor, bytes)?,
        }
        Ok(())
    }

    fn append_quantised(&self, kind: QuantType, tensor: &HostTensor, bytes: &mut Vec<u8>) -> Result<()> {
        let (rows, cols) = (tensor.shape()[0], tensor.shape()[1]);
        let (start, row_bytes) = (bytes.len(), cols / kind.group() * kind.group_bytes());
        bytes.resize(start + rows * row_bytes, 0);
        bytes[start..].par_chunks_mut(row_bytes.max(1)).enumerate().try_for_each(|(i, to)| {
            let row = tensor.rows(i..i + 1).to_dtype(DType::F32).elements().to_f32();
            let mut groups = Vec::with_capacity(row_bytes);
            encode(kind, &row, &mut groups)
                .map_err(|reason| Error::Unsupported(format!("tensor {}: {reason}", self.names[0])))?;
            to.copy_from_slice(&groups);
            Ok(())
        })
    }
}
