//! The numbered tensor types of GGUF files.

use crate::load::StoredType;
use crate::quantised::QuantType;
use crate::tensor::DType;

/// Number, name, elements per group and bytes per group.
type Type = (u32, &'static str, usize, usize);

/// All published types. Most cannot be computed with, but their sizes help to detect damaged files.
const TYPES: &[Type] = &[
    (0, "f32", 1, 4),
    (1, "f16", 1, 2),
    (2, "q4_0", 32, 18),
    (3, "q4_1", 32, 20),
    (6, "q5_0", 32, 22),
    (7, "q5_1", 32, 24),
    (8, "q8_0", 32, 34),
    (9, "q8_1", 32, 36),
    (10, "q2_k", 256, 84),
    (11, "q3_k", 256, 110),
    (12, "q4_k", 256, 144),
    (13, "q5_k", 256, 176),
    (14, "q6_k", 256, 210),
    (15, "q8_k", 256, 292),
    (16, "iq2_xxs", 256, 66),
    (17, "iq2_xs", 256, 74),
    (18, "iq3_xxs", 256, 98),
    (19, "iq1_s", 256, 50),
    (20, "iq4_nl", 32, 18),
    (21, "iq3_s", 256, 110),
    (22, "iq2_s", 256, 82),
    (23, "iq4_xs", 256, 136),
    (24, "i8", 1, 1),
    (25, "i16", 1, 2),
    (26, "i32", 1, 4),
    (27, "i64", 1, 8),
    (28, "f64", 1, 8),
    (29, "iq1_m", 256, 56),
    (30, "bf16", 1, 2),
    (34, "tq1_0", 256, 54),
    (35, "tq2_0", 256, 66),
    (39, "mxfp4", 32, 17),
];

/// Returns the type with this number, and the bytes of a row of `cols` elements.
///
/// # Errors
/// A phrase that says what is wrong, if the type is unknown or the row is not a multiple of its group size.
pub(super) fn stored(number: u32, cols: usize) -> Result<(StoredType, usize), String> {
    let Some(&(_, name, group, bytes)) = TYPES.iter().find(|known| known.0 == number) else {
        return Err(format!("is of type {number}, which is unknown"));
    };
    if !cols.is_multiple_of(group) {
        return Err(format!("is of type {name}, whose groups of {group} do not fit its rows of {cols}"));
    }
    let row = (cols / group).checked_mul(bytes).ok_or_else(|| format!("has rows of {cols} elements"))?;
    let stored = match number {
        0 => StoredType::Float(DType::F32),
        1 => StoredType::Float(DType::F16),
        30 => StoredType::Float(DType::Bf16),
        _ => match QuantType::GGUF.into_iter().find(|kind| number_of_quantised(*kind) == Some(number)) {
            Some(kind) => StoredType::Quantised(kind),
            None => StoredType::Other(name.to_owned()),
        },
    };
    Ok((stored, row))
}

/// Returns the number of an unquantised type.
pub(super) fn number(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 30,
    }
}

/// Returns the number of a quantised type, or `None` if GGUF files do not have the type.
pub(super) fn number_of_quantised(kind: QuantType) -> Option<u32> {
    match kind {
        QuantType::Q4_0 => Some(2),
        QuantType::Q4_1 => Some(3),
        QuantType::Q5_0 => Some(6),
        QuantType::Q5_1 => Some(7),
        QuantType::Q8_0 => Some(8),
        QuantType::Q2_K => Some(10),
        QuantType::Q3_K => Some(11),
        QuantType::Q4_K => Some(12),
        QuantType::Q5_K => Some(13),
        QuantType::Q6_K => Some(14),
        QuantType::IQ4_NL => Some(20),
        QuantType::IQ4_XS => Some(23),
        QuantType::MXFP4 => Some(39),
        QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => None,
        QuantType::Fp8G32 | QuantType::Fp8G128 => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn types_have_the_right_sizes() {
        for kind in QuantType::GGUF {
            let (stored, row) = stored(number_of_quantised(kind).unwrap(), 512).unwrap();
            assert_eq!((stored, Some(row)), (StoredType::Quantised(kind), kind.row_bytes(512)));
        }
        assert_eq!(stored(18, 256).unwrap(), (StoredType::Other("iq3_xxs".into()), 98));
        assert!(stored(12, 32).unwrap_err().contains("q4_k"));
        assert!(stored(8, 33).unwrap_err().contains("q8_0"));
        assert!(stored(4, 32).unwrap_err().contains("4"));
    }
}
