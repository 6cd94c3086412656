//! A tensor in a weight file, before its bytes are read.

use std::fs::File;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use super::text::open_file;
use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::quantised::QuantType;
use crate::tensor::{DType, HostTensor};

/// A tensor's type, shape and location. Its file has been checked to have that many bytes.
#[derive(Debug)]
pub(super) struct StoredTensor {
    /// The element type.
    pub dtype: StoredType,
    /// The extents, outermost first.
    pub shape: Vec<usize>,
    /// How the elements in the file differ from the model's. Loading restores them.
    pub(super) form: Form,
    pub(super) path: Arc<Path>,
    pub(super) bytes: Bytes,
}

/// A tensor's entry in the header of a file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The tensor's name.
    pub name: String,
    /// The element type.
    pub dtype: StoredType,
    /// The extents, outermost first.
    pub shape: Vec<usize>,
    /// The offset of its bytes in the file.
    pub offset: usize,
    /// The number of bytes.
    pub len: usize,
}

/// How a tensor's elements in a file differ from the model's. Only GGUF files change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// They are equal.
    Same,
    /// The rows of each of this many heads are in the order of GGUF's rotation.
    Interleaved(NonZero<usize>),
    /// One is added to each element.
    PlusOne,
    /// An element `x` is stored as `-exp(x)`.
    NegativeExp,
}

/// The element type of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredType {
    /// A type of weights.
    Float(DType),
    /// Quantised weights.
    Quantised(QuantType),
    /// Another type, by name. Checkpoints contain masks and counters that no model uses.
    Other(String),
}

#[derive(Debug)]
pub(super) enum Bytes {
    /// A range of a file.
    File { file: Arc<File>, offset: u64, len: usize },
    /// Bytes that are part of the program.
    Static(&'static [u8]),
    /// A tensor of a pickle. Its storage may have to be gathered.
    Pickled(Box<pytorch_reader::Tensor>),
    /// Several tensors that are combined into one.
    Assembled(Box<dyn Assembly>),
}

/// Several tensors of a file that are combined into one weight.
pub(super) trait Assembly: fmt::Debug {
    /// Combines the tensors into the weight, in newly allocated memory.
    ///
    /// # Errors
    /// If the tensors cannot be read or their contents are invalid.
    fn load(self: Box<Self>) -> Result<HostTensor>;
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoredType::Float(dtype) => dtype.fmt(f),
            StoredType::Quantised(kind) => kind.fmt(f),
            StoredType::Other(name) => f.write_str(name),
        }
    }
}

impl StoredTensor {
    /// Number of elements. The reader of the file has checked that it does not overflow.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of the elements as stored, or with `element` bytes each. 0 for types that weights cannot have.
    pub fn bytes(&self, element: Option<usize>) -> usize {
        match self.dtype {
            StoredType::Float(dtype) => self.elements().saturating_mul(element.unwrap_or(dtype.size())),
            StoredType::Quantised(kind) => match element {
                Some(size) => self.elements().saturating_mul(size),
                None => self.elements() / kind.group() * kind.group_bytes(),
            },
            StoredType::Other(_) => 0,
        }
    }

    /// Loads the tensor. If `mapped` is set, it uses the pages of the file where possible. Otherwise it copies them.
    pub fn load(self, name: &str, mapped: bool) -> Result<HostTensor> {
        let (form, path) = (self.form, Arc::clone(&self.path));
        let tensor = self.load_rows(name, mapped)?;
        Ok(match form {
            Form::Same => tensor,
            Form::PlusOne => tensor.map(|element| element - 1.0),
            Form::NegativeExp => tensor.map(|element| (-element).ln()),
            Form::Interleaved(heads) => {
                // The rows of a head are interleaved in pairs. This program keeps the two rows of a pair half a head
                // apart.
                let rows = tensor.shape().first().copied().unwrap_or(0);
                let half = rows / heads.get() / 2;
                if rows == 0 || half * heads.get() * 2 != rows {
                    return Err(Error::weights(path, format!("tensor {name} has {rows} rows for {heads} heads")));
                }
                tensor.reordered(|row| {
                    let (head, at) = (row / (2 * half), row % (2 * half));
                    head * 2 * half + at % half * 2 + at / half
                })
            }
        })
    }

