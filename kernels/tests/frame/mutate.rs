//! Kernels with one instruction missing: what a test must notice.

use emulator::PtxParts;

/// The PTX of one entry alone: the entry, and what is in none.
pub fn only(ptx: &str, entry: &str) -> String {
    let parts = PtxParts::of(ptx, "");
    assert!(parts.kernels().any(|kernel| kernel == entry), "{entry} is in the PTX");
    parts.excerpt([entry], None)
}

/// A kernel with one instruction missing.
pub struct Mutant {
    /// The instruction, and where it stood in the entry.
    pub removed: String,
    pub ptx: String,
}

/// For every instruction of `entry` that begins with one of `opcodes`: the PTX without it. A wait for an mbarrier is over at once.
pub fn without_each(ptx: &str, entry: &str, opcodes: &[&str]) -> Vec<Mutant> {
    let parts = PtxParts::of(ptx, "");
    let places = parts.places(entry, opcodes);
    places.iter().map(|place| Mutant { removed: place.to_string(), ptx: parts.excerpt([entry], Some(place)) }).collect()
}
