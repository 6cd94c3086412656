//! Quantised weights of safetensors files. The several tensors of each weight are combined into one, with the name and
//! shape of the unquantised weight.

mod fp8;
mod int4;
mod mxfp4;
mod words;

use std::collections::HashMap;
use std::path::Path;

pub use self::mxfp4::mxfp4_matrix;

use self::fp8::Fp8Parts;
use self::int4::{Int4Layout, Int4Parts};
use self::mxfp4::Mxfp4Parts;
use super::stored::{Assembly, Bytes, Form, StoredTensor, StoredType};
use crate::config::{Fp8Scales, GroupSize, QuantFormat, Quantization};
use crate::error::{Error, Result};
use crate::quantised::QuantType;
use crate::tensor::DType;

/// The name of FP8 e4m3 in files.
const FP8: &str = "F8_E4M3";

/// Tensors by name, during assembly.
struct Assembler<'a> {
    tensors: HashMap<String, StoredTensor>,
    quantization: &'a Quantization,
    path: &'a Path,
}

/// Replaces the parts of each quantised weight by one tensor. `path` is the model's path, for error messages.
///
/// # Errors
/// If parts of a weight are missing, or their shapes do not match each other or the configuration.
pub(super) fn assemble(
    tensors: Vec<(String, StoredTensor)>,
    quantization: &Quantization,
    path: &Path,
) -> Result<Vec<(String, StoredTensor)>> {
    let mut all = Assembler { tensors: tensors.into_iter().collect(), quantization, path };
    match quantization.format {
        QuantFormat::Awq { group } => all.int4("qweight", Int4Layout::Awq, group)?,
        QuantFormat::Gptq { group, less_one, sorted } => {
            all.int4("qweight", Int4Layout::Gptq { less_one, sorted }, group)?;
        }
        QuantFormat::CompressedTensors { int4, zeros, sorted, fp8 } => {
            if let Some(group) = int4 {
                all.int4("weight_packed", Int4Layout::CompressedTensors { zeros, sorted }, group)?;
            }
            if let Some(scales) = fp8 {
                all.fp8(scales)?;
            }
        }
        QuantFormat::Fp8(scales) => all.fp8(scales)?,
        QuantFormat::Mxfp4 => all.mxfp4()?,
    }
    let mut tensors: Vec<_> = all.tensors.into_iter().collect();
    tensors.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(tensors)
}

