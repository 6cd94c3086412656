//! Where keys and values lie in the paged cache: the same code on host and device.
//!
//! A page holds the keys and values of one block of tokens in one layer. Within a layer the cache is
//!
//! ```text
//! [block][kv_head][K or V][head_size / 8][block_size][8]      of 16-bit elements
//! ```
//!
//! The last axis is a 16-byte vector: eight neighbouring elements of one head of one token. Vectors of neighbouring
//! tokens follow each other, so that for a block and head K is one contiguous piece of 8 x 8 matrices, as `ldmatrix`
//! and `wgmma` read them, and V another.

use cuda_std::vector::Vector;

/// Elements of 16 bits in a vector of 16 bytes, the unit in which kernels move keys and values.
pub const VECTOR: u32 = 8;

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrValue {
    /// Keys, with which queries are compared.
    Key = 0,
    /// Values, whose weighted sum is the result.
    Value = 1,
}

/// The shape of a layer's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Key/value heads.
    pub heads: u32,
    /// Elements per head, a multiple of [`VECTOR`].
    pub head_size: u32,
    /// Tokens per block.
    pub block_size: u32,
}

impl Pages {
    /// Vectors that a head of one token takes, for K and for V each.
    #[inline(always)]
    pub const fn chunks(self) -> u32 {
        self.head_size / VECTOR
    }

    /// Vectors that all heads of one token take, for K and for V each.
    #[inline(always)]
    pub const fn token_vectors(self) -> u32 {
        self.heads * self.chunks()
    }

    /// Vectors in a page.
    #[inline(always)]
    pub const fn page_vectors(self) -> u32 {
        2 * self.token_vectors() * self.block_size
    }

    /// The index of a vector in a layer's cache: of `part`, for the token at `offset` in `block`, elements
    /// `8 * chunk ..` of `head`.
    #[inline(always)]
    pub const fn vector(self, block: u32, head: u32, part: KeyOrValue, chunk: u32, offset: u32) -> usize {
        let row = (head * 2 + part as u32) * self.chunks() + chunk;
        block as usize * self.page_vectors() as usize + (row * self.block_size + offset) as usize
    }

    /// The index of an element in a layer's cache.
    #[inline(always)]
    pub const fn element(self, block: u32, head: u32, part: KeyOrValue, element: u32, offset: u32) -> usize {
        let vector = self.vector(block, head, part, element / VECTOR, offset);
        vector * VECTOR as usize + (element % VECTOR) as usize
    }
}

/// A layer's cache as kernels write it: a vector at a time, wherever its layout has the vector's elements.
pub(crate) trait WriteVector: Copy {
    /// Writes elements `8 * chunk ..` of `head`, of `part`, for the token at `offset` in `block`.
    ///
    /// # Safety
    /// The cache has such a block, with such a head and token, and nothing else accesses these elements.
    unsafe fn write(self, block: u32, head: u32, part: KeyOrValue, chunk: u32, offset: u32, vector: Vector);
}

/// A layer's cache in the layout of [`Pages`].
#[derive(Clone, Copy)]
pub(crate) struct LayerCache {
    /// The shape of its pages.
    pub pages: Pages,
    /// Its first vector.
    pub vectors: *mut Vector,
}

impl WriteVector for LayerCache {
    #[inline(always)]
    unsafe fn write(self, block: u32, head: u32, part: KeyOrValue, chunk: u32, offset: u32, vector: Vector) {
        // SAFETY: the cache has such a vector, which is nobody else's, by this function's contract.
        unsafe { *self.vectors.add(self.pages.vector(block, head, part, chunk, offset)) = vector };
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    const PAGES: Pages = Pages { heads: 3, head_size: 80, block_size: 16 };

    #[test]
    fn every_element_has_a_place_of_its_own() {
        let blocks = 2;
        let mut seen = vec![false; (blocks * PAGES.page_vectors() * VECTOR) as usize];
        for block in 0..blocks {
            for head in 0..PAGES.heads {
                for part in [KeyOrValue::Key, KeyOrValue::Value] {
                    for element in 0..PAGES.head_size {
                        for offset in 0..PAGES.block_size {
                            let index = PAGES.element(block, head, part, element, offset);
                            assert!(!std::mem::replace(&mut seen[index], true), "{index} twice");
                        }
                    }
                }
            }
        }
        assert!(seen.into_iter().all(|s| s));
    }

    #[test]
    fn neighbours_are_as_the_layout_says() {
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
        let pages = Pages { heads: 128, head_size: 256, block_size: 64 };
        let last = pages.element(200_000, 127, KeyOrValue::Value, 255, 63);
        assert_eq!(last as u64 + 1, 200_001 * u64::from(pages.page_vectors()) * u64::from(VECTOR));
    }
}
