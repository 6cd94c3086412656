//! The paper's figures, one file per figure.

pub mod basic;
pub mod batched;
pub mod block_size;
pub mod chat;
pub mod decoding;
pub mod layout;
pub mod lengths;
pub mod measured;
pub mod memory;
pub mod prefix;
mod rates;
pub mod recovery;
pub mod searches;
pub mod sharing;
pub mod workloads;

use anyhow::Result;

use crate::figure::Figure;
use crate::laboratory::Lab;

/// A function that makes a figure.
type Make = fn(&Lab<'_>) -> Result<Figure>;

/// The figures by their numbers, in order.
pub const ALL: &[(&str, Make)] = &[
    ("1", layout::figure),
    ("2", memory::figure),
    ("11", lengths::figure),
    ("12", basic::figure),
    ("13", batched::figure),
    ("14", decoding::figure),
    ("15", sharing::figure),
    ("16", prefix::figure),
    ("17", chat::figure),
    ("18", block_size::figure),
    ("19", recovery::figure),
    ("workloads", workloads::figure),
    ("measured", measured::figure),
];

/// Returns the figure with this number, or every figure for `all`.
pub fn named(number: &str) -> Vec<(&'static str, Make)> {
    ALL.iter().filter(|(own, _)| number == "all" || number == *own).copied().collect()
}
