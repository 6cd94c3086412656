//! The tensors of a model, by name.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::stored::{Bytes, StoredTensor, StoredType};
use super::{pickle, safetensors, spelling};
use crate::error::{Error, Result};
use crate::quantised::QuantType;
use crate::tensor::{DType, HostTensor};

/// A callback with the number of bytes taken so far and of all bytes. The second field is the latter.
struct Progress(Box<dyn FnMut(usize, usize)>, usize);

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// The tensors of one model. Each tensor is read when the model takes it, and never if the model does not need it.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    tensors: HashMap<String, StoredTensor>,
    requested: Option<DType>,
    prevailing: DType,
    /// The quantised types that occur.
    quantised: Vec<QuantType>,
    /// Number of quantised tensors without a supported type. They are decoded to elements when taken.
    widened: usize,
    /// Whether quantised matrices stay quantised even if other tensors are rounded.
    keeps_quantised: bool,
    /// Whether tensors are mapped from their files where possible, rather than copied.
    mapped: bool,
    /// Whether missing tensors are replaced by zeros.
    invents: bool,
    /// Whether every projection's rows are its outputs, including GPT-2's.
    rows_are_outputs: bool,
    /// Bytes of the tensors taken so far, as stored.
    taken: usize,
    progress: Option<Progress>,
}

