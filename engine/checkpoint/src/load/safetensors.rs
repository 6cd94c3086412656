//! safetensors files: a JSON header followed by the bytes of the tensors.
//!
//! Each tensor is mapped separately. A tensor that is converted or rearranged while loading therefore frees its pages
//! when it is dropped.

use std::path::Path;
use std::sync::Arc;

use ::safetensors::{Dtype, SafeTensors};

use super::stored::{Bytes, Form, StoredTensor, StoredType, TensorInfo, open_mapped};
use crate::error::{Error, Result};
use crate::tensor::DType;

/// Reads the header of a whole file. Every returned range is within `file`, and its length matches the tensor's type
/// and shape.
pub fn describe(file: &[u8]) -> std::result::Result<Vec<TensorInfo>, String> {
    let (header, metadata) = SafeTensors::read_metadata(file).map_err(|error| error.to_string())?;
    let start = header + size_of::<u64>();
    let mut described = Vec::new();
    for (name, info) in metadata.tensors() {
        let (from, to) = info.data_offsets;
        let range = start.checked_add(from).zip(start.checked_add(to));
        let Some((offset, end)) = range.filter(|(offset, end)| offset <= end && *end <= file.len()) else {
            return Err(format!("tensor {name} is outside the file"));
        };
        let dtype = match info.dtype {
            Dtype::F32 => StoredType::Float(DType::F32),
            Dtype::F16 => StoredType::Float(DType::F16),
            Dtype::BF16 => StoredType::Float(DType::Bf16),
            other => StoredType::Other(format!("{other:?}")),
        };
        described.push(TensorInfo { name, dtype, shape: info.shape.clone(), offset, len: end - offset });
    }
    Ok(described)
}

/// Opens the tensors of the file at `path`.
pub(super) fn open(path: &Path) -> Result<Vec<(String, StoredTensor)>> {
    // Only the header's pages are read. The map is dropped when this function returns.
    let (file, map) = open_mapped(path)?;
    let described = describe(&map).map_err(|reason| Error::weights(path, reason))?;
    let (file, path) = (Arc::new(file), Arc::from(path));
    Ok(stored(described, &path, |range| Bytes::File {
        file: Arc::clone(&file),
        offset: range.offset as u64,
        len: range.len,
    }))
}

/// Opens the tensors of a file that is part of the program.
pub(super) fn open_static(file: &'static [u8], path: &Path) -> Result<Vec<(String, StoredTensor)>> {
    let described = describe(file).map_err(|reason| Error::weights(path, reason))?;
    let path = Arc::from(path);
    Ok(stored(described, &path, |range| {
        Bytes::Static(file.get(range.offset..range.offset + range.len).unwrap_or_default())
    }))
}

fn stored(
    described: Vec<TensorInfo>,
    path: &Arc<Path>,
    bytes: impl Fn(&TensorInfo) -> Bytes,
) -> Vec<(String, StoredTensor)> {
    let one = |tensor: TensorInfo| {
        let bytes = bytes(&tensor);
        (
            tensor.name,
            StoredTensor { dtype: tensor.dtype, shape: tensor.shape, form: Form::Same, path: Arc::clone(path), bytes },
        )
    };
    described.into_iter().map(one).collect()
}
