//! `quantization_config`: how the weights of a safetensors checkpoint are quantised.

mod compressed;

use super::fields::{self, Fields};
use crate::error::{Error, Result};

/// How a checkpoint's weights are quantised.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// The storage format of quantised weights.
    pub format: QuantFormat,
    /// Names of modules that are not quantised, or of modules that contain them.
    ignored: Vec<String>,
}

/// The storage format of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantFormat {
    /// AutoAWQ: 4-bit integers, packed along the outputs.
    Awq {
        /// Elements that share a scale.
        group: GroupSize,
    },
    /// GPTQ: 4-bit integers, packed along the inputs.
    Gptq {
        /// Elements that share a scale.
        group: GroupSize,
        /// Whether zeros are stored minus one, as in the format's first version.
        less_one: bool,
        /// Whether inputs were sorted before they were divided into groups (`desc_act`). If so, the file has a group
        /// index for each input.
        sorted: bool,
    },
    /// compressed-tensors: integers of 4 or 8 bits, FP8, or a mix of them.
    CompressedTensors {
        /// Elements that share a scale in the 4-bit weights. `None` without 4-bit weights.
        int4: Option<GroupSize>,
        /// Whether the 4-bit weights are asymmetric and have zeros. `None` if that differs between modules.
        zeros: Option<bool>,
        /// Whether the inputs of all 4-bit weights were sorted before they were divided into groups.
        sorted: bool,
        /// Elements that share a scale in the 8-bit integers. `None` without such weights.
        int8: Option<GroupSize>,
        /// The layout of the FP8 scales. `None` without FP8 weights.
        fp8: Option<Fp8Scales>,
    },
    /// FP8 e4m3.
    Fp8(Fp8Scales),
    /// MXFP4: gpt-oss's experts.
    Mxfp4,
}

/// Number of elements of a row that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupSize {
    /// All elements of the row.
    Row,
    /// A fixed number.
    Of(usize),
    /// A number that differs between modules. The shape of the scales gives it.
    Various,
}

/// The layout of FP8 scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Scales {
    /// One scale per tensor, or one per output.
    Outputs,
    /// One scale per block of this many outputs and inputs.
    Blocks([usize; 2]),
}

impl Quantization {
    /// Reads the quantisation from the text of a `config.json`. Returns `None` if the weights are not quantised.
    ///
    /// # Errors
    /// If the quantisation is not supported.
    pub fn from_json(text: &[u8]) -> Result<Option<Self>> {
        let object = fields::parse(text, "config.json")?;
        Self::read(&Fields::new(&object))
    }

    pub(super) fn read(config: &Fields<'_>) -> Result<Option<Self>> {
        // The first versions of compressed-tensors used another name.
        let fields = match config.object("quantization_config")? {
            Some(fields) => fields,
            None => match config.object("compression_config")? {
                Some(fields) => fields,
                None => return Ok(None),
            },
        };
        let method = fields.string("quant_method")?.unwrap_or("an unnamed method");
        let format = match method {
            "awq" => awq(&fields)?,
            "gptq" => gptq(&fields)?,
            "compressed-tensors" => compressed::read(&fields)?,
            "fp8" => fp8(&fields)?,
            "mxfp4" => QuantFormat::Mxfp4,
            other => {
                let supported = "awq, gptq, compressed-tensors, fp8 and mxfp4 are supported";
                return refuse(&format!("by {}; {supported}", cut(other)));
            }
        };
        let mut ignored = Vec::new();
        for name in ["modules_to_not_convert", "ignored_layers", "ignore"] {
            ignored.extend(fields.strings(name)?.unwrap_or_default());
        }
        Ok(Some(Quantization { format, ignored }))
    }

    /// Whether the configuration excludes a module, such as `model.layers.0.mlp.down_proj`, from quantisation. Regular
    /// expressions and class names in the list are not interpreted. This is no problem because the stored tensors
    /// decide whether a weight is quantised.
    pub fn ignores(&self, module: &str) -> bool {
        let parts: Vec<&str> = module.split('.').collect();
        self.ignored.iter().any(|name| {
            let name: Vec<&str> = name.split('.').collect();
            parts.windows(name.len()).any(|part| part == name)
        })
    }
}

