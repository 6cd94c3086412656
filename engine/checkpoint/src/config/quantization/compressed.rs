//! The configuration of compressed-tensors, which llm-compressor writes.

use super::{Fp8Scales, GroupSize, QuantFormat, cut, expect_bits, fp8_scales, group_size, refuse};
use crate::config::fields::Fields;
use crate::error::{Error, Result};

pub(super) fn read(fields: &Fields<'_>) -> Result<QuantFormat> {
    if let Some(sparsity) = fields.object("sparsity_config")?
        && let Some(format) = sparsity.string("format")?.filter(|format| *format != "dense")
    {
        return refuse(&format!("by compressed-tensors, and sparse ({}), which is not supported", cut(format)));
    }
    if fields.object("transform_config")?.is_some_and(|transforms| !transforms.is_empty()) {
        return refuse("by compressed-tensors with transforms of activations, which are not supported");
    }
    let whole = fields.string("format")?.unwrap_or("pack-quantized");
    let mut found = Found::default();
    let groups = fields.object("config_groups")?;
    for (name, group) in groups.map(|groups| groups.objects()).transpose()?.unwrap_or_default() {
        found.add(name, &group, whole)?;
    }
    let Found { int4, zeros, unsorted, int8, packs_int8, fp8 } = found;
    if int4.is_some() && packs_int8 {
        return refuse("by compressed-tensors with packed integers of both 4 and 8 bits; one of them is supported");
    }
    if int4.is_none() && int8.is_none() && fp8.is_none() {
        return Err(Error::Config("its config_groups name no quantised weights".into()));
    }
    Ok(QuantFormat::CompressedTensors { int4, zeros, sorted: !unsorted && int4.is_some(), int8, fp8 })
}

/// The kinds of quantised weights in the groups that were read.
#[derive(Default)]
struct Found {
    int4: Option<GroupSize>,
    /// Whether groups of 4 bits have zero points. `None` if they differ.
    zeros: Option<bool>,
    /// Whether inputs of some 4-bit weights are in their own order.
    unsorted: bool,
    int8: Option<GroupSize>,
    /// Whether integers of 8 bits are packed into words.
    packs_int8: bool,
    fp8: Option<Fp8Scales>,
}

impl Found {
    /// Reads a group of modules. `whole` is the format of the model.
    fn add(&mut self, name: &str, group: &Fields<'_>, whole: &str) -> Result<()> {
        let Some(weights) = group.object("weights")? else { return Ok(()) };
        // A group's own format takes precedence over the model's.
        let format = group.string("format")?.unwrap_or(whole);
        let kind = weights.string("type")?.unwrap_or("int");
        let bits = weights.usize_or("num_bits", 8)?;
        let activations = group.object("input_activations")?;
        if group.object("output_activations")?.is_some() {
            return refuse("by compressed-tensors with quantised outputs, which is not supported");
        }
        match (format, kind) {
            ("pack-quantized" | "int-quantized" | "naive-quantized", "int") if bits == 8 => {
                self.packs_int8 |= format == "pack-quantized";
                self.add_int8(name, &weights, activations)
            }
            ("pack-quantized", "int") => {
                expect_bits("compressed-tensors", bits)?;
                self.add_int4(name, &weights, activations)
            }
            ("float-quantized" | "naive-quantized", "float") if bits == 8 => self.add_fp8(&weights, activations),
            _ => refuse(&format!(
                "by compressed-tensors as {} ({} of {bits} bits); pack-quantized in 4 or 8 bits, and \
                 int-quantized and float-quantized in 8 are supported",
                cut(format),
                cut(kind)
            )),
        }
    }

    fn add_int4(&mut self, name: &str, weights: &Fields<'_>, activations: Option<Fields<'_>>) -> Result<()> {
        if let Some(activations) = activations {
            let bits = activations.usize_or("num_bits", 8)?;
            return refuse(&format!(
                "in 4 bits and activations in {bits} (input_activations); unquantised ones are supported"
            ));
        }
        let size = int_group(weights, name, 4)?;
        let has_zeros = !weights.bool_or("symmetric", true)?;
        self.zeros = Some(has_zeros).filter(|has_zeros| self.int4.is_none() || self.zeros == Some(*has_zeros));
        // Other values of `actorder` sort without changing the groups.
        self.unsorted |= !matches!(weights.string("actorder")?, Some("group" | "dynamic"));
        self.int4 = Some(common(self.int4, size));
        Ok(())
    }

    /// Activations that the configuration rounds to 8 bits are not rounded here.
    fn add_int8(&mut self, name: &str, weights: &Fields<'_>, activations: Option<Fields<'_>>) -> Result<()> {
        let bits = activations.map_or(Ok(8), |activations| activations.usize_or("num_bits", 8))?;
        if bits < 8 {
            return refuse(&format!("in 8 bits and activations in {bits}, which is not supported"));
        }
        if !weights.bool_or("symmetric", true)? {
            return refuse("in 8 bits with zero points; symmetric weights are supported");
        }
        self.int8 = Some(common(self.int8, int_group(weights, name, 8)?));
        Ok(())
    }

    /// Activations that the configuration rounds to FP8 are not rounded, which loses no precision.
    fn add_fp8(&mut self, weights: &Fields<'_>, activations: Option<Fields<'_>>) -> Result<()> {
        let kind = activations.map(|activations| activations.string("type")).transpose()?.flatten();
        if let Some(kind) = kind.filter(|kind| *kind != "float") {
            return refuse(&format!("in FP8 and activations as {}, which is not supported", cut(kind)));
        }
        let scales = match weights.string("strategy")? {
            None | Some("tensor" | "channel") => Fp8Scales::Outputs,
            Some("block") => fp8_scales(weights, "block_structure")?,
            Some(other) => {
                return refuse(&format!(
                    "in FP8 with a scale for each {}; tensor, channel and block are supported",
                    cut(other)
                ));
            }
        };
        if self.fp8.is_some_and(|other| other != scales) {
            return refuse("in FP8 with blocks of several sizes; one is supported");
        }
        self.fp8 = Some(scales);
        Ok(())
    }
}

/// Returns the group size of several modules.
fn common(others: Option<GroupSize>, size: GroupSize) -> GroupSize {
    if others.is_none_or(|others| others == size) { size } else { GroupSize::Various }
}

fn int_group(weights: &Fields<'_>, name: &str, bits: usize) -> Result<GroupSize> {
    match weights.string("strategy")?.unwrap_or("group") {
        "tensor" | "channel" => Ok(GroupSize::Row),
        "group" => {
            group_size(weights, "group_size")?.ok_or_else(|| Error::Config(format!("{} has no group_size", cut(name))))
        }
        other => {
            refuse(&format!("in {bits} bits with a scale for each {}; group and channel are supported", cut(other)))
        }
    }
}
