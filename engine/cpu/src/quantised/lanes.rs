//! What each instruction set does with vectors of sixteen rows: AVX-512 with VNNI, AVX2, NEON, and plain Rust.
//!
//! A value of a type of [`Lanes`] exists only where the processor has its instructions, which is what its functions rely on.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;

use self::plain::Plain;
use super::packed::ROWS;
use crate::pages::Line;

/// Vectors with a lane for each of a band's rows. Bytes are not negative, and below 128 but for those of [`Lanes::wide`].
pub(super) trait Lanes: Copy {
    /// Four bytes a row.
    type Bytes: Copy;
    /// An integer a row.
    type Ints: Copy;
    /// A number a row.
    type Floats: Copy;
    /// Tokens at a time: as many as registers allow, at most 8.
    const TOKENS: usize;
    /// A half has a fifth bit of exponent: with the bits of a code, it is smaller by this factor.
    const FP8_UNIT: f32 = 256.0;

    fn load(self, line: &Line) -> Self::Bytes;
    /// `bytes >> shift & mask` of each byte. The mask is none of bits that the shift would bring in from another byte.
    fn bits(self, bytes: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes;
    /// `low | high << 4` of each byte.
    fn join(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes;
    /// `sum + bytes . x`: the four bytes of each row times those of `x`, which have signs.
    fn dot(self, sum: Self::Ints, bytes: Self::Bytes, x: i32) -> Self::Ints;

    /// Integers of 8 bits, counted from -128, as [`Lanes::dot_wide`] wants them.
    fn wide(self, line: &Line) -> Self::Bytes;
    /// What sums of them begin with, if those of what they are multiplied with sum up to `sum`.
    fn begin_wide(self, sum: i32) -> Self::Ints;
    /// As [`Lanes::dot`].
    fn dot_wide(self, sum: Self::Ints, bytes: Self::Bytes, x: i32) -> Self::Ints;

    fn splat(self, x: i32) -> Self::Ints;
    fn widen(self, x: &[u8; ROWS]) -> Self::Ints;
    fn widen_signed(self, x: &[u8; ROWS]) -> Self::Ints;
    /// `a * b + c`
    fn multiply(self, a: Self::Ints, b: Self::Ints, c: Self::Ints) -> Self::Ints;
    /// Two integers of 16 bits a row, the first in the lower half.
    fn pairs(self, first: &[u8; ROWS], second: &[u8; ROWS]) -> Self::Ints;
    /// `sum + a . x`: the two integers of each row times those of `x`, all with signs.
    fn dot_pairs(self, sum: Self::Ints, a: Self::Ints, x: i32) -> Self::Ints;

    fn zeros(self) -> Self::Floats;
    /// Numbers of 16 bits.
    fn halves(self, x: &[u16; ROWS]) -> Self::Floats;
    fn floats(self, x: &[f32; ROWS]) -> Self::Floats;
    /// The numbers of FP8's codes, none of which is NaN's, as multiples of [`Lanes::FP8_UNIT`].
    fn fp8(self, codes: &[u8; ROWS]) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: f32) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn mul_add_one(self, a: Self::Floats, b: f32, c: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once; `a` is rounded to f32 before.
    fn mul_add(self, a: Self::Ints, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn to_array(self, x: Self::Floats) -> [f32; ROWS];
}

/// Work that is written once over [`Lanes`], and compiled for each instruction set.
pub(super) trait WithLanes {
    /// How many tokens it is for.
    fn count(&self) -> usize;

    /// Does it for `T` tokens from `token` on, and returns how many these are. Marked to be inlined, so that it is compiled for the
    /// instruction set of its caller.
    fn tokens<L: Lanes, const T: usize>(&mut self, lanes: L, token: usize) -> usize;

    /// Does it for all tokens. Inlined for the same reason.
    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L)
    where
        Self: Sized,
    {
        self.run_from(lanes, 0);
    }

    /// Does it for all tokens from `token` on. Inlined for the same reason.
    #[inline(always)]
    fn run_from<L: Lanes>(&mut self, lanes: L, mut token: usize) {
        while token < self.count() {
            let left = usize::min(self.count() - token, L::TOKENS);
            token += match left {
                // These conditions are known to the compiler, which leaves out what has more tokens than fit.
                8.. if const { L::TOKENS >= 8 } => self.tokens::<L, 8>(lanes, token),
                4.. if const { L::TOKENS >= 4 } => self.tokens::<L, 4>(lanes, token),
                2.. => self.tokens::<L, 2>(lanes, token),
                _ => self.tokens::<L, 1>(lanes, token),
            };
        }
    }
}

/// The instruction set that is computed with.
#[derive(Clone, Copy)]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    Plain,
}

impl Isa {
    /// The best one that the processor has.
    pub fn new() -> Self {
        Self::all().remove(0)
    }

    /// All that the processor has, the best one first.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx512::Avx512::new().map(Isa::Avx512));
            all.extend(avx2::Avx2::new().map(Isa::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        all.extend(neon::Neon::new().map(Isa::Neon));
        all.push(Isa::Plain);
        all
    }

    /// AVX-512, if that is computed with.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn avx512(self) -> Option<avx512::Avx512> {
        match self {
            Isa::Avx512(lanes) => Some(lanes),
            _ => None,
        }
    }

    /// Does the work with the vectors of this instruction set.
    pub(super) fn run(self, work: impl WithLanes) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(lanes) => lanes.run(work),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(lanes) => lanes.run(work),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(lanes) => lanes.run(work),
            Isa::Plain => work.run(Plain),
        }
    }
}
