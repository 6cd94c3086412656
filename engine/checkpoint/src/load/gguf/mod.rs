//! GGUF files: a model's configuration, tokenizer, chat template and weights in one file or in several parts. llama.cpp
//! and most programs for small machines use this format, mostly with quantised weights.
//!
//! The metadata is converted to the text files of a Hugging Face directory, so that the rest of the program reads both
//! in the same way.

pub(in crate::load) mod adapter;
mod config;
mod decoder;
mod deepseek;
mod draft;
mod entries;
mod experts;
mod families;
mod file_type;
mod header;
mod kinds;
mod metadata;
mod names;
mod recurrent;
mod save;
mod sources;
mod splits;
mod tables;
mod tiling;
mod tokenizer;
mod types;
mod writer;

use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use file_type::FileType;
pub use header::describe;
pub use save::{GgufText, save};

use self::config::Shapes;
use self::header::Header;
use self::metadata::Metadata;
use super::stored::{Bytes, Form, StoredTensor, StoredType, TensorInfo, open_mapped};
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::tensor::DType;

/// Maximum number of parts. Names of parts have five digits.
const MAX_PARTS: u64 = 99_999;
/// Maximum number of factors for a rotation's frequencies.
const MAX_FACTORS: usize = 1 << 11;

/// An open GGUF model with all of its parts.
#[derive(Debug)]
pub(super) struct Gguf {
    path: PathBuf,
    metadata: Metadata,
    parts: Vec<Part>,
}

/// One open file.
#[derive(Debug)]
struct Part {
    path: Arc<Path>,
    file: Arc<File>,
    tensors: Vec<TensorInfo>,
}

impl Part {
    fn open(path: &Path) -> Result<(Self, Metadata)> {
        // Only the header's pages are read. The map is dropped when this function returns.
        let (file, map) = open_mapped(path)?;
        let Header { metadata, tensors } = header::read(&map).map_err(|reason| Error::weights(path, reason))?;
        Ok((Part { path: Arc::from(path), file: Arc::new(file), tensors }, metadata))
    }
}

impl Gguf {
    /// Opens the file at `path`, and the other parts of the model, which must be next to it.
    pub fn open(path: &Path) -> Result<Self> {
        let (first, metadata) = Part::open(path)?;
        let mut parts = vec![first];
        let count = metadata.integer("split.count")?.unwrap_or(1).max(1);
        if count > MAX_PARTS {
            return Err(Error::weights(path, format!("it claims to be one of {count} parts")));
        }
        if metadata.integer("split.no")?.unwrap_or(0) != 0 {
            return Err(Error::weights(
                path,
                "it is not the first part of its model; name the one that ends in -00001",
            ));
        }
        for number in 1..count {
            let path = part_path(path, number, count)?;
            let (part, metadata) = Part::open(&path)?;
            let says = (metadata.integer("split.no")?, metadata.integer("split.count")?);
            if says != (Some(number), Some(count)) {
                return Err(Error::weights(path, format!("it is not part {} of {count} of its model", number + 1)));
            }
            parts.push(part);
        }
        Ok(Gguf { path: path.to_path_buf(), metadata, parts })
    }

    /// The path of the first file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Generates the contents of the file `name` of a Hugging Face directory. Returns `None` if there would be no such
    /// file.
    pub fn text(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let json = match name {
            "config.json" => {
                let shape = |name: &str| self.tensor(name).map(|(_, tensor)| tensor.shape.clone());
                config::config(&self.metadata, &Shapes { shape: &shape, factors: &|name| self.factors(name) })?
            }
            "generation_config.json" => config::generation(&self.metadata)?,
            "tokenizer.json" => match self.metadata.text("tokenizer.huggingface.json")? {
                Some(text) => return Ok(Some(text.as_bytes().to_vec())),
                None => tokenizer::tokenizer(&self.metadata)?,
            },
            "tokenizer_config.json" => tokenizer::settings(&self.metadata)?,
            _ => return Ok(None),
        };
        Ok(Some(json.to_string().into_bytes()))
    }

