//! PyTorch's `.bin` files: a pickle that describes the tensors, and their storages.
//!
//! `pytorch_reader` interprets the pickle as data and executes nothing. It limits how much a file can make it allocate
//! (copies out of the memo, nesting, claimed sizes). It checks that every view is within its storage and gathers views
//! that are not contiguous. It reads the zip form of PyTorch 1.6 and the earlier forms.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use pytorch_reader::PytorchReader;

use super::stored::{Bytes, Form, StoredTensor, StoredType};
use crate::error::{Error, Result};
use crate::tensor::DType;

/// Opens the tensors of the file at `path`. Their bytes are read when they are loaded.
pub(super) fn open(path: &Path) -> Result<Vec<(String, StoredTensor)>> {
    // The reader is not known to panic. This protects against panics in the archive and inflate code that it uses.
    let reader = catch_unwind(AssertUnwindSafe(|| PytorchReader::new(path)))
        .map_err(|_| Error::weights(path, "the file is damaged"))?
        .map_err(|error| refusal(path, error))?;
    let path: Arc<Path> = Arc::from(path);
    let stored = |(name, tensor): (String, pytorch_reader::Tensor)| {
        let dtype = match tensor.dtype() {
            pytorch_reader::DType::F32 => StoredType::Float(DType::F32),
            pytorch_reader::DType::F16 => StoredType::Float(DType::F16),
            pytorch_reader::DType::BF16 => StoredType::Float(DType::Bf16),
            other => StoredType::Other(format!("{other:?}")),
        };
        let shape = tensor.shape().to_vec();
        let bytes = Bytes::Pickled(Box::new(tensor));
        (name, StoredTensor { dtype, shape, form: Form::Same, path: Arc::clone(&path), bytes })
    };
    Ok(reader.into_tensors().into_iter().map(stored).collect())
}

fn refusal(path: &Path, error: pytorch_reader::PytorchError) -> Error {
    match error {
        pytorch_reader::PytorchError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Error::io(path, error)
        }
        other => Error::weights(path, other.to_string()),
    }
}
