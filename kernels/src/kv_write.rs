//! How a warp writes heads to the cache, in each of its layouts.

#![allow(
    clippy::needless_range_loop,
    reason = "an index is the same thing in several arrays, and a constant when unrolled"
)]

use core::marker::PhantomData;

use cuda_std::unroll::unroll;
use cuda_std::vector::{HalfVector, Vector};
use cuda_std::warp::{FULL_MASK, WARP_SIZE, warp_shuffle_xor};

use crate::eight_bit::{EightBit, HeadScale, size};
use crate::element::Element;
use crate::head_part::{HeadPart, LANES, PAIRS, Pairs, TOKENS};
use crate::layout::{KeyOrValue, Pages};
use crate::vector::widen;

/// A layer's cache as kernels write it: what a lane holds of a head at a time.
pub trait WriteHead: Copy {
    /// What is written of a lane's part of a head.
    type Stored: Copy;

    /// What there is to be written of a part, whose elements are of type `T`.
    ///
    /// # Safety
    /// All lanes of the warp call this together, for the same head.
    unsafe fn stored<T: Element>(part: HeadPart, pairs: Pairs) -> Self::Stored;

    /// Writes a part of `head`, of keys or values, for the token at `offset` in `block`.
    ///
    /// # Safety
    /// The cache has such a block, with such a head and token, and nothing else accesses its elements.
    unsafe fn write(self, part: HeadPart, stored: Self::Stored, block: u32, head: u32, which: KeyOrValue, offset: u32);
}

/// A layer's cache as kernels write it: a vector of 16-bit elements at a time, wherever its layout has them.
pub trait WriteVector: Copy {
    /// Writes elements `8 * chunk ..` of `head`, of `part`, for the token at `offset` in `block`.
    ///
    /// # Safety
    /// The cache has such a block, with such a head and token, and nothing else accesses these elements.
    unsafe fn write_vector(self, block: u32, head: u32, part: KeyOrValue, chunk: u32, offset: u32, vector: Vector);
}

impl<C: WriteVector> WriteHead for C {
    type Stored = Pairs;

    #[inline(always)]
    unsafe fn stored<T: Element>(_: HeadPart, pairs: Pairs) -> Pairs {
        pairs
    }

    #[inline(always)]
    unsafe fn write(self, part: HeadPart, pairs: Pairs, block: u32, head: u32, which: KeyOrValue, offset: u32) {
        part.each(|i, chunk| {
            let [a, b] = pairs[i];
            // SAFETY: `each` gives chunks within half a head, of a token that the cache has, by this function's contract.
            unsafe {
                self.write_vector(block, head, which, chunk, offset, a);
                self.write_vector(block, head, which, chunk + part.halves, offset, b);
            }
        });
    }
}

/// A layer's cache of 16-bit elements, in the layout of [`Pages`].
#[derive(Clone, Copy)]
pub struct LayerCache {
    /// The shape of its pages.
    pub pages: Pages,
    /// Its first vector.
    pub vectors: *mut Vector,
}

impl WriteVector for LayerCache {
    #[inline(always)]
    unsafe fn write_vector(self, block: u32, head: u32, part: KeyOrValue, chunk: u32, offset: u32, vector: Vector) {
        // SAFETY: the cache has such a vector, which is nobody else's, by this function's contract.
        unsafe { *self.vectors.add(self.pages.vector(block, head, part, chunk, offset)) = vector };
    }
}

/// A layer's cache of codes of type `C` with their scales, in the layout of [`Pages`].
#[derive(Clone, Copy)]
pub struct CodedCache<C> {
    /// The shape of its pages.
    pub pages: Pages,
    /// Its first vector.
    pub vectors: *mut Vector,
    /// The type of codes.
    pub code: PhantomData<C>,
}

/// Codes of a lane's part of a head, in the order of its elements.
type Codes = [[[u32; 2]; 2]; PAIRS];

/// Half a vector of codes for each vector of elements of a lane's part of a head.
type HalfVectors = [[HalfVector; 2]; PAIRS];

/// Codes of a lane's part of a head, as they lie in the cache, and the head's scale.
#[derive(Clone, Copy)]
pub struct CodedPart {
    codes: HalfVectors,
    /// The bits of a half.
    scale: u16,
}

impl<C: EightBit + Copy> WriteHead for CodedCache<C> {
    type Stored = CodedPart;

