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
    let (mut int4, mut zeros, mut fp8) = (None, None, None);
    let mut sorted = true;
    let groups = fields.object("config_groups")?;
    for (name, group) in groups.map(|groups| groups.objects()).transpose()?.unwrap_or_default() {
        let Some(weights) = group.object("weights")? else { continue };
        // A group's own format takes precedence over the model's.
        let format = group.string("format")?.unwrap_or(whole);
        let kind = weights.string("type")?.unwrap_or("int");
        let bits = weights.usize_or("num_bits", 8)?;
        let activations = group.object("input_activations")?;
        if group.object("output_activations")?.is_some() {
            return refuse("by compressed-tensors with quantised outputs, which is not supported");
        }
        match (format, kind) {
            ("pack-quantized", "int") => {
                expect_bits("compressed-tensors", bits)?;
                if let Some(activations) = activations {
                    let bits = activations.usize_or("num_bits", 8)?;
                    return refuse(&format!(
                        "in 4 bits and activations in {bits} (input_activations); unquantised ones are supported"
                    ));
                }
                let size = int4_group(&weights, name)?;
                let has_zeros = !weights.bool_or("symmetric", true)?;
                zeros = Some(has_zeros).filter(|new_value| int4.is_none() || zeros == Some(*new_value));
                // Other values of `actorder` sort without changing the groups.
                sorted &= matches!(weights.string("actorder")?, Some("group" | "dynamic"));
                int4 = Some(if int4.is_none_or(|other| other == size) { size } else { GroupSize::Various });
            }
            ("float-quantized" | "naive-quantized", "float") if bits == 8 => {
                // Activations that the configuration rounds to FP8 are not rounded here, which loses no precision.
                if let Some(kind) =
                    activations.map(|x| x.string("type")).transpose()?.flatten().filter(|kind| *kind != "float")
                {
                    return refuse(&format!("in FP8 and activations as {}, which is not supported", cut(kind)));
                }
                let scales = match weights.string("strategy")? {
                    None | Some("tensor" | "channel") => Fp8Scales::Outputs,
                    Some("block") => fp8_scales(&weights, "block_structure")?,
                    Some(other) => {
                        return refuse(&format!(
                            "in FP8 with a scale for each {}; tensor, channel and block are supported",
                            cut(other)
                        ));
                    }
                };
                if fp8.is_some_and(|other| other != scales) {
                    return refuse("in FP8 with blocks of several sizes; one is supported");
                }
                fp8 = Some(scales);
            }
            _ => {
                return refuse(&format!(
                    "by compressed-tensors as {} ({} of {bits} bits); pack-quantized in 4 bits and float-quantized in 8 are \
                     supported",
                    cut(format),
                    cut(kind)
                ));
            }
        }
    }
    if int4.is_none() && fp8.is_none() {
        return Err(Error::Config("its config_groups name no quantised weights".into()));
    }
    Ok(QuantFormat::CompressedTensors { int4, zeros, sorted: sorted && int4.is_some(), fp8 })
}

fn int4_group(weights: &Fields<'_>, name: &str) -> Result<GroupSize> {
    match weights.string("strategy")?.unwrap_or("group") {
        "tensor" | "channel" => Ok(GroupSize::Row),
        "group" => {
            group_size(weights, "group_size")?.ok_or_else(|| Error::Config(format!("{} has no group_size", cut(name))))
        }
        other => refuse(&format!("in 4 bits with a scale for each {}; group and channel are supported", cut(other))),
    }
}
