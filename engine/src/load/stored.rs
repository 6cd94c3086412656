//! One tensor as a weight file holds it, before its bytes are read.

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

/// A tensor's type, shape and place. The file that named them has been checked to hold as many bytes.
#[derive(Debug)]
pub(super) struct StoredTensor {
    /// The element type.
    pub dtype: StoredType,
    /// The extents, outermost first.
    pub shape: Vec<usize>,
    /// With `Some` the rows of each of so many heads are in the order of GGUF's rotation, and are brought into this
    /// program's when they are loaded: see `gguf`.
    pub(super) interleaved: Option<NonZero<usize>>,
    pub(super) path: Arc<Path>,
    pub(super) bytes: Bytes,
}

/// The element type of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredType {
    /// A type of weights.
    Float(DType),
    /// Quantised weights.
    Quantised(QuantType),
    /// Another one, by name. Checkpoints have masks and counters that nothing asks for.
    Other(String),
}

#[derive(Debug)]
pub(super) enum Bytes {
    /// A range of a file.
    File { file: Arc<File>, offset: u64, len: usize },
    /// Bytes of the program.
    Static(&'static [u8]),
    /// A tensor of a pickle; its storage may have to be gathered.
    Pickled(Box<pytorch_reader::Tensor>),
    /// Several tensors that are put together.
    Assembled(Box<dyn Assembly>),
}

/// Several tensors of a file that are one weight.
pub(super) trait Assembly: fmt::Debug {
    /// The weight, in memory of its own.
    ///
    /// # Errors
    /// If the tensors cannot be read, or have contents that no weight has.
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
    /// Elements, which the reader of the file has checked not to overflow.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of the elements, as stored or with another size each; none of a type that no weight has.
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

    /// The tensor itself: if `mapped`, in the pages of its file where that is possible, else copied.
    pub fn load(self, name: &str, mapped: bool) -> Result<HostTensor> {
        let (heads, path) = (self.interleaved, Arc::clone(&self.path));
        let tensor = self.load_rows(name, mapped)?;
        Ok(match heads {
            None => tensor,
            Some(heads) => {
                // The rows of a head are its pairs; they belong half a head apart.
                let rows = tensor.shape().first().copied().unwrap_or(0);
                let half = rows / heads.get() / 2;
                if half * heads.get() * 2 != rows {
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
                _ => Err(Error::weights(path, format!("tensor {name} is quantised, and in no GGUF file"))),
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
                // The reader is not known to panic. If a damaged archive makes it, the request fails, not the process.
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

    /// The bytes of a tensor whose type no weight has by itself, with elements of so many bytes.
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
            _ => Err(Error::weights(path, format!("a tensor of type {dtype} is in no safetensors file"))),
        }
    }
}

/// Opens a file of weights and maps all of it, for its header to be read.
///
/// # Errors
/// If it cannot be read, or is empty.
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

/// A range of a file, in its pages or copied.
fn map_file(file: &File, path: &Path, (offset, len): (u64, usize), mapped: bool) -> Result<Mapping> {
    let map = if mapped { Mapping::of_file(file, path, offset, len) } else { Mapping::copy_of_file(file, offset, len) };
    map.map_err(|error| Error::io(path, error))
}
