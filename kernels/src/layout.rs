//! The layout of keys and values in the paged cache, shared by host and device.
//!
//! A page holds the keys and values of one block of tokens in one layer. Within a layer the cache is
//!
//! ```text
//! [block][kv_head][K or V][head_size / 8][block_size][8]      of 16-bit elements
//! ```
//!
//! The last axis is a 16-byte vector: eight neighbouring elements of one head of one token. Vectors of neighbouring
//! tokens are adjacent. So for one block and head, K is one contiguous run of 8 x 8 matrices, as `ldmatrix` and `wgmma`
//! read them, and V is another.
//!
//! With 8-bit elements (see [`eight_bit`](crate::eight_bit)), one head of a block is
//!
//! ```text
//! [K or V][head_size / 16][block_size][16]      of codes
//! [K or V][block_size]                          of scales, halves
//! ```
//!
//! A vector is 16 neighbouring elements of one head of one token, in the order 0, 8, 1, 9, 2, 10 ... `ldmatrix` moves
//! two bytes at a time, so in this order each lane receives the same elements as from a 16-bit cache.

use core::fmt;

/// 16-bit elements in a 16-byte vector, the unit in which kernels move keys and values.
pub const VECTOR: u32 = 8;

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrValue {
    /// Keys, which queries are compared with.
    Key = 0,
    /// Values, whose weighted sum is the output.
    Value = 1,
}

/// The storage format of a cache's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// The 16-bit type of the activations.
    #[default]
    Plain,
    /// 8-bit integers, with one scale per head and token.
    Int8,
    /// FP8 e4m3, with one scale per head and token.
    Fp8,
}

impl KvFormat {
    /// All formats.
    pub const ALL: [KvFormat; 3] = [KvFormat::Plain, KvFormat::Int8, KvFormat::Fp8];

    /// Returns whether elements are 8-bit codes with scales.
    #[inline(always)]
    pub const fn is_coded(self) -> bool {
        !matches!(self, KvFormat::Plain)
    }

    /// Returns the number of elements in a 16-byte vector.
    #[inline(always)]
    pub const fn vector_elements(self) -> u32 {
        if self.is_coded() { 2 * VECTOR } else { VECTOR }
    }

    /// Returns the bytes of K, or of V, for one head of one token: its elements, and their scale if they have one.
    #[inline(always)]
    pub const fn head_bytes(self, head_size: u32) -> u32 {
        if self.is_coded() { head_size + 2 } else { 2 * head_size }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvFormat::Plain => "16 bits",
            KvFormat::Int8 => "8-bit integers",
            KvFormat::Fp8 => "FP8",
        })
    }
}

/// The shape of a layer's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Key/value heads.
    pub heads: u32,
    /// Elements per head, a multiple of [`KvFormat::vector_elements`].
    pub head_size: u32,
    /// Tokens per block, a multiple of 8 if elements have scales.
    pub block_size: u32,
    /// The storage format of the elements.
    pub format: KvFormat,
    /// Unused vectors at the end of a page of codes. It is 0 for other formats.
    pub padding: u32,
}

impl Pages {
    /// Returns the vectors of K, or of V, for one head of one token.
    #[inline(always)]
    pub const fn chunks(self) -> u32 {
        self.head_size / self.format.vector_elements()
    }

    /// Returns the vectors of K, or of V, for all heads of one token, without scales.
    #[inline(always)]
    pub const fn token_vectors(self) -> u32 {
        self.heads * self.chunks()
    }

    /// Returns the vectors that one head's scales take in a page, for keys and values together.
    #[inline(always)]
    const fn scale_vectors(self) -> u32 {
        if self.format.is_coded() { 2 * self.block_size / VECTOR } else { 0 }
    }

    /// Returns the number of vectors in a page.
    #[inline(always)]
    pub const fn page_vectors(self) -> u32 {
        // Padding takes a register. 16-bit kernels save it, since they know their format at compile time.
        let padding = if self.format.is_coded() { self.padding } else { 0 };
        2 * self.token_vectors() * self.block_size + self.heads * self.scale_vectors() + padding
    }

    /// Returns the index of a vector in a layer's cache: chunk `chunk` of `head`'s keys or values (`part`), for the
    /// token at `offset` in `block`.
    #[inline(always)]
    pub const fn vector(self, block: u32, head: u32, part: KeyOrValue, chunk: u32, offset: u32) -> usize {
        let row = (head * 2 + part as u32) * self.chunks() + chunk;
        let in_page = row * self.block_size + offset + head * self.scale_vectors();
        block as usize * self.page_vectors() as usize + in_page as usize
    }

