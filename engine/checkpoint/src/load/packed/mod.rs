//! Quantised weights of safetensors files. The several tensors of each weight are combined into one, with the name and
//! shape of the unquantised weight.

mod fp8;
mod int4;
mod int8;
mod mxfp4;
mod words;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub use self::mxfp4::mxfp4_matrix;

use self::fp8::Fp8Parts;
use self::int4::{Int4Layout, Int4Parts};
use self::int8::Int8Parts;
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
        QuantFormat::CompressedTensors { int4, zeros, sorted, int8, fp8 } => {
            if let Some(group) = int4 {
                all.int4("weight_packed", Int4Layout::CompressedTensors { zeros, sorted }, group)?;
            }
            if let Some(group) = int8 {
                all.int8(group)?;
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
    /// Returns the modules that `module` finds in names of tensors. Sorts them, because the first error decides the message.
    fn modules<'n>(&'n self, module: impl Fn(&'n str, &StoredTensor) -> Option<&'n str>) -> Vec<String> {
        let found = self.tensors.iter().filter_map(|(name, tensor)| Some(module(name, tensor)?.to_owned()));
        let mut modules: Vec<String> = found.collect();
        modules.sort_unstable();
        modules
    }

    /// Assembles the 4-bit weights. The names of their integers end in `.quants`, where `quants` is the given suffix.
    fn int4(&mut self, quants: &str, layout: Int4Layout, group: GroupSize) -> Result<()> {
        for module in self.modules(|name, _| name.strip_suffix(quants)?.strip_suffix('.')) {
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
            self.put(format!("{module}.weight"), path, vec![parts.rows, parts.cols], parts.kind(), parts)?;
        }
        Ok(())
    }

    /// Assembles the 8-bit integer weights.
    fn int8(&mut self, group: GroupSize) -> Result<()> {
        let is_i8 = |tensor: &StoredTensor| tensor.dtype == StoredType::Other("I8".into());
        let modules = self.modules(|name, tensor| match name.strip_suffix(".weight_packed") {
            Some(module) => Some(module),
            None => name.strip_suffix(".weight").filter(|_| is_i8(tensor)),
        });
        for module in modules {
            let quants = match self.tensors.remove(&format!("{module}.weight_packed")) {
                Some(packed) => packed,
                None => self.part(&module, "weight")?,
            };
            self.expect_quantised(&module, "weight")?;
            let (scales, path) = (self.part(&module, "weight_scale")?, quants.path.clone());
            let shape = self.tensors.remove(&format!("{module}.weight_shape"));
            let parts = Int8Parts::new(module.clone(), quants, scales, shape, group);
            let parts = parts.map_err(|reason| damaged(&path, &module, &reason))?;
            self.put(format!("{module}.weight"), path, vec![parts.rows, parts.cols], parts.kind(), parts)?;
        }
        Ok(())
    }

    /// Assembles the FP8 weights. A stack of experts may have a name without the suffix `.weight`.
    fn fp8(&mut self, scales: Fp8Scales) -> Result<()> {
        const SCALES: [&str; 2] = ["_scale_inv", "_scale"];
        let names = self.modules(|name, tensor| {
            let has_scales = || SCALES.iter().any(|scales| self.tensors.contains_key(&format!("{name}{scales}")));
            let is_fp8 = tensor.dtype == StoredType::Other(FP8.into());
            (is_fp8 && (name.ends_with(".weight") || has_scales())).then_some(name)
        });
        for name in names {
            let module = name.strip_suffix(".weight").unwrap_or(&name).to_owned();
            self.expect_quantised(&module, "weight")?;
            let lacks = |part: &str| format!("the quantised weight {module} lacks the tensor {part}");
            let mut part =
                |part: String| self.tensors.remove(&part).ok_or_else(|| Error::weights(self.path, lacks(&part)));
            let codes = part(name.clone())?;
            let [inverse, plain] = SCALES.map(|scales| format!("{name}{scales}"));
            let scale = part(inverse).or_else(|_| part(plain))?;
            let path = codes.path.clone();
            let parts = Fp8Parts::new(module.clone(), codes, scale, scales);
            let parts = parts.map_err(|reason| damaged(&path, &module, &reason))?;
            self.put(name, path, parts.shape.clone(), parts.kind(), parts)?;
        }
        Ok(())
    }

    /// Assembles the MXFP4 weights. They have the name of the unquantised weight, without a suffix.
    fn mxfp4(&mut self) -> Result<()> {
        for module in self.modules(|name, _| name.strip_suffix("_blocks")) {
            let mut part = |name: String| {
                let lacks = || format!("the quantised weight {module} lacks the tensor {name}");
                self.tensors.remove(&name).ok_or_else(|| Error::weights(self.path, lacks()))
            };
            let (blocks, scales) = (part(format!("{module}_blocks"))?, part(format!("{module}_scales"))?);
            let path = blocks.path.clone();
            let parts = Mxfp4Parts::new(module.clone(), blocks, scales);
            let parts = parts.map_err(|reason| damaged(&path, &module, &reason))?;
            self.put(module, path, parts.shape.clone(), Some(QuantType::MXFP4), parts)?;
        }
        Ok(())
    }

    fn part(&mut self, module: &str, name: &str) -> Result<StoredTensor> {
        self.tensors.remove(&format!("{module}.{name}")).ok_or_else(|| {
            Error::weights(self.path, format!("the quantised weight {module} lacks the tensor {module}.{name}"))
        })
    }

    /// Adds the weight `name`, which is assembled from `parts`. Without a fitting type in memory it becomes f32.
    fn put(
        &mut self,
        name: String,
        path: Arc<Path>,
        shape: Vec<usize>,
        kind: Option<QuantType>,
        parts: impl Assembly + 'static,
    ) -> Result<()> {
        let dtype = kind.map_or(StoredType::Float(DType::F32), StoredType::Quantised);
        let bytes = Bytes::Assembled(Box::new(parts));
        let module = name.strip_suffix(".weight").unwrap_or(&name);
        let twice = Error::weights(&path, format!("the weight {module} exists both quantised and unquantised"));
        match self.tensors.insert(name, StoredTensor { dtype, shape, form: Form::Same, path, bytes }) {
            None => Ok(()),
            Some(_) => Err(twice),
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

fn damaged(path: &Path, module: &str, reason: &str) -> Error {
    Error::weights(path, format!("the quantised weight {module} {reason}"))
}

/// Returns the number of columns of packed integers. `shape` is the tensor with the dimensions. A word holds `in_word`
/// integers, and the last word of a row may contain padding.
fn extents(shape: StoredTensor, rows: usize, packed: usize, in_word: usize) -> std::result::Result<usize, String> {
    let size = match &shape.dtype {
        StoredType::Other(name) if name == "I64" => 8,
        StoredType::Other(name) if name == "I32" => 4,
        other => return Err(format!("has weight_shape of type {other}")),
    };
    if shape.shape != [2] {
        return Err(format!("has weight_shape of shape {:?}", shape.shape));
    }
    let bytes = shape.raw(size).map_err(|error| error.to_string())?;
    let extents: Vec<u64> = bytes.chunks_exact(size).map(little_endian).collect();
    let cols = extents[1] as usize;
    if extents[0] != rows as u64 || cols > packed || cols + in_word <= packed {
        return Err(format!("has a weight_shape of {extents:?}, but integers for {:?}", [rows, packed]));
    }
    Ok(cols)
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
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
