//! Writing heads to the cache, one warp at a time, in each of its layouts.

#![allow(
    clippy::needless_range_loop,
    reason = "each index is used in several arrays and becomes a constant when the loop is unrolled"
)]

use core::marker::PhantomData;

use cuda_std::unroll::unroll;
use cuda_std::vector::{HalfVector, Vector};
use cuda_std::warp::{FULL_MASK, WARP_SIZE, warp_shuffle_xor};

use crate::eight_bit::{EightBit, HeadScale, size};
use crate::element::Element;
use crate::head_part::{HeadPart, LANES, PAIRS, Pairs, TOKENS};
use crate::layout::{KeyOrValue, Pages};
use crate::vector::{narrow, widen};

/// A writer for one layer's cache, which takes the part of a head that a lane holds.
pub trait WriteHead: Copy {
    /// The lane's part of a head, converted for the cache.
    type Stored: Copy;

    /// Converts the lane's part of a head, with elements of type `T`, for the cache.
    ///
    /// # Safety
    /// All lanes of the warp call this together, for the same head.
    unsafe fn stored<T: Element>(part: HeadPart, pairs: Pairs) -> Self::Stored;

    /// Writes a part of `head`'s keys or values (`which`), for the token at `offset` in `block`.
    ///
    /// # Safety
    /// The cache has this block, head and token, and no other thread accesses the elements that this call writes.
    unsafe fn write(self, part: HeadPart, stored: Self::Stored, block: u32, head: u32, which: KeyOrValue, offset: u32);
}

/// A writer for one layer's 16-bit cache, which takes one vector of elements at a time.
pub trait WriteVector: Copy {
    /// Writes elements `8 * chunk ..` of `head`'s keys or values (`part`), for the token at `offset` in `block`.
    ///
    /// # Safety
    /// The cache has this block, head and token, and no other thread accesses these elements.
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
            // SAFETY: `each` yields chunks within half a head. The cache has the token, by this function's contract.
            unsafe {
                self.write_vector(block, head, which, chunk, offset, a);
                self.write_vector(block, head, which, chunk + part.halves, offset, b);
            }
        });
    }
}

/// The place of a head's keys or values in a cache.
#[derive(Clone, Copy)]
pub struct CachePlace {
    /// The block.
    pub block: u32,
    /// The KV head.
    pub head: u32,
    /// Keys or values.
    pub part: KeyOrValue,
    /// The token's offset in the block.
    pub offset: u32,
}

/// A writer for one layer's cache, which takes a head's elements from a function.
pub trait WriteElements: Copy {
    /// Writes a head of `vectors` vectors to `place`, or nothing if that is `None`. `element` returns eight elements of
    /// the head, perhaps more than once. [`LANES`] lanes share a head, and `own` is the lane's number among them.
    ///
    /// # Safety
    /// All lanes of the warp call this together. The cache has this place, and no other token is written to it.
    unsafe fn write_elements<T: Element>(
        self,
        place: Option<CachePlace>,
        vectors: u32,
        own: u32,
        element: impl Fn(u32) -> [f32; 8],
    );
}

impl<C: WriteVector> WriteElements for C {
    #[inline(always)]
    unsafe fn write_elements<T: Element>(
        self,
        place: Option<CachePlace>,
        vectors: u32,
        own: u32,
        element: impl Fn(u32) -> [f32; 8],
    ) {
        let Some(CachePlace { block, head, part, offset }) = place else { return };
        let mut vector = own;
        while vector < vectors {
            // SAFETY: the cache has the place, by this function's contract.
            unsafe { self.write_vector(block, head, part, vector, offset, narrow::<T>(element(vector))) };
            vector += LANES;
        }
    }
}

/// A layer's cache of 16-bit elements, in the layout of [`Pages`].
#[derive(Clone, Copy)]
pub struct LayerCache {
    /// The shape of the pages.
    pub pages: Pages,
    /// The cache's first vector.
    pub vectors: *mut Vector,
}