/// Returns an error: weights quantised in this way are not supported.
fn refuse<T>(how: &str) -> Result<T> {
    Err(Error::Unsupported(format!("its weights are quantised {how}")))
}

/// Shortens a name from the file for an error message.
fn cut(name: &str) -> String {
    name.chars().take(60).collect()
}

fn awq(fields: &Fields<'_>) -> Result<QuantFormat> {
    expect_bits("awq", fields.either_usize("bits", "w_bit", 4)?)?;
    if !fields.bool_or("zero_point", true)? {
        return refuse("by awq without zero points; with zero_point they are supported");
    }
    for name in ["version", "format", "checkpoint_format"] {
        if let Some(version) = fields.string(name)?
            && !version.eq_ignore_ascii_case("gemm")
        {
            return refuse(&format!("by awq, and stored as {}; gemm is supported", cut(version)));
        }
    }
    let group = group_size(fields, "group_size")?.or(group_size(fields, "q_group_size")?);
    Ok(QuantFormat::Awq { group: group.unwrap_or(GroupSize::Of(128)) })
}

fn gptq(fields: &Fields<'_>) -> Result<QuantFormat> {
    expect_bits("gptq", fields.usize_or("bits", 4)?)?;
    if fields.bool_or("is_marlin_format", false)? {
        return refuse("by gptq, and stored as marlin; gptq and gptq_v2 are supported");
    }
    let mut less_one = true;
    for name in ["format", "checkpoint_format"] {
        match fields.string(name)? {
            None => {}
            Some("gptq") => less_one = true,
            Some("gptq_v2") => less_one = false,
            Some(other) => {
                return refuse(&format!("by gptq, and stored as {}; gptq and gptq_v2 are supported", cut(other)));
            }
        }
    }
    if let Some(words) = fields.string("pack_dtype")?.filter(|words| *words != "int32") {
        return refuse(&format!("by gptq, and packed into {}; int32 is supported", cut(words)));
    }
    if fields.has_value("adapter") {
        return refuse("by gptq with an adapter, which is not supported");
    }
    let group = match group_size(fields, "group_size")? {
        Some(group) if !fields.has_value("dynamic") => group,
        _ => GroupSize::Various,
    };
    Ok(QuantFormat::Gptq { group, less_one, sorted: fields.bool_or("desc_act", false)? })
}

fn fp8(fields: &Fields<'_>) -> Result<QuantFormat> {
    for name in ["fmt", "format"] {
        if let Some(format) = fields.string(name)?
            && !["e4m3", "float8_e4m3fn"].contains(&format)
        {
            return refuse(&format!("by fp8 as {}; e4m3 is supported", cut(format)));
        }
    }
    Ok(QuantFormat::Fp8(fp8_scales(fields, "weight_block_size")?))
}

/// Returns the layout of scales. The member `name`, if present, contains the extents of a block.
fn fp8_scales(fields: &Fields<'_>, name: &str) -> Result<Fp8Scales> {
    let Some(extents) = fields.usizes(name)? else { return Ok(Fp8Scales::Outputs) };
    match *extents.as_slice() {
        [rows, cols] if rows > 0 && cols > 0 => Ok(Fp8Scales::Blocks([rows, cols])),
        _ => Err(Error::Config(format!("{name} must be the two extents of a block"))),
    }
}

/// Reads a group size. -1 means whole rows.
fn group_size(fields: &Fields<'_>, name: &str) -> Result<Option<GroupSize>> {
    match fields.float(name)? {
        None => Ok(None),
        Some(-1.0) => Ok(Some(GroupSize::Row)),
        Some(size) if size >= 1.0 && size <= super::MAX_WIDTH as f64 && size.fract() == 0.0 => {
            Ok(Some(GroupSize::Of(size as usize)))
        }
        Some(size) => Err(Error::Config(format!("{name} is {size}, which is not a valid group size"))),
    }
}

fn expect_bits(method: &str, bits: usize) -> Result<()> {
    if bits == 4 { Ok(()) } else { refuse(&format!("by {method} in {bits} bits; 4 are supported")) }
}