impl Weights {
    pub(super) fn new(path: &Path, tensors: Vec<(String, StoredTensor)>, requested: Option<DType>) -> Result<Self> {
        let mut elements = [(DType::F32, 0usize), (DType::F16, 0), (DType::Bf16, 0)];
        let (mut quantised, mut widened) = (Vec::new(), 0);
        for (_, tensor) in &tensors {
            // The model's type is determined by tensors that are stored whole, not by assembled ones.
            let is_assembled = matches!(tensor.bytes, Bytes::Assembled(_));
            let alike = match tensor.dtype {
                StoredType::Float(_) if is_assembled => {
                    widened += 1;
                    continue;
                }
                StoredType::Float(dtype) => dtype,
                StoredType::Quantised(kind) => {
                    if !quantised.contains(&kind) {
                        quantised.push(kind);
                    }
                    if is_assembled {
                        continue;
                    }
                    DType::F16
                }
                StoredType::Other(_) => continue,
            };
            for (dtype, count) in &mut elements {
                if *dtype == alike {
                    *count = count.saturating_add(tensor.elements());
                }
            }
        }
        let prevailing = elements.into_iter().filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count);
        let Some((prevailing, _)) = prevailing else {
            return Err(Error::weights(path, "there is no tensor of type f32, f16 or bf16"));
        };
        Ok(Weights {
            path: path.to_path_buf(),
            tensors: tensors.into_iter().collect(),
            requested,
            prevailing,
            quantised,
            widened,
            keeps_quantised: false,
            mapped: true,
            invents: false,
            rows_are_outputs: false,
            taken: 0,
            progress: None,
        })
    }

    /// Creates weights without files. Every tensor that is taken consists of zeros of type `dtype` and uses no memory.
    /// They serve to find out which kernels a model would launch.
    pub fn of_zeros(dtype: DType) -> Self {
        Weights {
            path: PathBuf::new(),
            tensors: HashMap::new(),
            requested: None,
            prevailing: dtype,
            quantised: Vec::new(),
            widened: 0,
            keeps_quantised: false,
            mapped: true,
            invents: true,
            rows_are_outputs: false,
            taken: 0,
            progress: None,
        }
    }

    /// Opens the tensors of one safetensors file.
    pub fn from_safetensors(path: impl AsRef<Path>, dtype: Option<DType>) -> Result<Self> {
        let path = path.as_ref();
        Self::new(path, safetensors::open(path)?, dtype)
    }

    /// Opens the tensors of one PyTorch file.
    pub fn from_pickle(path: impl AsRef<Path>, dtype: Option<DType>) -> Result<Self> {
        let path = path.as_ref();
        Self::new(path, pickle::open(path)?, dtype)
    }

    /// The stored type that most elements have. Quantised elements count as f16 in a GGUF file, and do not count in
    /// other files.
    pub fn dtype(&self) -> DType {
        self.prevailing
    }

    /// The quantised types of tensors, without repetition. Empty if no tensor is quantised.
    pub fn quantised(&self) -> &[QuantType] {
        &self.quantised
    }

    /// Number of quantised tensors that become f32 elements when taken, because their group size is not a multiple of
    /// 32.
    pub fn widened(&self) -> usize {
        self.widened
    }

    /// Declares that every projection's rows are its outputs.
    pub(super) fn set_rows_are_outputs(&mut self) {
        self.rows_are_outputs = true;
    }

    /// Whether the rows of the projection weight `name` are its outputs. In Hugging Face's files, the rows of GPT-2's
    /// projections are inputs, unless they are quantised.
    pub fn rows_are_outputs(&self, name: &str) -> bool {
        let is_assembled = |tensor: &StoredTensor| matches!(tensor.bytes, Bytes::Assembled(_));
        self.rows_are_outputs || self.tensors.get(name).is_some_and(is_assembled)
    }

    /// Rounds tensors to a 16-bit type when they are taken, from now on.
    pub fn round_to(&mut self, dtype: DType) {
        self.requested = Some(dtype);
    }

    /// Keeps quantised matrices quantised from now on, even if other tensors are rounded.
    pub fn keep_quantised(&mut self) {
        self.keeps_quantised = true;
    }

    /// Copies tensors into memory when they are taken, from now on. Loaded tensors then do not depend on their files.
    pub fn copy_to_memory(&mut self) {
        self.mapped = false;
    }

    /// Calls `progress` after each tensor is taken, with the bytes taken so far and the bytes of all tensors.
    pub fn on_progress(&mut self, progress: impl FnMut(usize, usize) + 'static) {
        self.progress = Some(Progress(Box::new(progress), self.taken + self.bytes(None)));
    }

    /// Bytes of the remaining tensors, as stored or with elements of a given size.
    pub fn bytes(&self, element: Option<usize>) -> usize {
        self.tensors.values().map(|tensor| tensor.bytes(element)).fold(0, usize::saturating_add)
    }

    /// Whether a tensor of that name remains.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a remaining tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// The quantised type of a remaining tensor.
    pub(super) fn quantised_type(&self, name: &str) -> Option<QuantType> {
        match self.tensors.get(name)?.dtype {
            StoredType::Quantised(kind) => Some(kind),
            _ => None,
        }
    }

    /// The names of the remaining tensors, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Removes `prefixes`, in order, from the names that begin with them. A model can then use the same names whichever
    /// class its checkpoint was saved from. A name stays as it is if another tensor already has the shorter name. Then
    /// gives names one spelling.
    pub fn strip_prefix(&mut self, prefixes: &[&str]) {
        for prefix in prefixes {
            let fitting: Vec<String> = self.tensors.keys().filter(|name| name.starts_with(prefix)).cloned().collect();
            for name in fitting {
                let rest = &name[prefix.len()..];
                if !rest.is_empty()
                    && !self.tensors.contains_key(rest)
                    && let Some(tensor) = self.tensors.remove(&name)
                {
                    self.tensors.insert(rest.to_owned(), tensor);
                }
            }
        }
        let names: Vec<(String, String)> =
            self.tensors.keys().filter_map(|name| Some((name.clone(), spelling::usual(name)?))).collect();
        for (name, usual) in names {
            if !self.tensors.contains_key(&usual)
                && let Some(tensor) = self.tensors.remove(&name)
            {
                self.tensors.insert(usual, tensor);
            }
        }
    }

    /// Takes the tensor `name`, which must have the given shape.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<HostTensor> {
        match self.take_optional(name, shape)? {
            Some(tensor) => Ok(tensor),
            None if self.invents => HostTensor::zeros(self.prevailing, shape.to_vec())
                .map_err(|error| Error::Memory(format!("for tensor {name} {shape:?} of zeros: {error}"))),
            None => {
                Err(Error::weights(&self.path, format!("tensor {name} {shape:?} is missing{}", self.in_place_of(name))))
            }
        }
    }

    /// Like [`Weights::take`], but decodes a quantised tensor to the type that tensors are rounded to, or else to f32.
    pub fn take_elements(&mut self, name: &str, shape: &[usize]) -> Result<HostTensor> {
        let tensor = self.take(name, shape)?;
        Ok(match tensor.quantised() {
            Some(_) => tensor.to_dtype(self.requested.unwrap_or(DType::F32)),
            None => tensor,
        })
    }

    /// Returns an addition to the error message for a missing weight, if its quantised parts exist instead.
    fn in_place_of(&self, name: &str) -> &'static str {
        let module = name.strip_suffix("weight").unwrap_or(name);
        let is_quantised = ["qweight", "weight_packed"].iter().any(|part| self.contains(&format!("{module}{part}")));
        if is_quantised { ": it is quantised, and config.json has no quantization_config that says how" } else { "" }
    }

    /// Like [`Weights::take`], but returns `None` if there is no such tensor.
    pub fn take_optional(&mut self, name: &str, shape: &[usize]) -> Result<Option<HostTensor>> {
        let Some(stored) = self.tensors.remove(name) else { return Ok(None) };
        if stored.shape != shape {
            return Err(Error::weights(
                &stored.path,
                format!("tensor {name} should have the shape {shape:?}, but has {:?}", stored.shape),
            ));
        }
        self.taken += stored.bytes(None);
        let tensor = stored.load(name, self.mapped)?;
        if let Some(Progress(progress, all)) = &mut self.progress {
            progress(self.taken, *all);
        }
        Ok(Some(match self.requested {
            // Widening has no advantage. A device that computes in f32 can read the stored type directly, even a
            // quantised one.
            None | Some(DType::F32) => tensor,
            Some(_) if self.keeps_quantised && tensor.quantised().is_some() && shape.len() >= 2 => tensor,
            Some(dtype) => tensor.to_dtype(dtype),
        }))
    }
}
