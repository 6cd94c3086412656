//! A hash of the inputs.

/// FNV-1a of 128 bits. It guards against forgetting, not against malice.
pub struct Hash(u128);

impl Hash {
    pub fn new() -> Hash {
        Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// A text and its end. Line ends are those of Unix, whatever the checkout made of them.
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
    fn hashes_tell_texts_apart_but_not_line_ends() {
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
