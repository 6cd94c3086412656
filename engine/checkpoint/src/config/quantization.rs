//! `quantization_config`: how the weights of a safetensors checkpoint are quantised.

mod compressed;

use super::fields::{self, Fields};
use crate::error::{Error, Result};

/// How a checkpoint's weights are quantised.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// How quantised weights are stored.
    pub format: QuantFormat,
    /// Names of modules that are not quantised, or of modules that these are in.
    ignored: Vec<String>,
}

/// How quantised weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantFormat {
    /// AutoAWQ's: integers of 4 bits, packed along the outputs.
    Awq {
        /// Elements that share a scale.
        group: GroupSize,
    },
    /// GPTQ's: integers of 4 bits, packed along the inputs.
    Gptq {
        /// Elements that share a scale.
        group: GroupSize,
        /// Whether zeros are stored less one, as the format's first version has them.
        less_one: bool,
        /// Whether inputs were sorted before they were cut into groups (`desc_act`), so that each says which is its.
        sorted: bool,
    },
    /// compressed-tensors': integers of 4 bits, packed along the inputs, FP8, or some in one form and some in the other.
    CompressedTensors {
        /// Elements of 4 bits that share a scale, if there are any.
        int4: Option<GroupSize>,
        /// Whether these are not symmetric, and have zeros; nothing where that is not the same in all modules.
        zeros: Option<bool>,
        /// Whether the inputs of all of them were sorted before they were cut into groups.
        sorted: bool,
        /// How scales of FP8 lie, if there are any.
        fp8: Option<Fp8Scales>,
    },
    /// FP8 e4m3.
    Fp8(Fp8Scales),
}

/// How many elements of a row share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupSize {
    /// All.
    Row,
    /// So many.
    Of(usize),
    /// Not the same in all modules: as many as the shape of the scales says.
    Various,
}

/// How scales of FP8 lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Scales {
    /// One for a tensor, or one for each output.
    Outputs,
    /// One for each block of so many outputs and inputs.
    Blocks([usize; 2]),
}

impl Quantization {
    /// Reads the quantisation from the text of a `config.json`; nothing if the weights are not quantised.
    ///
    /// # Errors
    /// If there is one that is not supported.
    pub fn from_json(text: &[u8]) -> Result<Option<Self>> {
        let object = fields::parse(text, "config.json")?;
        Self::of(&Fields::new(&object))
    }

    pub(super) fn of(config: &Fields<'_>) -> Result<Option<Self>> {
        // The first versions of compressed-tensors had another name for it.
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
            other => return refuse(&format!("by {}; awq, gptq, compressed-tensors and fp8 are supported", cut(other))),
        };
        let mut ignored = Vec::new();
        for name in ["modules_to_not_convert", "ignored_layers", "ignore"] {
            ignored.extend(fields.strings(name)?.unwrap_or_default());
        }
        Ok(Some(Quantization { format, ignored }))
    }

    /// Whether the configuration says that a module, such as `model.layers.0.mlp.down_proj`, is not quantised. Regular
    /// expressions and names of classes are not looked at: what is stored decides, here as elsewhere.
    pub fn ignores(&self, module: &str) -> bool {
        let parts: Vec<&str> = module.split('.').collect();
        self.ignored.iter().any(|name| {
            let name: Vec<&str> = name.split('.').collect();
            parts.windows(name.len()).any(|part| part == name)
        })
    }
}

/// That weights quantised in this way are not supported.
fn refuse<T>(how: &str) -> Result<T> {
    Err(Error::Unsupported(format!("its weights are quantised {how}")))
}

/// A name from the file, as a message can carry it.
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
        return refuse("by gptq with an adapter beside them, which is not supported");
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

/// How scales lie, by the member that has the extents of blocks.
fn fp8_scales(fields: &Fields<'_>, name: &str) -> Result<Fp8Scales> {
    let Some(extents) = fields.usizes(name)? else { return Ok(Fp8Scales::Outputs) };
    match *extents.as_slice() {
        [rows, cols] if rows > 0 && cols > 0 => Ok(Fp8Scales::Blocks([rows, cols])),
        _ => Err(Error::Config(format!("{name} must be the two extents of a block"))),
    }
}

/// A size of groups: -1 stands for whole rows.
fn group_size(fields: &Fields<'_>, name: &str) -> Result<Option<GroupSize>> {
    match fields.float(name)? {
        None => Ok(None),
        Some(-1.0) => Ok(Some(GroupSize::Row)),
        Some(size) if size >= 1.0 && size <= super::MAX_WIDTH as f64 && size.fract() == 0.0 => {
            Ok(Some(GroupSize::Of(size as usize)))
        }
        Some(size) => Err(Error::Config(format!("{name} is {size}, which is no size of groups"))),
    }
}

fn expect_bits(method: &str, bits: usize) -> Result<()> {
    if bits == 4 { Ok(()) } else { refuse(&format!("by {method} in {bits} bits; 4 are supported")) }
}
