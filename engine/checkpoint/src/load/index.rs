//! Finding the files with the weights in a directory: one file, or shards listed in an index.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::path::{Component, Path};

use serde::Deserialize;

use super::stored::StoredTensor;
use super::text::{open_file, read_small};
use super::weights::Weights;
use super::{packed, pickle, safetensors};
use crate::config::Quantization;
use crate::error::{Error, Result};
use crate::tensor::DType;

/// The format of weight files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Safetensors,
    Pickle,
}

impl Format {
    /// All formats, in order of preference.
    pub const ALL: [Format; 2] = [Format::Safetensors, Format::Pickle];

    /// The name of an unsharded file.
    pub fn single(self) -> &'static str {
        match self {
            Format::Safetensors => "model.safetensors",
            Format::Pickle => "pytorch_model.bin",
        }
    }

    /// The name of the index of shards.
    pub fn index(self) -> &'static str {
        match self {
            Format::Safetensors => "model.safetensors.index.json",
            Format::Pickle => "pytorch_model.bin.index.json",
        }
    }

    fn open(self, path: &Path) -> Result<Vec<(String, StoredTensor)>> {
        const POINTER: &[u8] = b"version https://git-lfs";
        let mut start = Vec::new();
        let file = open_file(path).map_err(|error| Error::io(path, error))?;
        file.take(POINTER.len() as u64).read_to_end(&mut start).map_err(|error| Error::io(path, error))?;
        if start == POINTER {
            return Err(Error::weights(
                path,
                "it is only a pointer to the file; `git lfs pull` fetches the file itself",
            ));
        }
        match self {
            Format::Safetensors => safetensors::open(path),
            Format::Pickle => pickle::open(path),
        }
    }
}

/// The index of a sharded checkpoint.
#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// Opens the weights in the directory `path`. `quantization` describes how they are quantised.
pub(super) fn open(path: &Path, dtype: Option<DType>, quantization: Option<&Quantization>) -> Result<Weights> {
    let weights = |path: &Path, tensors| match quantization {
        None => Weights::new(path, tensors, dtype),
        Some(quantization) => Weights::new(path, packed::assemble(tensors, quantization, path)?, dtype),
    };
    for format in Format::ALL {
        let single = path.join(format.single());
        if single.exists() {
            return weights(&single, format.open(&single)?);
        }
        let index = path.join(format.index());
        if let Some(text) = read_small(&index)? {
            return weights(path, open_shards(path, &index, &text, format)?);
        }
    }
    let [first, second] = Format::ALL.map(|format| format!("{} or {}", format.single(), format.index()));
    Err(Error::weights(path, format!("the directory has no weights ({first}, {second})")))
}

fn open_shards(directory: &Path, index: &Path, text: &[u8], format: Format) -> Result<Vec<(String, StoredTensor)>> {
    let map = parse(index, text)?;
    let mut tensors: HashMap<String, StoredTensor> = HashMap::new();
    for shard in shards(index, &map)? {
        let path = directory.join(shard);
        if !path.exists() {
            return Err(Error::weights(index, format!("its shard {shard} is missing")));
        }
        for (name, tensor) in format.open(&path)? {
            // If two shards contain a tensor of the same name, the index decides which one is used.
            let counts = map.get(&name).map_or_else(|| !tensors.contains_key(&name), |listed| listed == shard);
            if counts {
                tensors.insert(name, tensor);
            }
        }
    }
    if let Some((name, shard)) = map.iter().find(|(name, _)| !tensors.contains_key(*name)) {
        return Err(Error::weights(index, format!("the shard {shard} lacks the tensor {name}")));
    }
    Ok(tensors.into_iter().collect())
}

/// Returns the names of the shards in the text of an index.
#[cfg(feature = "hub")]
pub(super) fn shard_names(index: &Path, text: &[u8]) -> Result<Vec<String>> {
    let map = parse(index, text)?;
    Ok(shards(index, &map)?.into_iter().map(str::to_owned).collect())
}

fn parse(index: &Path, text: &[u8]) -> Result<HashMap<String, String>> {
    match serde_json::from_slice::<Index>(text) {
        Ok(parsed) if parsed.weight_map.is_empty() => Err(Error::weights(index, "its weight_map is empty")),
        Ok(parsed) => Ok(parsed.weight_map),
        Err(error) => Err(Error::weights(index, format!("it is not an index of shards: {error}"))),
    }
}

/// Returns the distinct files of an index. Fails if one of them is not directly in the index's directory.
fn shards<'a>(index: &Path, map: &'a HashMap<String, String>) -> Result<BTreeSet<&'a str>> {
    let names: BTreeSet<&str> = map.values().map(String::as_str).collect();
    for name in &names {
        let mut components = Path::new(name).components();
        let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
        if !plain || name.contains(['/', '\\', '\0']) {
            return Err(Error::weights(index, format!("it names {name:?}, which is not a file of its directory")));
        }
    }
    Ok(names)
}