    #[inline(always)]
    unsafe fn stored<T: Element>(part: HeadPart, pairs: Pairs) -> CodedPart {
        let mut largest = 0;
        unroll::<PAIRS>(|i| {
            // Zeros where the lane has no pair.
            for half in 0..2 {
                let [a, b, c, d, e, f, g, h] = widen::<T>(pairs[i][half]).map(size);
                largest = largest.max(a.max(b).max(c.max(d))).max(e.max(f).max(g.max(h)));
            }
        });
        // SAFETY: all lanes are here; those of a token are those that differ in the bits above `TOKENS`.
        unsafe {
            largest = largest.max(warp_shuffle_xor(FULL_MASK, largest, TOKENS, WARP_SIZE));
            largest = largest.max(warp_shuffle_xor(FULL_MASK, largest, 2 * TOKENS, WARP_SIZE));
        }
        let scale = HeadScale::of::<C>(largest);
        let mut own = [[[0; 2]; 2]; PAIRS];
        unroll::<PAIRS>(|i| {
            // The same for all lanes.
            if i as u32 * LANES < part.halves {
                for half in 0..2 {
                    let x = widen::<T>(pairs[i][half]);
                    let code = |n: usize| C::encode(x[n] * scale.inverse);
                    let four = |n: usize| u32::from_le_bytes([code(n), code(n + 1), code(n + 2), code(n + 3)]);
                    own[i][half] = [four(0), four(4)];
                }
            }
        });
        // SAFETY: all lanes are here.
        let codes =
            unsafe { if part.halves.is_multiple_of(2) { by_neighbours(part, own) } else { by_five(part, own) } };
        CodedPart { codes, scale: scale.bits }
    }

    #[inline(always)]
    unsafe fn write(self, part: HeadPart, stored: CodedPart, block: u32, head: u32, which: KeyOrValue, offset: u32) {
        let CodedCache { pages, vectors, .. } = self;
        let put = |chunk: u32, codes: HalfVector| {
            let vector = pages.vector(block, head, which, chunk / 2, offset);
            // SAFETY: chunks are within the head of a token that the cache has, by this function's contract.
            unsafe { *vectors.add(vector).cast::<HalfVector>().add(chunk as usize % 2) = codes };
        };
        part.each(|i, chunk| {
            let [a, b] = stored.codes[i];
            put(chunk, a);
            put(chunk + part.halves, b);
        });
        if part.here && part.first == 0 {
            // SAFETY: the cache has a scale for this head of the token, by this function's contract.
            unsafe { *vectors.cast::<u16>().add(pages.scale(block, head, which, offset)) = stored.scale };
        }
    }
}

/// Vectors of codes from those of elements, two for one, which neighbouring lanes have: each lane returns half of it.
///
/// # Safety
/// All lanes of the warp call this together, for the same head.
#[inline(always)]
unsafe fn by_neighbours(part: HeadPart, own: Codes) -> HalfVectors {
    let mut codes = [[HalfVector([0; 2]); 2]; PAIRS];
    unroll::<PAIRS>(|i| {
        // The same for all lanes.
        if i as u32 * LANES < part.halves {
            for half in 0..2 {
                // SAFETY: this function's contract is that of the exchange.
                codes[i][half] = unsafe { exchanged(own[i][half], part.first % 2 == 1, TOKENS) };
            }
        }
    });
    codes
}

/// As [`by_neighbours`] for heads of 80 elements, whose halves have five vectors. The first half's last goes with the second
/// half's first, and both are the first lane's. The others of the second half go together by twos from its second on: the
/// lanes' of the middle, and the last lane's fourth with the first lane's fifth.
///
/// # Safety
/// As for [`by_neighbours`].
#[inline(always)]
unsafe fn by_five(part: HeadPart, own: Codes) -> HalfVectors {
    let (is_first, is_odd) = (part.first == 0, part.first % 2 == 1);
    // SAFETY: this function's contract is that of the exchanges.
    let (low, high) = unsafe {
        let given = if is_first { own[1][1] } else { own[0][1] };
        (exchanged(own[0][0], is_odd, TOKENS), exchanged(given, !is_odd, 3 * TOKENS))
    };
    let ([a, b], [c, d]) = (own[1][0], own[0][1]);
    let middle = [HalfVector(interleaved(a, c)), HalfVector(interleaved(b, d))];
    let mut codes = [[HalfVector([0; 2]); 2]; PAIRS];
    codes[0] = [low, if is_first { middle[1] } else { high }];
    codes[1] = [middle[0], high];
    codes
}

/// A lane's half of a vector of codes that it shares with the lane whose number differs by `lanes`: the first of them has the
/// codes of the elements in front, and gets the first half.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
unsafe fn exchanged(own: [u32; 2], is_second: bool, lanes: u32) -> HalfVector {
    let given = if is_second { own[0] } else { own[1] };
    // SAFETY: this function's contract is that of the exchange.
    let got = unsafe { warp_shuffle_xor(FULL_MASK, given, lanes, WARP_SIZE) };
    HalfVector(if is_second { interleaved(got, own[1]) } else { interleaved(own[0], got) })
}

/// The bytes of two words in turns.
#[inline(always)]
fn interleaved(even: u32, odd: u32) -> [u32; 2] {
    let ([a, b, c, d], [e, f, g, h]) = (even.to_le_bytes(), odd.to_le_bytes());
    [[a, e, b, f], [c, g, d, h]].map(u32::from_le_bytes)
}