    fn tensor(&self, name: &str) -> Option<(&Part, &TensorInfo)> {
        self.parts.iter().find_map(|part| Some((part, part.tensors.iter().find(|tensor| tensor.name == name)?)))
    }

    /// Reads a list of divisors of the rotation's frequencies, if the file has it.
    fn factors(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some((part, tensor)) = self.tensor(name) else { return Ok(None) };
        match *tensor.shape.as_slice() {
            [count] if count <= MAX_FACTORS && tensor.dtype == StoredType::Float(DType::F32) => {
                Ok(Some(part.stored(tensor, Form::Same).load(name, false)?.elements().to_f32()))
            }
            _ => Err(Error::weights(&part.path, format!("{name} is not a list of f32 factors"))),
        }
    }

    /// Opens the weights and gives them the names that models use.
    pub fn weights(&self, dtype: Option<DType>) -> Result<Weights> {
        let architecture = config::architecture(&self.metadata)?;
        let heads = |key: &str| -> Result<Option<NonZero<usize>>> {
            let count = self.metadata.integer_of_layers(&format!("{}.{key}", architecture.name()))?;
            Ok(count.and_then(|count| usize::try_from(count).ok()).and_then(NonZero::new))
        };
        let form = |name: &str| -> Result<Form> {
            if architecture.adds_one(name) {
                return Ok(Form::PlusOne);
            }
            if name.ends_with(".ssm_a") {
                return Ok(Form::NegativeExp);
            }
            if !architecture.interleaves(name) {
                return Ok(Form::Same);
            }
            let own = if name.contains(".attn_k.") { heads("attention.head_count_kv")? } else { None };
            let heads = own.map_or_else(|| heads("attention.head_count"), |own| Ok(Some(own)))?;
            Ok(heads.map_or(Form::Same, Form::Interleaved))
        };
        let mut tensors = Vec::new();
        for part in &self.parts {
            for tensor in &part.tensors {
                let Some(name) = architecture.model_name(&tensor.name) else { continue };
                tensors.push((name, part.stored(tensor, form(&tensor.name)?)));
            }
        }
        let mut weights = Weights::new(&self.path, tensors, dtype)?;
        weights.set_rows_are_outputs();
        Ok(weights)
    }
}

impl Part {
    fn stored(&self, tensor: &TensorInfo, form: Form) -> StoredTensor {
        StoredTensor {
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.clone(),
            form,
            path: Arc::clone(&self.path),
            bytes: Bytes::File { file: Arc::clone(&self.file), offset: tensor.offset as u64, len: tensor.len },
        }
    }
}

/// Returns the names of all parts of a model, given the name of its first part.
#[cfg(feature = "hub")]
pub(super) fn part_names(first: &str) -> Vec<String> {
    let count = first.strip_suffix(".gguf").and_then(|rest| rest.rsplit_once("-00001-of-"));
    match count.and_then(|(stem, count)| Some((stem, count.parse().ok()?))) {
        Some((stem, count)) if count <= MAX_PARTS => (0..count).map(|part| part_name(stem, part, count)).collect(),
        _ => vec![first.to_owned()],
    }
}

/// Returns the path of part `number`, counted from 0, in the directory of the first part.
fn part_path(first: &Path, number: u64, count: u64) -> Result<PathBuf> {
    let name = first.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    match name.strip_suffix(&format!("-00001-of-{count:05}.gguf")) {
        Some(stem) => Ok(first.with_file_name(part_name(stem, number, count))),
        None => Err(Error::weights(first, format!("it is one of {count} parts, but its name does not say so"))),
    }
}

/// Returns the name of part `number`, counted from 0, of `count`.
fn part_name(stem: &str, number: u64, count: u64) -> String {
    format!("{stem}-{:05}-of-{count:05}.gguf", number + 1)
}
