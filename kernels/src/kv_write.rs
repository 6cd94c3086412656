//! How a warp writes heads to the cache, in each of its layouts.

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

/// Pairs of vectors that a lane holds, at most, where they become codes: of a head of 128 elements.
const CODED_PAIRS: usize = PAIRS / 2;

/// Codes of a lane's part of a head, as they lie in the cache, and the head's scale.
#[derive(Clone, Copy)]
pub struct CodedPart {
    /// Half a vector of codes for each vector of elements.
    codes: [[HalfVector; 2]; CODED_PAIRS],
    /// The bits of a half.
    scale: u16,
}

impl<C: EightBit + Copy> WriteHead for CodedCache<C> {
    type Stored = CodedPart;

    #[inline(always)]
    unsafe fn stored<T: Element>(part: HeadPart, pairs: Pairs) -> CodedPart {
        let mut largest = 0;
        unroll::<CODED_PAIRS>(|i| {
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
        // A vector of codes is of two of elements, which neighbouring lanes have.
        let odd = part.first % 2 == 1;
        let mut codes = [[HalfVector([0; 2]); 2]; CODED_PAIRS];
        unroll::<CODED_PAIRS>(|i| {
            // The same for all lanes.
            if i as u32 * LANES < part.halves {
                for half in 0..2 {
                    let x = widen::<T>(pairs[i][half]);
                    let code = |n: usize| C::encode(x[n] * scale.inverse);
                    let four = |n: usize| u32::from_le_bytes([code(n), code(n + 1), code(n + 2), code(n + 3)]);
                    let own = [four(0), four(4)];
                    let given = if odd { own[0] } else { own[1] };
                    // SAFETY: all lanes are here.
                    let got = unsafe { warp_shuffle_xor(FULL_MASK, given, TOKENS, WARP_SIZE) };
                    codes[i][half] = HalfVector(if odd { interleaved(got, own[1]) } else { interleaved(own[0], got) });
                }
            }
        });
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
            if i < CODED_PAIRS {
                let [a, b] = stored.codes[i];
                put(chunk, a);
                put(chunk + part.halves, b);
            }
        });
        if part.here && part.first == 0 {
            // SAFETY: the cache has a scale for this head of the token, by this function's contract.
            unsafe { *vectors.cast::<u16>().add(pages.scale(block, head, which, offset)) = stored.scale };
        }
    }
}

/// The bytes of two words in turns.
#[inline(always)]
fn interleaved(even: u32, odd: u32) -> [u32; 2] {
    let ([a, b, c, d], [e, f, g, h]) = (even.to_le_bytes(), odd.to_le_bytes());
    [[a, e, b, f], [c, g, d, h]].map(u32::from_le_bytes)
}
