//! The hash of a build's inputs.

/// FNV-1a with 128 bits. It detects forgotten rebuilds. It does not protect against malicious changes.
pub struct Hash(u128);

impl Hash {
    pub fn new() -> Hash {
        Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Adds a text and an end marker. Ignores carriage returns, which a checkout may have added.
    pub fn text(&mut self, text: &str) {
        let bytes = text.bytes().filter(|b| *b != b'\r').map(u128::from);
        for byte in bytes.chain([0x100]) {
            self.0 = (self.0 ^ byte).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    pub fn finish(self) -> String {
        format!("{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_texts_hash_differently_but_line_ends_do_not_matter() {
        let hash = |texts: &[&str]| {
            let mut hash = Hash::new();
            texts.iter().for_each(|text| hash.text(text));
            hash.finish()
        };
        assert_eq!(hash(&["a\nb"]), hash(&["a\r\nb"]));
        assert_ne!(hash(&["a", "b"]), hash(&["ab"]));
        assert_ne!(hash(&["a", ""]), hash(&["a"]));
    }
}