    fn load_rows(self, name: &str, mapped: bool) -> Result<HostTensor> {
        let StoredTensor { dtype, shape, path, bytes, .. } = self;
        let bytes = match bytes {
            Bytes::Assembled(parts) => return parts.load(),
            bytes => bytes,
        };
        if let StoredType::Quantised(kind) = dtype {
            return match bytes {
                Bytes::File { len: 0, .. } => Ok(HostTensor::owned_groups(kind, shape, Vec::new())),
                Bytes::File { file, offset, len } => {
                    Ok(HostTensor::mapped_groups(kind, shape, map_file(&file, &path, (offset, len), mapped)?))
                }
                _ => Err(Error::weights(path, format!("tensor {name} has a quantised type but is not in a GGUF file"))),
            };
        }
        let dtype = match dtype {
            StoredType::Float(dtype) => dtype,
            other => {
                return Err(Error::weights(path, format!("tensor {name} is of type {other}, which is not supported")));
            }
        };
        let size = shape.iter().try_fold(dtype.size(), |size, &extent| size.checked_mul(extent));
        let disagrees = || Error::weights(&path, format!("the bytes of tensor {name} do not fit its shape {shape:?}"));
        let size = size.ok_or_else(disagrees)?;
        match bytes {
            Bytes::Static(bytes) if bytes.len() == size => Ok(HostTensor::from_static(dtype, shape, bytes)),
            Bytes::File { len, .. } if len == size && len == 0 => Ok(HostTensor::copied(dtype, shape, &[])),
            Bytes::File { file, offset, len } if len == size => {
                let map = map_file(&file, &path, (offset, len), mapped)?;
                Ok(HostTensor::mapped(dtype, shape, map))
            }
            Bytes::Pickled(tensor) => {
                // The reader is not known to panic. If a damaged archive makes it panic, loading fails instead of the
                // process.
                let bytes = catch_unwind(AssertUnwindSafe(|| tensor.read()))
                    .map_err(|_| Error::weights(&path, format!("tensor {name} cannot be read")))?
                    .map_err(|error| Error::weights(&path, error.to_string()))?;
                if bytes.len() != size {
                    return Err(disagrees());
                }
                Ok(HostTensor::copied(dtype, shape, &bytes))
            }
            Bytes::Static(_) | Bytes::File { .. } | Bytes::Assembled(_) => Err(disagrees()),
        }
    }

    /// Maps the bytes of a tensor that is only part of a weight. Its elements have `element` bytes each.
    pub fn raw(self, element: usize) -> Result<Mapping> {
        let StoredTensor { dtype, shape, path, bytes, .. } = self;
        let size = shape.iter().try_fold(element, |size, &extent| size.checked_mul(extent));
        match bytes {
            Bytes::File { file, offset, len } if Some(len) == size && len > 0 => {
                map_file(&file, &path, (offset, len), true)
            }
            Bytes::File { .. } => Err(Error::weights(
                path,
                format!("the bytes of a tensor of type {dtype} do not fit its shape {shape:?}"),
            )),
            _ => Err(Error::weights(path, format!("a tensor of type {dtype} is not in a safetensors file"))),
        }
    }
}

/// Opens a weight file and maps all of it, so that its header can be read.
///
/// # Errors
/// If the file cannot be read or is empty.
pub(super) fn open_mapped(path: &Path) -> Result<(File, Mapping)> {
    let file = open_file(path).map_err(|error| Error::io(path, error))?;
    let length = file.metadata().map_err(|error| Error::io(path, error))?.len();
    if length == 0 {
        return Err(Error::weights(path, "the file is empty"));
    }
    let map = usize::try_from(length).map_err(io::Error::other).and_then(|all| Mapping::of_file(&file, path, 0, all));
    let map = map.map_err(|error| Error::io(path, error))?;
    Ok((file, map))
}

/// Maps or copies a range of a file.
fn map_file(file: &File, path: &Path, (offset, len): (u64, usize), mapped: bool) -> Result<Mapping> {
    let map = if mapped { Mapping::of_file(file, path, offset, len) } else { Mapping::copy_of_file(file, offset, len) };
    map.map_err(|error| Error::io(path, error))
}