    /// Returns the index of an element in a layer's cache, counted in elements.
    #[inline(always)]
    pub const fn element(self, block: u32, head: u32, part: KeyOrValue, element: u32, offset: u32) -> usize {
        let elements = self.format.vector_elements();
        let vector = self.vector(block, head, part, element / elements, offset);
        let within = element % elements;
        let place = if self.format.is_coded() { 2 * (within % VECTOR) + within / VECTOR } else { within };
        vector * elements as usize + place as usize
    }

    /// Returns the index of a scale in a layer's cache, counted in 16-bit halves. Only for formats with scales. Scales
    /// of neighbouring tokens are adjacent.
    #[inline(always)]
    pub const fn scale(self, block: u32, head: u32, part: KeyOrValue, offset: u32) -> usize {
        // Scales follow the codes of both keys and values.
        let first = self.vector(block, head, KeyOrValue::Value, self.chunks(), 0);
        first * VECTOR as usize + (part as u32 * self.block_size + offset) as usize
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    const PAGES: Pages = Pages { heads: 3, head_size: 80, block_size: 16, format: KvFormat::Plain, padding: 0 };

    #[test]
    fn every_element_has_its_own_index() {
        let blocks = 2;
        let mut seen = vec![false; (blocks * PAGES.page_vectors() * VECTOR) as usize];
        for block in 0..blocks {
            for head in 0..PAGES.heads {
                for part in [KeyOrValue::Key, KeyOrValue::Value] {
                    for element in 0..PAGES.head_size {
                        for offset in 0..PAGES.block_size {
                            let index = PAGES.element(block, head, part, element, offset);
                            assert!(!std::mem::replace(&mut seen[index], true), "{index} is used twice");
                        }
                    }
                }
            }
        }
        assert!(seen.into_iter().all(|s| s));
    }

    #[test]
    fn codes_and_scales_fill_a_page() {
        for block_size in [8, 16, 32] {
            let pages = Pages { heads: 3, head_size: 96, block_size, format: KvFormat::Int8, padding: 0 };
            let (mut seen, mut count) = (vec![false; 2 * pages.page_vectors() as usize * 16], 0);
            let mut take = |at: usize| {
                assert!(!std::mem::replace(&mut seen[at], true), "{at} is used twice");
                count += 1;
            };
            for (block, head) in (0..2).flat_map(|block| (0..3).map(move |head| (block, head))) {
                for (part, offset) in
                    [KeyOrValue::Key, KeyOrValue::Value].into_iter().flat_map(|p| (0..block_size).map(move |o| (p, o)))
                {
                    (0..96).for_each(|element| take(pages.element(block, head, part, element, offset)));
                    (0..2).for_each(|byte| take(2 * pages.scale(block, head, part, offset) + byte));
                }
            }
            assert_eq!(count, seen.len(), "codes and scales must fill the page");
            assert_eq!(16 * pages.page_vectors(), 2 * 3 * block_size * pages.format.head_bytes(96));
        }
    }

    #[test]
    fn codes_of_elements_eight_apart_are_adjacent() {
        let pages = Pages { heads: 1, head_size: 64, block_size: 16, format: KvFormat::Fp8, padding: 0 };
        let at = |element| pages.element(0, 0, KeyOrValue::Key, element, 3);
        assert_eq!([0, 8, 1, 9, 15].map(|e| at(e) - at(0)), [0, 1, 2, 3, 15]);
        assert_eq!(at(16) - at(0), 16 * 16, "the next chunk follows this chunk of all tokens");
    }

    #[test]
    fn elements_are_in_the_documented_order() {
        let at = |head, part, element, offset| PAGES.element(1, head, part, element, offset);
        assert_eq!(at(0, KeyOrValue::Key, 0, 0), (PAGES.page_vectors() * VECTOR) as usize);
        assert_eq!(
            at(0, KeyOrValue::Key, 7, 0) + 1,
            at(0, KeyOrValue::Key, 0, 1),
            "eight elements, then the next token"
        );
        assert_eq!(
            at(0, KeyOrValue::Key, 7, 15) + 1,
            at(0, KeyOrValue::Key, 8, 0),
            "all tokens, then the next eight elements"
        );
        assert_eq!(at(0, KeyOrValue::Key, 79, 15) + 1, at(0, KeyOrValue::Value, 0, 0), "keys, then values");
        assert_eq!(at(0, KeyOrValue::Value, 79, 15) + 1, at(1, KeyOrValue::Key, 0, 0), "then the next head");
    }

    #[test]
    fn large_caches_do_not_overflow() {
        let pages = Pages { heads: 128, head_size: 256, block_size: 64, format: KvFormat::Plain, padding: 0 };
        let last = pages.element(200_000, 127, KeyOrValue::Value, 255, 63);
        assert_eq!(last as u64 + 1, 200_001 * u64::from(pages.page_vectors()) * u64::from(VECTOR));
    }
}
