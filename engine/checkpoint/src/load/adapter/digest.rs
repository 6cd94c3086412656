//! The identity of an adapter.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::{AdapterDigest, LowRank};
use crate::tensor::HostTensor;

/// Hashes the products of an adapter for the model `base`.
pub(super) fn digest(base: &str, products: &BTreeMap<String, LowRank>) -> AdapterDigest {
    let mut hasher = Sha256::new();
    // Lengths come before contents, so different contents never give the same bytes.
    let text = |hasher: &mut Sha256, text: &str| {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    text(&mut hasher, base);
    for (module, LowRank { a, b, scale }) in products {
        text(&mut hasher, module);
        hasher.update(scale.to_bits().to_le_bytes());
        for matrix in [a, b] {
            add_matrix(&mut hasher, matrix);
        }
    }
    AdapterDigest(hasher.finalize().into())
}

fn add_matrix(hasher: &mut Sha256, matrix: &HostTensor) {
    hasher.update(matrix.dtype().to_string().as_bytes());
    matrix.shape().iter().for_each(|extent| hasher.update((*extent as u64).to_le_bytes()));
    hasher.update(matrix.bytes());
}