impl WriteVector for LayerCache {
    #[inline(always)]
    unsafe fn write_vector(self, block: u32, head: u32, part: KeyOrValue, chunk: u32, offset: u32, vector: Vector) {
        // SAFETY: by this function's contract, the cache has this vector and no other thread accesses it.
        unsafe { *self.vectors.add(self.pages.vector(block, head, part, chunk, offset)) = vector };
    }
}

/// A layer's cache of codes of type `C` with their scales, in the layout of [`Pages`].
#[derive(Clone, Copy)]
pub struct CodedCache<C> {
    /// The shape of the pages.
    pub pages: Pages,
    /// The cache's first vector.
    pub vectors: *mut Vector,
    /// The code type.
    pub code: PhantomData<C>,
}

/// Codes of a lane's part of a head, in element order.
type Codes = [[[u32; 2]; 2]; PAIRS];

/// Half a vector of codes for each vector of elements in a lane's part of a head.
type HalfVectors = [[HalfVector; 2]; PAIRS];

/// Codes of a lane's part of a head, in cache order, and the head's scale.
#[derive(Clone, Copy)]
pub struct CodedPart {
    codes: HalfVectors,
    /// The scale's bits, as a 16-bit float.
    scale: u16,
}

impl<C: EightBit + Copy> WriteHead for CodedCache<C> {
    type Stored = CodedPart;

