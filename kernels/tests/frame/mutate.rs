//! Kernels with one instruction missing, which tests must notice.

use emulator::PtxParts;

/// Returns the PTX of one entry: the entry, and everything outside of entries.
pub fn only(ptx: &str, entry: &str) -> String {
    let parts = PtxParts::of(ptx, "");
    assert!(parts.kernels().any(|kernel| kernel == entry), "{entry} is not in the PTX");
    parts.excerpt([entry], None)
}

/// A kernel with one instruction missing.
pub struct Mutant {
    /// The removed instruction, and its position in the entry.
    pub removed: String,
    pub ptx: String,
}

/// Returns a mutant for every instruction of `entry` that begins with one of `opcodes`. A removed wait for an mbarrier
/// succeeds at once.
pub fn without_each(ptx: &str, entry: &str, opcodes: &[&str]) -> Vec<Mutant> {
    let parts = PtxParts::of(ptx, "");
    let places = parts.places(entry, opcodes);
    places.iter().map(|place| Mutant { removed: place.to_string(), ptx: parts.excerpt([entry], Some(place)) }).collect()
}
