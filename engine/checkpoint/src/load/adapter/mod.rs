//! LoRA adapters (Hu et al., 2021): for some projections of a model, two matrices whose low-rank product is added to the
//! projection's weight. An adapter is a PEFT directory or a GGUF file.
//!
//! An adapter is identified by its contents. Two adapters with the same name may differ, and their requests must never
//! share cached keys and values.

mod digest;
mod peft;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use self::digest::digest;
use super::gguf;
use super::stored::StoredTensor;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::tensor::{DType, Elements, HostTensor};

/// An adapter in host memory. It does not depend on its files any more.
#[derive(Debug)]
pub struct Adapter {
    /// The products, by the model's names of the projections that they are added to.
    pub products: BTreeMap<String, LowRank>,
    /// Identifies the adapter.
    pub digest: AdapterDigest,
}

/// A product `scale * b a` that is added to a projection's weight `[N, K]`.
pub struct LowRank {
    /// `[rank, K]`
    pub a: HostTensor,
    /// `[N, rank]`
    pub b: HostTensor,
    /// `alpha / rank`, or `alpha / sqrt(rank)` for a rank-stabilised adapter.
    pub scale: f32,
}

/// The SHA-256 hash of an adapter's contents: the base model's name, and for each projection its name, the matrices, and
/// the scale that follows from alpha, rank and stabilisation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterDigest(pub [u8; 32]);

impl fmt::Display for AdapterDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for AdapterDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for LowRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LowRank {{ a: {:?}, b: {:?}, scale: {} }}", self.a.shape(), self.b.shape(), self.scale)
    }
}

impl LowRank {
    /// The rank of the product.
    pub fn rank(&self) -> usize {
        self.a.shape()[0]
    }
}

impl Adapter {
    /// Reads the adapter in the PEFT directory or GGUF file `path`, for a model that has this name and configuration.
    ///
    /// # Errors
    /// [`Error::Adapter`] if it is damaged or asks for something that is not implemented. [`Error::Io`] if a file cannot
    /// be read.
    pub fn open(path: impl AsRef<Path>, name: &str, config: &ModelConfig) -> Result<Self> {
        let path = path.as_ref();
        let products = match path.is_dir() {
            true => peft::read(path, config),
            false => gguf::adapter::read(path, config),
        };
        // Damage to a weight file is damage to the adapter.
        let products = products.map_err(|error| match error {
            Error::Weights { reason, .. } | Error::Config(reason) => Error::adapter(path, reason),
            error => error,
        })?;
        if products.is_empty() {
            return Err(Error::adapter(path, "it changes no projection"));
        }
        Ok(Adapter { digest: digest(name, &products), products })
    }

    /// The highest rank of its products.
    pub fn rank(&self) -> usize {
        self.products.values().map(LowRank::rank).max().unwrap_or(0)
    }
}

/// The two halves of a product, while a file is read.
#[derive(Default)]
pub(super) struct Halves {
    a: Option<HostTensor>,
    b: Option<HostTensor>,
}

/// The products of a file, while it is read.
#[derive(Default)]
pub(super) struct Pairs(BTreeMap<String, Halves>);

impl Pairs {
    /// Adds one half of the product for the projection `module`: `a`, or `b` if `is_b`. `name` is the tensor's name in
    /// the file.
    ///
    /// # Errors
    /// A sentence about the tensor, if it is no matrix of numbers or there are two of it.
    pub fn add(&mut self, module: String, is_b: bool, name: &str, tensor: HostTensor) -> Result<(), String> {
        let shape = tensor.shape();
        if shape.len() != 2 || shape.contains(&0) {
            return Err(format!("tensor {name} should be a matrix, but has the shape {shape:?}"));
        }
        if !is_finite(&tensor) {
            return Err(format!("tensor {name} has elements that are not numbers"));
        }
        let halves = self.0.entry(module).or_default();
        let half = if is_b { &mut halves.b } else { &mut halves.a };
        match half.replace(tensor) {
            None => Ok(()),
            Some(_) => Err(format!("two tensors are the same half of one product, one of them {name}")),
        }
    }

    /// Returns the products. `scale` gives the factor for a projection and a rank.
    ///
    /// # Errors
    /// A sentence about the first pair that is incomplete or does not fit together.
    pub fn products(
        self,
        scale: impl Fn(&str, usize) -> Result<f64, String>,
    ) -> Result<BTreeMap<String, LowRank>, String> {
        let product = |(module, halves): (String, Halves)| {
            let (a, b) = match halves {
                Halves { a: Some(a), b: Some(b) } => (a, b),
                Halves { a: None, .. } => return Err(format!("{module} has lora_B, but no lora_A")),
                Halves { b: None, .. } => return Err(format!("{module} has lora_A, but no lora_B")),
            };
            let (rank, other) = (a.shape()[0], b.shape()[1]);
            if rank != other {
                return Err(format!("the lora_A of {module} has the rank {rank}, but its lora_B has {other}"));
            }
            let scale = scale(&module, rank)? as f32;
            if !scale.is_finite() {
                return Err(format!("the factor of {module} is {scale}"));
            }
            Ok((module, LowRank { a, b, scale }))
        };
        self.0.into_iter().map(product).collect()
    }
}

/// Copies a tensor of an adapter to memory, in a type of floats.
pub(super) fn load(name: &str, stored: StoredTensor) -> Result<HostTensor> {
    let tensor = stored.load(name, false)?;
    Ok(if tensor.quantised().is_some() { tensor.to_dtype(DType::F32) } else { tensor })
}

fn is_finite(tensor: &HostTensor) -> bool {
    match tensor.elements() {
        Elements::F32(v) => v.iter().all(|x| x.is_finite()),
        Elements::F16(v) => v.iter().all(|x| x.is_finite()),
        Elements::Bf16(v) => v.iter().all(|x| x.is_finite()),
    }
}
