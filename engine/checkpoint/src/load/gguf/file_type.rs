//! The types of a written file's tensors. Some mixtures give important tensors more bits.

use std::fmt;
use std::str::FromStr;

use crate::quantised::QuantType;

/// How the weights of a GGUF file are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)] // the names that the format's users know
pub enum FileType {
    /// One type for projections and embeddings. The output matrix has at least 6 bits because it decides between
    /// tokens. With MXFP4, embeddings have 8 bits.
    Of(QuantType),
    /// llama.cpp's mixture of Q4_K and Q6_K. The output matrix, and half of the layers' value and down projections,
    /// have 6 bits.
    Q4_K_M,
}

/// The role of a matrix in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The output matrix, or an embedding that serves as one.
    Output,
    /// A table that is indexed by tokens.
    Embedding,
    /// A projection of values, or of queries, keys and values.
    Values { layer: usize },
    /// The second projection of a feed-forward network.
    Down { layer: usize },
    /// Another projection.
    Projection,
}

impl From<QuantType> for FileType {
    fn from(kind: QuantType) -> Self {
        FileType::Of(kind)
    }
}

impl FromStr for FileType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let all = [QuantType::Q8_0, QuantType::Q6_K, QuantType::Q4_0, QuantType::MXFP4].map(FileType::Of);
        let found = all.into_iter().chain([FileType::Q4_K_M]).find(|kind| s.eq_ignore_ascii_case(&kind.to_string()));
        found.ok_or_else(|| format!("{s:?} is not one of q8_0, q6_k, q4_k_m, q4_0 and mxfp4"))
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileType::Of(kind) => kind.fmt(f),
            FileType::Q4_K_M => f.write_str("q4_k_m"),
        }
    }
}

impl FileType {
    /// The number of `general.file_type`. Types that have no number count as 8-bit.
    pub(super) fn number(self) -> usize {
        match self {
            FileType::Of(QuantType::Q4_0) => 2,
            FileType::Q4_K_M => 15,
            FileType::Of(QuantType::Q6_K) => 18,
            FileType::Of(QuantType::MXFP4) => 38,
            FileType::Of(_) => 7,
        }
    }

    /// Returns the type of a matrix with rows of `cols` elements in a model of `layers` layers. `None` if no type fits
    /// the rows. As in llama.cpp, rows that are not a multiple of 256 have a type with groups of 32 and more bits.
    pub(super) fn of_matrix(self, role: Role, layers: usize, cols: usize) -> Option<QuantType> {
        let wanted = match (self, role) {
            (FileType::Of(kind @ (QuantType::Q8_0 | QuantType::Q6_K)), _) => kind,
            (FileType::Of(_), Role::Output) => QuantType::Q8_0,
            (FileType::Of(QuantType::MXFP4), Role::Embedding) => QuantType::Q8_0,
            (FileType::Of(kind), _) => kind,
            (FileType::Q4_K_M, Role::Output) => QuantType::Q6_K,
            (FileType::Q4_K_M, Role::Values { layer } | Role::Down { layer }) if is_important(layer, layers) => {
                QuantType::Q6_K
            }
            (FileType::Q4_K_M, _) => QuantType::Q4_K,
        };
        let smaller = match wanted {
            QuantType::Q4_K => QuantType::Q5_0,
            QuantType::Q6_K => QuantType::Q8_0,
            other => other,
        };
        [wanted, smaller].into_iter().find(|kind| cols.is_multiple_of(kind.group()))
    }
}

/// Whether a mixture gives a layer more bits: the first and last eighths of the layers, and every third in between.
fn is_important(layer: usize, layers: usize) -> bool {
    let first = layers / 8;
    layer < first || layer >= 7 * layers / 8 || (layer - first) % 3 == 2
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn names_are_parsed_in_any_case() {
        for name in ["q8_0", "Q6_K", "q4_k_m", "Q4_K_M", "q4_0", "mxfp4"] {
            assert_eq!(FileType::from_str(name).unwrap().to_string(), name.to_ascii_lowercase());
        }
        assert!(FileType::from_str("q4_k").unwrap_err().contains("q4_k_m"));
    }

    #[test]
    fn mixtures_match_those_of_llama_cpp() {
        let six = |layers: usize| (0..layers).filter(|&layer| is_important(layer, layers)).collect::<Vec<_>>();
        assert_eq!(six(12), [0, 3, 6, 9, 10, 11]);
        assert_eq!(six(32), [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        assert_eq!(six(2), [1]);
        let of = |role, cols| FileType::Q4_K_M.of_matrix(role, 12, cols).unwrap();
        assert_eq!(of(Role::Down { layer: 3 }, 512), QuantType::Q6_K);
        assert_eq!(of(Role::Values { layer: 4 }, 512), QuantType::Q4_K);
        assert_eq!(of(Role::Output, 512), QuantType::Q6_K);
        assert_eq!(of(Role::Embedding, 512), QuantType::Q4_K);
        assert_eq!([of(Role::Output, 96), of(Role::Embedding, 96)], [QuantType::Q8_0, QuantType::Q5_0]);
        assert_eq!(FileType::Q4_K_M.of_matrix(Role::Projection, 12, 48), None);
        let mxfp4 = |role| FileType::Of(QuantType::MXFP4).of_matrix(role, 2, 64).unwrap();
        assert_eq!(
            [Role::Output, Role::Embedding, Role::Projection].map(mxfp4),
            [QuantType::Q8_0, QuantType::Q8_0, QuantType::MXFP4]
        );
    }
}