    #[inline(always)]
    unsafe fn stored<T: Element>(part: HeadPart, pairs: Pairs) -> CodedPart {
        let mut largest = 0;
        unroll::<PAIRS>(|i| {
            // Lanes without a pair contribute zeros.
            for half in 0..2 {
                let [a, b, c, d, e, f, g, h] = widen::<T>(pairs[i][half]).map(size);
                largest = largest.max(a.max(b).max(c.max(d))).max(e.max(f).max(g.max(h)));
            }
        });
        // SAFETY: all lanes are here. The lanes of a token differ only in the bits from `TOKENS` up.
        unsafe {
            largest = largest.max(warp_shuffle_xor(FULL_MASK, largest, TOKENS, WARP_SIZE));
            largest = largest.max(warp_shuffle_xor(FULL_MASK, largest, 2 * TOKENS, WARP_SIZE));
        }
        let scale = HeadScale::of::<C>(largest);
        let mut own = [[[0; 2]; 2]; PAIRS];
        unroll::<PAIRS>(|i| {
            // The condition is the same for all lanes.
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
            // SAFETY: chunks are within the head, and the cache has the token, by this function's contract.
            unsafe { *vectors.add(vector).cast::<HalfVector>().add(chunk as usize % 2) = codes };
        };
        part.each(|i, chunk| {
            let [a, b] = stored.codes[i];
            put(chunk, a);
            put(chunk + part.halves, b);
        });
        if part.here && part.first == 0 {
            // SAFETY: the cache has a scale for this head and token, by this function's contract.
            unsafe { *vectors.cast::<u16>().add(pages.scale(block, head, which, offset)) = stored.scale };
        }
    }
}

impl<C: EightBit + Copy> WriteElements for CodedCache<C> {
    #[inline(always)]
    unsafe fn write_elements<T: Element>(
        self,
        place: Option<CachePlace>,
        vectors: u32,
        own: u32,
        element: impl Fn(u32) -> [f32; 8],
    ) {
        // Codes are of the elements as 16-bit numbers.
        let element = |vector: u32| widen::<T>(narrow::<T>(element(vector)));
        let mut largest = 0;
        let mut vector = if place.is_some() { own } else { vectors };
        while vector < vectors {
            let [a, b, c, d, e, f, g, h] = element(vector).map(size);
            largest = largest.max(a.max(b).max(c.max(d))).max(e.max(f).max(g.max(h)));
            vector += LANES;
        }
        // SAFETY: all lanes are here. The lanes of a token differ only in the bits from `TOKENS` up.
        unsafe {
            largest = largest.max(warp_shuffle_xor(FULL_MASK, largest, TOKENS, WARP_SIZE));
            largest = largest.max(warp_shuffle_xor(FULL_MASK, largest, 2 * TOKENS, WARP_SIZE));
        }
        let Some(CachePlace { block, head, part, offset }) = place else { return };
        let scale = HeadScale::of::<C>(largest);
        let codes = |vector: u32| {
            let x = element(vector);
            let code = |n: usize| C::encode(x[n] * scale.inverse);
            let four = |n: usize| u32::from_le_bytes([code(n), code(n + 1), code(n + 2), code(n + 3)]);
            [four(0), four(4)]
        };
        let mut chunk = own;
        while chunk < vectors / 2 {
            let ([a, b], [c, d]) = (codes(2 * chunk), codes(2 * chunk + 1));
            let ([e, f], [g, h]) = (interleaved(a, c), interleaved(b, d));
            // SAFETY: the cache has the place, by this function's contract.
            unsafe { *self.vectors.add(self.pages.vector(block, head, part, chunk, offset)) = Vector([e, f, g, h]) };
            chunk += LANES;
        }
        if own == 0 {
            // SAFETY: the cache has a scale for this head and token, by this function's contract.
            unsafe { *self.vectors.cast::<u16>().add(self.pages.scale(block, head, part, offset)) = scale.bits };
        }
    }
}

/// Converts vectors of elements to vectors of codes.
///
/// Two neighbouring lanes of a token each hold one vector of eight elements. Together these make one vector of 16
/// codes, and each lane returns half of it.
///
/// # Safety
/// All lanes of the warp call this together, for the same head.
#[inline(always)]
unsafe fn by_neighbours(part: HeadPart, own: Codes) -> HalfVectors {
    let mut codes = [[HalfVector([0; 2]); 2]; PAIRS];
    unroll::<PAIRS>(|i| {
        // The condition is the same for all lanes.
        if i as u32 * LANES < part.halves {
            for half in 0..2 {
                // SAFETY: all lanes are here, by this function's contract.
                codes[i][half] = unsafe { exchanged(own[i][half], part.first % 2 == 1, TOKENS) };
            }
        }
    });
    codes
}

/// Does the work of [`by_neighbours`] for heads of 80 elements, which have five vectors in each half.
///
/// The ten vectors of the head pair up as (0, 1), (2, 3), (4, 5), (6, 7) and (8, 9). A token's lanes hold them as
/// follows:
///
/// - 0 to 3: lanes 0 to 3, paired with their neighbours as usual.
/// - 4 and 5, the last of the first half and the first of the second: both in lane 0.
/// - 6 and 7: lanes 1 and 2.
/// - 8 and 9: lane 3 and lane 0.
///
/// # Safety
/// As for [`by_neighbours`].
#[inline(always)]
unsafe fn by_five(part: HeadPart, own: Codes) -> HalfVectors {
    let (is_first, is_odd) = (part.first == 0, part.first % 2 == 1);
    // SAFETY: all lanes are here, by this function's contract.
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

/// Exchanges codes with lane `lane_id ^ lanes`. Their codes form one vector, and each lane returns half of it.
///
/// The first of the two lanes holds the codes of the lower elements and gets the first half.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
unsafe fn exchanged(own: [u32; 2], is_second: bool, lanes: u32) -> HalfVector {
    let given = if is_second { own[0] } else { own[1] };
    // SAFETY: all lanes are here, by this function's contract.
    let got = unsafe { warp_shuffle_xor(FULL_MASK, given, lanes, WARP_SIZE) };
    HalfVector(if is_second { interleaved(got, own[1]) } else { interleaved(own[0], got) })
}

/// Interleaves the bytes of two words.
#[inline(always)]
fn interleaved(even: u32, odd: u32) -> [u32; 2] {
    let ([a, b, c, d], [e, f, g, h]) = (even.to_le_bytes(), odd.to_le_bytes());
    [[a, e, b, f], [c, g, d, h]].map(u32::from_le_bytes)
}