impl Assembler<'_> {
    /// Assembles the 4-bit weights. The names of their integers end in `.quants`, where `quants` is the given suffix.
    fn int4(&mut self, quants: &str, layout: Int4Layout, group: GroupSize) -> Result<()> {
        let names =
            self.tensors.keys().filter_map(|name| Some(name.strip_suffix(quants)?.strip_suffix('.')?.to_owned()));
        let mut modules: Vec<String> = names.collect();
        // Sorted, so that the first of several errors is always the same.
        modules.sort_unstable();
        for module in modules {
            self.expect_quantised(&module, quants)?;
            let quants = self.part(&module, quants)?;
            let names = match layout {
                Int4Layout::Awq | Int4Layout::Gptq { .. } => ["qzeros", "scales", "g_idx", ""],
                Int4Layout::CompressedTensors { .. } => {
                    ["weight_zero_point", "weight_scale", "weight_g_idx", "weight_shape"]
                }
            };
            let scales = self.part(&module, names[1])?;
            let [zeros, _, groups, shape] = names.map(|name| self.tensors.remove(&format!("{module}.{name}")));
            let path = quants.path.clone();
            let parts =
                Int4Parts { layout, module: module.clone(), rows: 0, cols: 0, group: 0, quants, zeros, scales, groups };
            let parts = parts.measured(shape, group).map_err(|reason| damaged(&path, &module, &reason))?;
            let (shape, dtype) = (vec![parts.rows, parts.cols], in_memory(parts.kind()));
            self.put(&module, StoredTensor { dtype, shape, form: Form::Same, path, bytes: assembled(parts) })?;
        }
        Ok(())
    }

    /// Assembles the FP8 weights.
    fn fp8(&mut self, scales: Fp8Scales) -> Result<()> {
        let is_fp8 = |tensor: &StoredTensor| tensor.dtype == StoredType::Other(FP8.into());
        let names = self.tensors.iter().filter(|(_, tensor)| is_fp8(tensor));
        let mut modules: Vec<String> =
            names.filter_map(|(name, _)| Some(name.strip_suffix(".weight")?.to_owned())).collect();
        modules.sort_unstable();
        for module in modules {
            self.expect_quantised(&module, "weight")?;
            let codes = self.part(&module, "weight")?;
            let scale = match self.tensors.remove(&format!("{module}.weight_scale_inv")) {
                Some(scale) => scale,
                None => self.part(&module, "weight_scale")?,
            };
            let path = codes.path.clone();
            let parts = Fp8Parts::new(module.clone(), codes, scale, scales);
            let parts = parts.map_err(|reason| damaged(&path, &module, &reason))?;
            let (shape, dtype) = (vec![parts.rows, parts.cols], in_memory(parts.kind()));
            self.put(&module, StoredTensor { dtype, shape, form: Form::Same, path, bytes: assembled(parts) })?;
        }
        Ok(())
    }

    /// Assembles the MXFP4 weights. They have the name of the unquantised weight, without a suffix.
    fn mxfp4(&mut self) -> Result<()> {
        let names = self.tensors.keys().filter_map(|name| Some(name.strip_suffix("_blocks")?.to_owned()));
        let mut modules: Vec<String> = names.collect();
        modules.sort_unstable();
        for module in modules {
            let mut part = |name: String| {
                let lacks = || format!("the quantised weight {module} lacks the tensor {name}");
                self.tensors.remove(&name).ok_or_else(|| Error::weights(self.path, lacks()))
            };
            let (blocks, scales) = (part(format!("{module}_blocks"))?, part(format!("{module}_scales"))?);
            let path = blocks.path.clone();
            let parts = Mxfp4Parts::new(module.clone(), blocks, scales);
            let parts = parts.map_err(|reason| damaged(&path, &module, &reason))?;
            let (shape, dtype) = (parts.shape.clone(), StoredType::Quantised(QuantType::MXFP4));
            let bytes = assembled(parts);
            let tensor = StoredTensor { dtype, shape, form: Form::Same, path: path.clone(), bytes };
            if self.tensors.insert(module.clone(), tensor).is_some() {
                return Err(Error::weights(path, format!("the weight {module} exists both quantised and unquantised")));
            }
        }
        Ok(())
    }

    fn part(&mut self, module: &str, name: &str) -> Result<StoredTensor> {
        self.tensors.remove(&format!("{module}.{name}")).ok_or_else(|| {
            Error::weights(self.path, format!("the quantised weight {module} lacks the tensor {module}.{name}"))
        })
    }

    fn put(&mut self, module: &str, tensor: StoredTensor) -> Result<()> {
        let path = tensor.path.clone();
        match self.tensors.insert(format!("{module}.weight"), tensor) {
            None => Ok(()),
            Some(_) => Err(Error::weights(path, format!("the weight {module} exists both quantised and unquantised"))),
        }
    }

    fn expect_quantised(&self, module: &str, part: &str) -> Result<()> {
        if !self.quantization.ignores(module) {
            return Ok(());
        }
        let reason = format!("{module} is among the modules that are not quantised, but has {module}.{part}");
        Err(Error::weights(self.path, reason))
    }
}

fn assembled(parts: impl Assembly + 'static) -> Bytes {
    Bytes::Assembled(Box::new(parts))
}

/// Returns the weight's type in memory. Without a fitting quantised type it is f32.
fn in_memory(kind: Option<QuantType>) -> StoredType {
    kind.map_or(StoredType::Float(DType::F32), StoredType::Quantised)
}

fn damaged(path: &Path, module: &str, reason: &str) -> Error {
    Error::weights(path, format!("the quantised weight {module} {reason}"))
}

/// Loads the scales of a weight.
///
/// # Errors
/// If a scale is not finite, or all are zero, which only happens in damaged files.
fn scales(module: &str, tensor: StoredTensor) -> Result<Vec<f32>> {
    let path = tensor.path.clone();
    let scales = tensor.load(&format!("{module}'s scales"), true)?.elements().to_f32();
    if scales.iter().any(|scale| !scale.is_finite()) {
        return Err(damaged(&path, module, "has a scale that is not finite"));
    }
    if scales.iter().all(|scale| *scale == 0.0) {
        return Err(damaged(&path, module, "has only scales of zero"));
    }
    Ok(scales)
}
