//! Operations on vectors of sixteen rows for each instruction set: AVX-512 with VNNI, AVX2, NEON, and plain Rust.
//!
//! A value of a type that implements [`Lanes`] exists only if the processor has its instructions. The safety of its
//! methods relies on that.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;

use self::plain::Plain;
use super::layout::ROWS;
use crate::pages::Line;

/// Vectors with a lane for each of a band's rows. `Bytes` are unsigned and below 128, except those from
/// [`Lanes::wide`] and [`Lanes::look_up`].
pub(super) trait Lanes: Copy {
    /// Four bytes per row.
    type Bytes: Copy;
    /// An integer per row.
    type Ints: Copy;
    /// An f32 number per row.
    type Floats: Copy;
    /// Maximum number of tokens at a time, limited by the number of registers. At most 8.
    const TOKENS: usize;
    /// The factor by which [`Lanes::fp8`] is too small. It puts the bits of a code into an f16, whose exponent has a
    /// fifth bit and a larger bias.
    const FP8_UNIT: f32 = 256.0;

    fn load(self, line: &Line) -> Self::Bytes;
    /// Computes `bytes >> shift & mask` for each byte. The mask must exclude bits that the shift brings in from the
    /// neighbouring byte.
    fn bits(self, bytes: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes;
    /// Computes `low | high << shift` for each byte. No bit may leave its byte.
    fn join(self, low: Self::Bytes, high: Self::Bytes, shift: usize) -> Self::Bytes;
    /// Computes `sum + bytes . x`: the four bytes of each row times the four signed bytes of `x`.
    fn dot(self, sum: Self::Ints, bytes: Self::Bytes, x: i32) -> Self::Ints;

    /// Loads 8-bit integers stored with an offset of 128, in the form that [`Lanes::dot_wide`] needs.
    fn wide(self, line: &Line) -> Self::Bytes;
    /// Looks up integers by their index, in the form that [`Lanes::dot_wide`] needs. The bytes must be below 16.
    fn look_up(self, bytes: Self::Bytes, table: [i8; 16]) -> Self::Bytes;
    /// Returns the initial value for sums of [`Lanes::dot_wide`]. `sum` is the sum of the integers of `x`.
    fn begin_wide(self, sum: i32) -> Self::Ints;
    /// Like [`Lanes::dot`], for bytes from [`Lanes::wide`] or [`Lanes::look_up`].
    fn dot_wide(self, sum: Self::Ints, bytes: Self::Bytes, x: i32) -> Self::Ints;

    fn splat(self, x: i32) -> Self::Ints;
    fn widen(self, x: &[u8; ROWS]) -> Self::Ints;
    fn widen_signed(self, x: &[u8; ROWS]) -> Self::Ints;
    /// Computes `a * b + c`.
    fn multiply(self, a: Self::Ints, b: Self::Ints, c: Self::Ints) -> Self::Ints;
    /// Combines two 16-bit integers per row into a word, the first in the lower half.
    fn pairs(self, first: &[u8; ROWS], second: &[u8; ROWS]) -> Self::Ints;
    /// Computes `sum + a . x`: the two integers of each row times those of `x`, all signed.
    fn dot_pairs(self, sum: Self::Ints, a: Self::Ints, x: i32) -> Self::Ints;

    fn zeros(self) -> Self::Floats;
    /// Widens f16 numbers.
    fn halves(self, x: &[u16; ROWS]) -> Self::Floats;
    fn floats(self, x: &[f32; ROWS]) -> Self::Floats;
    /// Computes half of two to the power of `x - 127` for each exponent, exactly.
    fn half_powers(self, x: &[u8; ROWS]) -> Self::Floats;
    /// Decodes FP8 codes, which must not be NaN. The results are smaller than the numbers by [`Lanes::FP8_UNIT`].
    fn fp8(self, codes: &[u8; ROWS]) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: f32) -> Self::Floats;
    /// Computes `a * b + c`, rounded once.
    fn mul_add_one(self, a: Self::Floats, b: f32, c: Self::Floats) -> Self::Floats;
    /// Computes `a * b + c`, rounded once.
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Rounds `a` to f32, then computes `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Ints, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn to_array(self, x: Self::Floats) -> [f32; ROWS];
}

/// Work written once over [`Lanes`] and compiled for each instruction set.
pub(super) trait WithLanes {
    /// Number of tokens.
    fn count(&self) -> usize;

    /// Processes `T` tokens from `token` on and returns the number of tokens processed. Implementations are marked
    /// `#[inline(always)]`, so that they are compiled for the caller's instruction set.
    fn tokens<L: Lanes, const T: usize>(&mut self, lanes: L, token: usize) -> usize;

    /// Processes all tokens. Inlined for the same reason.
    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L)
    where
        Self: Sized,
    {
        self.run_from(lanes, 0);
    }

    /// Processes all tokens from `token` on. Inlined for the same reason.
    #[inline(always)]
    fn run_from<L: Lanes>(&mut self, lanes: L, mut token: usize) {
        while token < self.count() {
            let left = usize::min(self.count() - token, L::TOKENS);
            token += match left {
                // The compiler evaluates these conditions and leaves out the calls with more tokens than fit the
                // registers.
                8.. if const { L::TOKENS >= 8 } => self.tokens::<L, 8>(lanes, token),
                4.. if const { L::TOKENS >= 4 } => self.tokens::<L, 4>(lanes, token),
                2.. => self.tokens::<L, 2>(lanes, token),
                _ => self.tokens::<L, 1>(lanes, token),
            };
        }
    }
}

/// The instruction set used for quantised weights.
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
    /// Selects the best instruction set of this processor.
    pub fn new() -> Self {
        Self::all().remove(0)
    }

    /// Returns all instruction sets of this processor, the best first.
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

    /// Returns AVX-512 if it is the selected instruction set.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn avx512(self) -> Option<avx512::Avx512> {
        match self {
            Isa::Avx512(lanes) => Some(lanes),
            _ => None,
        }
    }

    /// Does the work with this instruction set.
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
